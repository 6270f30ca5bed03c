// Copies between host and device, and on the device.
#pragma once

#include <ATen/core/Tensor.h>

namespace spyre {

// Writes `src` into `dst`; at least one of them is on the device. Shapes
// broadcast, dtypes convert on the host, D1.5 applies in each direction.
//
// Runs in order with the current stream of the device. Copies from and to
// unpinned host memory have ended with the host's part when they return; those
// with `non_blocking` and pinned memory (torch.Tensor.pin_memory), and those on
// the device, run later.
void copy_tensor(const at::Tensor& src, const at::Tensor& dst, bool non_blocking = false);

// Turns an allocation of host bytes into the device's format for `dtype`, when
// a tensor of that dtype is first bound to it (deserialisation).
void bind_format(const at::Tensor& tensor);

} // namespace spyre
