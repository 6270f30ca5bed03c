#include "streams.h"

#include "failures.h"
#include "interpreter.h"
#include "queue.h"
#include "state.h"
#include "timeline.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>

namespace spyre {
namespace {

using c10::DeviceIndex;
using c10::StreamId;

constexpr StreamId kMaxHostStreams = 8; // D3.3

thread_local std::array<StreamId, kMaxDevices> current_ids{};

constexpr size_t kStreams = kFirstHostStream + kMaxHostStreams;
using Slots = std::array<std::atomic<Queue*>, kStreams>;

Slots& slots(DeviceIndex device) {
  static auto* all = new std::array<Slots, kMaxDevices>();
  return all->at(static_cast<size_t>(device));
}

// Null while nothing was ever queued on the stream.
Queue* find_queue(c10::Stream stream) {
  return slots(stream.device_index()).at(static_cast<size_t>(stream.id())).load();
}

Queue& queue(c10::Stream stream) {
  static std::mutex making;
  auto& slot = slots(stream.device_index()).at(static_cast<size_t>(stream.id()));
  Queue* found = slot.load();
  if (found == nullptr) {
    std::lock_guard<std::mutex> lock(making);
    found = slot.load();
    if (found == nullptr) {
      found = new Queue(stream);
      slot.store(found);
    }
  }
  return *found;
}

template <typename Visit>
void for_each_queue(DeviceIndex device, const Visit& visit) {
  for (auto& slot : slots(device)) {
    if (Queue* found = slot.load()) {
      visit(*found);
    }
  }
}

void raise_if_failed(DeviceIndex device) {
  if (!on_worker_thread() && device_has_failed(device)) {
    // What was queued behind the failure is dropped before anybody hears of it.
    for_each_queue(device, [](Queue& each) { each.wait(); });
    raise_failure(device);
  }
}

void reach(Mark& mark) {
  std::lock_guard<std::mutex> lock(mark.mutex);
  mark.done = true;
  mark.reached.notify_all();
}

struct ReachMark final : Task {
  explicit ReachMark(MarkPtr mark) : mark(std::move(mark)) {}
  void run() override {
    reach(*mark);
  }
  void skip() override {
    reach(*mark);
  }
  MarkPtr mark;
};

struct AwaitMark final : Task {
  explicit AwaitMark(MarkPtr mark) : mark(std::move(mark)) {}
  void run() override {
    std::unique_lock<std::mutex> lock(mark->mutex);
    mark->reached.wait(lock, [&] { return mark->done; });
  }
  MarkPtr mark;
};

} // namespace

StreamId num_host_streams() {
  const char* text = std::getenv("TORCH_SPYRE_NUM_HOST_COMPUTE_STREAMS");
  const long value = text == nullptr ? 4 : std::strtol(text, nullptr, 10); // D3.3
  return std::clamp<StreamId>(value, 1, kMaxHostStreams);
}

int stream_priority(StreamId id) {
  return id > kPerPriority && id < kFirstHostStream ? -1 : 0;
}

c10::Stream new_stream(DeviceIndex device, int priority) {
  static std::array<std::atomic<StreamId>, kMaxDevices> low{};
  static std::array<std::atomic<StreamId>, kMaxDevices> high{};
  TORCH_CHECK_VALUE(
      priority == 0 || priority == -1,
      "Spyre: a stream's priority is 0 (low) or -1 (high); got ",
      priority);
  const bool is_high = priority < 0;
  auto& next = (is_high ? high : low).at(static_cast<size_t>(device));
  const StreamId first = is_high ? kPerPriority + 1 : 1;
  return c10::Stream(
      c10::Stream::UNSAFE, device_at(device), first + next.fetch_add(1) % kPerPriority);
}

c10::Stream current_stream(DeviceIndex device) {
  return c10::Stream(
      c10::Stream::UNSAFE, device_at(device), current_ids.at(static_cast<size_t>(device)));
}

void check_stream(c10::Stream stream) {
  checked_index(stream.device());
  const StreamId last = kFirstHostStream + num_host_streams() - 1;
  TORCH_CHECK_VALUE(
      stream.id() >= 0 && stream.id() <= last,
      "Spyre: there is no stream ",
      stream.id(),
      "; a device has streams 0 to ",
      last);
}

c10::Stream exchange_stream(c10::Stream stream) {
  check_stream(stream);
  const auto device = checked_index(stream.device());
  const auto before = current_stream(device);
  current_ids.at(static_cast<size_t>(device)) = stream.id();
  return before;
}

void enqueue(c10::Stream stream, std::unique_ptr<Task> task, const Cost& cost) {
  check_not_forked();
  schedule(stream, cost);
  queue(stream).push(std::move(task));
  if (launches_block()) {
    synchronise(stream);
  }
}

void charge(c10::Stream stream, const Cost& cost) {
  schedule(stream, cost);
  host_reached(ready_time(stream));
}

bool is_idle(c10::Stream stream) {
  const Queue* found = find_queue(stream);
  return found == nullptr || found->idle();
}

void synchronise(c10::Stream stream) {
  check_not_forked();
  check_stream(stream);
  const double ready = ready_time(stream);
  if (Queue* found = find_queue(stream)) {
    found->wait();
  }
  host_reached(ready);
  raise_if_failed(stream.device_index());
}

void synchronise_device(DeviceIndex device) {
  check_not_forked();
  const double ready = device_time(device);
  for_each_queue(device, [](Queue& each) { each.wait(); });
  host_reached(ready);
  raise_if_failed(device);
}

void synchronise_all() {
  for (int device = 0; device < device_count(); ++device) {
    synchronise_device(static_cast<DeviceIndex>(device));
  }
}

bool is_reached(const Mark& mark) {
  auto& shared = const_cast<Mark&>(mark);
  std::lock_guard<std::mutex> lock(shared.mutex);
  return mark.done;
}

void synchronise_mark(const Mark& mark) {
  check_not_forked();
  auto& shared = const_cast<Mark&>(mark);
  if (!is_reached(mark)) {
    wait_until(shared.mutex, shared.reached, [&] { return mark.done; });
  }
  host_reached(time_of(*mark.moment));
  raise_if_failed(mark.device);
}

void wait_for_current_streams(DeviceIndex device) {
  if (!on_worker_thread()) {
    synchronise(current_stream(device));
  }
}

void drain_device(DeviceIndex device) {
  if (!on_worker_thread()) {
    for_each_queue(device, [](Queue& each) { each.wait(); });
  }
}

MarkPtr record_mark(c10::Stream stream) {
  check_not_forked();
  check_stream(stream);
  auto mark = std::make_shared<Mark>();
  mark->moment = mark_moment(stream);
  mark->device = stream.device_index();
  mark->stream = stream.id();
  if (is_idle(stream)) {
    mark->done = true;
  } else {
    queue(stream).push(std::make_unique<ReachMark>(mark));
  }
  return mark;
}

void wait_for_mark(c10::Stream stream, MarkPtr mark) {
  check_not_forked();
  check_stream(stream);
  delay_until(stream, mark->moment);
  if (!is_reached(*mark)) {
    queue(stream).push(std::make_unique<AwaitMark>(std::move(mark)));
  }
}

void shut_down() {
  if (in_bad_fork()) {
    return;
  }
  GilReleased released;
  workers_stop.store(true);
  for (int device = 0; device < device_count(); ++device) {
    for_each_queue(static_cast<DeviceIndex>(device), [](Queue& each) { each.stop(); });
  }
}

namespace {

std::atomic<bool>& blocking_flag() {
  static std::atomic<bool> flag([] {
    const char* text = std::getenv("SPYRE_LAUNCH_BLOCKING");
    return text != nullptr && *text != '\0' && *text != '0';
  }());
  return flag;
}

} // namespace

bool launches_block() {
  return blocking_flag().load(std::memory_order_relaxed);
}

void set_launch_blocking(bool blocking) {
  blocking_flag().store(blocking);
}

} // namespace spyre
