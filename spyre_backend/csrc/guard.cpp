// The current device, streams and events, as PyTorch asks for them.
#include "events.h"
#include "memory.h"
#include "state.h"
#include "timeline.h"

#include <c10/core/DeviceCapability.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

namespace spyre {

void record_event(void** event, c10::Stream stream) {
  check_stream(stream);
  // PyTorch gives an event the device of the stream that it is first recorded on.
  const auto device =
      *event == nullptr ? stream.device_index() : static_cast<Event*>(*event)->mark->device;
  TORCH_CHECK_VALUE(
      device == stream.device_index(),
      "Spyre: an event of spyre:",
      int(device),
      " cannot be recorded on a stream of spyre:",
      int(stream.device_index()),
      "; record it on a stream of its own device and let the other stream wait for it");
  auto mark = record_mark(stream);
  if (*event == nullptr) {
    *event = new Event();
  }
  static_cast<Event*>(*event)->mark = std::move(mark);
}

double elapsed_time(const Event* first, const Event* second) {
  TORCH_CHECK(
      first != nullptr && second != nullptr,
      "Spyre: both events must be recorded before their elapsed time can be read");
  TORCH_CHECK(
      is_reached(*first->mark) && is_reached(*second->mark),
      "Spyre: both events must be completed before their elapsed time can be read; synchronize "
      "the later one first");
  return (time_of(*second->mark->moment) - time_of(*first->mark->moment)) / 1000;
}

namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::DeviceType;
using c10::Stream;

struct GuardImpl final : c10::impl::DeviceGuardImplInterface {
  DeviceType type() const override {
    return DeviceType::PrivateUse1;
  }

  Device exchangeDevice(Device device) const override {
    const auto before = current_device();
    set_current_device(device.index());
    return device_at(before);
  }

  Device getDevice() const override {
    return device_at(current_device());
  }

  void setDevice(Device device) const override {
    set_current_device(device.index());
  }

  void uncheckedSetDevice(Device device) const noexcept override {
    if (device.index() >= 0 && device.index() < device_count()) {
      set_current_device(device.index());
    }
  }

  DeviceIndex deviceCount() const noexcept override {
    try {
      return device_count();
    } catch (const std::exception&) {
      return 0; // SPYRE_DEVICES is no number; every use of the device says so
    }
  }

  c10::DeviceCapability getDeviceCapability(Device) const override {
    c10::DeviceCapability capability;
    capability.capability_data.capability_bits = 0;
    for (const auto dtype : supported_dtypes()) {
      capability.capability_data.capability_bits |= uint64_t{1} << static_cast<int>(dtype);
    }
    return capability;
  }

  Stream getStream(Device device) const override {
    return current_stream(checked_index(device));
  }

  Stream getDefaultStream(Device device) const override {
    return Stream(Stream::DEFAULT, device_at(checked_index(device)));
  }

  Stream getStreamFromGlobalPool(Device device, bool high) const override {
    return getNewStream(device, high ? -1 : 0);
  }

  Stream getNewStream(Device device, int priority) const override {
    return new_stream(checked_index(device), priority);
  }

  Stream exchangeStream(Stream stream) const override {
    return exchange_stream(stream);
  }

  void* getStreamNativeHandle(const Stream stream) const override {
    return reinterpret_cast<void*>(static_cast<intptr_t>(stream.id()));
  }

  bool queryStream(const Stream& stream) const override {
    check_stream(stream);
    return is_idle(stream);
  }

  void synchronizeStream(const Stream& stream) const override {
    synchronise(stream);
  }

  void synchronizeDevice(const DeviceIndex device) const override {
    synchronise_device(checked_index(device_at(device)));
  }

  void record(void** event, const Stream& stream, const DeviceIndex, const c10::EventFlag)
      const override {
    record_event(event, stream);
  }

  void destroyEvent(void* event, const DeviceIndex) const noexcept override {
    delete static_cast<Event*>(event);
  }

  void block(void* event, const Stream& stream) const override {
    if (event != nullptr) {
      wait_for_mark(stream, static_cast<Event*>(event)->mark);
    }
  }

  bool queryEvent(void* event) const override {
    return event == nullptr || is_reached(*static_cast<Event*>(event)->mark);
  }

  void synchronizeEvent(void* event) const override {
    if (event != nullptr) {
      synchronise_mark(*static_cast<Event*>(event)->mark);
    }
  }

  void recordDataPtrOnStream(const c10::DataPtr& data, const Stream& stream) const override {
    device_allocator()->recordStream(data, stream);
  }

  double elapsedTime(void* first, void* second, const DeviceIndex) const override {
    return elapsed_time(static_cast<Event*>(first), static_cast<Event*>(second));
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, GuardImpl);

} // namespace
} // namespace spyre
