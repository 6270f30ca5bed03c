// Streams: queues of work that worker threads carry out in order (D3.3), and
// marks that tie streams together.
#pragma once

#include "devices.h"

#include <c10/core/Stream.h>

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace spyre {

// D3.3: 0 is the default stream, 1-32 have low and 33-64 high priority, and the
// host-compute pool comes after these.
constexpr c10::StreamId kPerPriority = 32;
constexpr c10::StreamId kFirstHostStream = 65;

// What of the device an operation occupies.
enum class Engine : uint8_t { kCompute, kToDevice, kToHost, kPeer, kCount };

// Simulated cost of an operation, and the name that traces show.
struct Cost {
  Engine engine = Engine::kCompute;
  double microseconds = 0;
  const char* name = "";
};

// Work of a stream.
class Task {
 public:
  virtual ~Task() = default;
  virtual void run() = 0;
  // Called instead of run() behind a failed operation, and when the process ends.
  virtual void skip() {}
  // Whether the operation occupies the cores, which streams share by priority.
  virtual bool computes() const {
    return false;
  }

  uint32_t site = 0; // the launching line, see failures.h
};

struct Moment; // see timeline.h
using MomentPtr = std::shared_ptr<Moment>;

// A point in a stream.
struct Mark {
  std::mutex mutex;
  std::condition_variable reached;
  bool done = false;
  MomentPtr moment; // in simulated time
  c10::DeviceIndex device = 0;
  c10::StreamId stream = 0;
};

using MarkPtr = std::shared_ptr<Mark>;

c10::StreamId num_host_streams(); // TORCH_SPYRE_NUM_HOST_COMPUTE_STREAMS
int stream_priority(c10::StreamId id); // -1 high, 0 low
c10::Stream new_stream(c10::DeviceIndex device, int priority);
c10::Stream current_stream(c10::DeviceIndex device);
// Makes the stream current on its device in this thread; returns the one before.
c10::Stream exchange_stream(c10::Stream stream);
void check_stream(c10::Stream stream);

// Queues `task` and gives it its place in simulated time.
void enqueue(c10::Stream stream, std::unique_ptr<Task> task, const Cost& cost);
// Accounts for an operation that the calling thread carries out itself.
void charge(c10::Stream stream, const Cost& cost);

bool is_idle(c10::Stream stream);
// These wait, keep Ctrl-C working and throw what failed on the device.
void synchronise(c10::Stream stream);
void synchronise_device(c10::DeviceIndex device);
void synchronise_all();
void synchronise_mark(const Mark& mark);
// Before the calling thread itself touches memory of the device: everything
// queued on this thread's stream has ended, in order with what comes next.
void wait_for_current_streams(c10::DeviceIndex device);
// Waits without throwing; for the allocator. No-op on worker threads.
void drain_device(c10::DeviceIndex device);

MarkPtr record_mark(c10::Stream stream);
bool is_reached(const Mark& mark);
void wait_for_mark(c10::Stream stream, MarkPtr mark);

// Operations that are ready and wait for the cores.
size_t cores_waiting(c10::DeviceIndex device);

// True on the threads that carry out streams' work.
bool on_worker_thread();
// Ends the worker threads; queued work is dropped.
void shut_down();
// With SPYRE_LAUNCH_BLOCKING=1 every operation ends before its call returns.
bool launches_block();
void set_launch_blocking(bool blocking);

} // namespace spyre
