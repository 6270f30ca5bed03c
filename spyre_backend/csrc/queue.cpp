#include "queue.h"

#include "failures.h"

#include <array>

namespace spyre {
namespace {

thread_local bool worker_thread = false;

} // namespace

std::atomic<bool> workers_stop{false};

Cores& cores(c10::DeviceIndex device) {
  static auto* all = new std::array<Cores, kMaxDevices>();
  return all->at(static_cast<size_t>(device));
}

size_t cores_waiting(c10::DeviceIndex device) {
  return cores(device).waiting();
}

bool on_worker_thread() {
  return worker_thread;
}

void Queue::work() {
  worker_thread = true;
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    asleep_ = true;
    wake_.wait(lock, [&] { return !tasks_.empty() || workers_stop.load(); });
    asleep_ = false;
    if (tasks_.empty()) {
      return;
    }
    auto task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    carry_out(*task);
    task.reset();
    lock.lock();
    ended_.fetch_add(1);
    progress_.notify_all();
  }
}

void Queue::carry_out(Task& task) {
  if (workers_stop.load() || has_failed(stream_)) {
    task.skip();
    return;
  }
  const bool computes = task.computes();
  auto& engine = cores(stream_.device_index());
  if (computes) {
    engine.acquire(stream_priority(stream_.id()));
  }
  try {
    task.run();
  } catch (...) {
    keep_failure(stream_, task.site);
  }
  if (computes) {
    engine.release();
  }
}

} // namespace spyre
