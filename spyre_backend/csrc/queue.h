// The worker thread behind a stream, and the cores that streams share.
#pragma once

#include "interpreter.h"
#include "streams.h"

#include <atomic>
#include <chrono>
#include <deque>
#include <set>
#include <thread>

namespace spyre {

// Waits for `done` with Ctrl-C working, and without the interpreter's lock.
template <typename Done>
void wait_until(std::mutex& mutex, std::condition_variable& changed, const Done& done) {
  GilReleased released;
  std::unique_lock<std::mutex> lock(mutex);
  while (!changed.wait_for(lock, std::chrono::milliseconds(50), done)) {
    lock.unlock();
    check_signals();
    lock.lock();
  }
}

// The cores run one operation at a time; among those that are ready, that of
// the highest priority goes first, in the order of arrival.
class Cores {
 public:
  void acquire(int priority) {
    std::unique_lock<std::mutex> lock(mutex_);
    const std::pair<int, uint64_t> turn{priority, next_++};
    waiting_.insert(turn);
    freed_.wait(lock, [&] { return !busy_ && *waiting_.begin() == turn; });
    waiting_.erase(turn);
    busy_ = true;
  }

  size_t waiting() {
    std::lock_guard<std::mutex> lock(mutex_);
    return waiting_.size();
  }

  void release() {
    std::lock_guard<std::mutex> lock(mutex_);
    busy_ = false;
    freed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable freed_;
  std::set<std::pair<int, uint64_t>> waiting_;
  uint64_t next_ = 0;
  bool busy_ = false;
};

Cores& cores(c10::DeviceIndex device);
extern std::atomic<bool> workers_stop;

class Queue {
 public:
  explicit Queue(c10::Stream stream) : stream_(stream) {}

  void push(std::unique_ptr<Task> task) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!thread_.joinable()) {
      thread_ = std::thread([this] { work(); });
    }
    tasks_.push_back(std::move(task));
    queued_.fetch_add(1);
    if (asleep_) {
      wake_.notify_one();
    }
  }

  bool idle() const {
    return ended_.load() == queued_.load();
  }

  // Until everything that is queued now has ended.
  void wait() {
    const uint64_t target = queued_.load();
    if (ended_.load() < target) {
      wait_until(mutex_, progress_, [&] { return ended_.load() >= target; });
    }
  }

  void stop() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      wake_.notify_all();
    }
    if (thread_.joinable()) {
      thread_.join();
    }
  }

 private:
  void work();
  void carry_out(Task& task);

  const c10::Stream stream_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable progress_;
  std::deque<std::unique_ptr<Task>> tasks_;
  std::atomic<uint64_t> queued_{0};
  std::atomic<uint64_t> ended_{0};
  bool asleep_ = false;
  std::thread thread_;
};

} // namespace spyre
