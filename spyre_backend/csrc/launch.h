// Launching programs: three steps in order on a stream (D3.4).
#pragma once

#include "streams.h"
#include "view.h"

#include <torch/csrc/utils/pybind.h>

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace spyre {

// What a program was compiled for in one argument.
struct ArgumentSpec {
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  at::ScalarType dtype = at::kHalf;
  bool writes = false;
  int64_t elements = 0; // from the first to the last that the strides reach
  int64_t per_stick = 0; // 0: may begin anywhere
  int64_t row = 0; // elements of a row, 0: one row

  bool fits(const at::Tensor& tensor) const;
};

// The blob of one launch in flight: pinned host memory that the host computes,
// and its place in the program's region of device memory.
struct Blob {
  std::vector<uint64_t> host;
  uint64_t* device = nullptr;
  c10::DeviceIndex owner = 0;
};

class Launcher : public std::enable_shared_from_this<Launcher> {
 public:
  // `execute(views, addresses, generations)` runs the program on flat host
  // views of its arguments; None for a program without operations.
  Launcher(
      std::string name,
      std::vector<ArgumentSpec> specs,
      pybind11::object execute,
      bool honours_offset);
  ~Launcher();
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;

  // Queues a launch on the current stream of the arguments' device. False when
  // an argument is not what the program was compiled for.
  bool launch(const pybind11::args& args);

  // Carries out a launch: host step, transfer, compute.
  struct Call;
  void run(Call& call);

  void set_microseconds(double value) {
    microseconds_ = value;
  }
  size_t num_blobs();

 private:
  void host_compute(const Call& call, Blob& blob) const;
  void transfer(Blob& blob) const;
  std::vector<void*> patched_addresses(const Call& call, Blob& blob) const;
  void compute(Call& call, const std::vector<void*>& addresses) const;
  Blob* take_blob(c10::DeviceIndex device);
  void give_blob(c10::DeviceIndex device, Blob* blob);

  const std::string name_;
  const std::vector<ArgumentSpec> specs_;
  // Never freed after the interpreter's end.
  pybind11::object* execute_ = nullptr;
  const bool honours_offset_;
  double microseconds_ = 0;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Blob>> blobs_;
  std::array<std::vector<Blob*>, kMaxDevices> free_blobs_;
};

int64_t launch_count();
void reset_launch_count();
void count_launch();
// Structure-only mode: launches take simulated time and compute nothing.
void skip_compute(bool skip);

} // namespace spyre
