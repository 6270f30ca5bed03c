// The emulated devices of this process and the current one of each thread.
#pragma once

#include <c10/core/Device.h>

namespace spyre {

constexpr int kMaxDevices = 16;

// SPYRE_DEVICES, default 1 (D3.1). Throws when the variable is no number from 1
// to kMaxDevices.
c10::DeviceIndex device_count();
c10::DeviceIndex current_device();
void set_current_device(c10::DeviceIndex index);
// Index of `device`, with the current one for -1; throws when it is not ours.
c10::DeviceIndex checked_index(c10::Device device);
c10::Device device_at(c10::DeviceIndex index);

} // namespace spyre
