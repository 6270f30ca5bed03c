#include "devices.h"

#include <c10/util/Exception.h>

#include <cstdlib>

namespace spyre {
namespace {

thread_local c10::DeviceIndex current = 0;

c10::DeviceIndex count_from_environment() {
  const char* text = std::getenv("SPYRE_DEVICES");
  if (text == nullptr || *text == '\0') {
    return 1;
  }
  char* end = nullptr;
  const long value = std::strtol(text, &end, 10);
  TORCH_CHECK(
      end != nullptr && *end == '\0' && value >= 1 && value <= kMaxDevices,
      "SPYRE_DEVICES must be a number of devices from 1 to ",
      kMaxDevices,
      ", got '",
      text,
      "'");
  return static_cast<c10::DeviceIndex>(value);
}

} // namespace

c10::DeviceIndex device_count() {
  static const c10::DeviceIndex count = count_from_environment();
  return count;
}

c10::DeviceIndex current_device() {
  return current;
}

void set_current_device(c10::DeviceIndex index) {
  current = checked_index(c10::Device(c10::DeviceType::PrivateUse1, index));
}

c10::DeviceIndex checked_index(c10::Device device) {
  const int count = device_count();
  TORCH_CHECK(
      device.type() == c10::DeviceType::PrivateUse1,
      "Spyre: expected a spyre device, got ",
      device);
  TORCH_CHECK(
      device.index() >= -1 && device.index() < count,
      "Spyre: invalid device ",
      device,
      "; this process has ",
      count == 1 ? "one device, spyre:0" : "devices spyre:0 to spyre:" + std::to_string(count - 1),
      ". SPYRE_DEVICES sets the number of emulated devices.");
  return device.index() < 0 ? current : device.index();
}

c10::Device device_at(c10::DeviceIndex index) {
  return c10::Device(c10::DeviceType::PrivateUse1, index);
}

} // namespace spyre
