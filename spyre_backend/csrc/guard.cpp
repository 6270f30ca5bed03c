// Streams, events and the current device. The emulator runs each operation to
// its end before it returns, so every stream is always idle and in order.
#include "state.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <chrono>

namespace spyre {
namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::DeviceType;
using c10::Stream;
using c10::StreamId;

constexpr StreamId kPerPriority = 32; // D3.3: ids 1-32 low, 33-64 high priority

thread_local StreamId current_stream = 0;
std::atomic<StreamId> next_low{0};
std::atomic<StreamId> next_high{0};

struct Event {
  std::chrono::steady_clock::time_point time;
  StreamId stream = 0;
};

Device the_device() {
  return Device(DeviceType::PrivateUse1, 0);
}

void check_index(Device device) {
  TORCH_CHECK(
      device.type() == DeviceType::PrivateUse1 && device.index() <= 0,
      "Spyre: invalid device ",
      device,
      "; this process has one device, spyre:0");
}

struct GuardImpl final : c10::impl::DeviceGuardImplInterface {
  DeviceType type() const override {
    return DeviceType::PrivateUse1;
  }

  Device exchangeDevice(Device device) const override {
    check_index(device);
    return the_device();
  }

  Device getDevice() const override {
    return the_device();
  }

  void setDevice(Device device) const override {
    check_index(device);
  }

  void uncheckedSetDevice(Device) const noexcept override {}

  DeviceIndex deviceCount() const noexcept override {
    return 1;
  }

  Stream getStream(Device) const override {
    return Stream(Stream::UNSAFE, the_device(), current_stream);
  }

  Stream getDefaultStream(Device) const override {
    return Stream(Stream::DEFAULT, the_device());
  }

  Stream getStreamFromGlobalPool(Device device, bool high) const override {
    return getNewStream(device, high ? -1 : 0);
  }

  Stream getNewStream(Device device, int priority) const override {
    check_index(device);
    const bool high = priority < 0;
    auto& next = high ? next_high : next_low;
    const StreamId first = high ? kPerPriority + 1 : 1;
    return Stream(Stream::UNSAFE, the_device(), first + next.fetch_add(1) % kPerPriority);
  }

  Stream exchangeStream(Stream stream) const override {
    check_index(stream.device());
    const StreamId before = current_stream;
    current_stream = stream.id();
    return Stream(Stream::UNSAFE, the_device(), before);
  }

  void* getStreamNativeHandle(const Stream stream) const override {
    return reinterpret_cast<void*>(static_cast<intptr_t>(stream.id()));
  }

  bool queryStream(const Stream&) const override {
    return true;
  }

  void synchronizeStream(const Stream&) const override {
    check_not_forked();
  }

  void synchronizeDevice(const DeviceIndex) const override {
    check_not_forked();
  }

  void record(void** event, const Stream& stream, const DeviceIndex, const c10::EventFlag)
      const override {
    if (*event == nullptr) {
      *event = new Event();
    }
    auto* made = static_cast<Event*>(*event);
    made->time = std::chrono::steady_clock::now();
    made->stream = stream.id();
  }

  void destroyEvent(void* event, const DeviceIndex) const noexcept override {
    delete static_cast<Event*>(event);
  }

  void block(void*, const Stream&) const override {}

  bool queryEvent(void*) const override {
    return true;
  }

  void synchronizeEvent(void*) const override {}

  double elapsedTime(void* first, void* second, const DeviceIndex) const override {
    TORCH_CHECK(
        first != nullptr && second != nullptr,
        "Spyre: both events must be recorded before their elapsed time can be read");
    const auto span = static_cast<Event*>(second)->time - static_cast<Event*>(first)->time;
    return std::chrono::duration<double, std::milli>(span).count();
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, GuardImpl);

} // namespace
} // namespace spyre
