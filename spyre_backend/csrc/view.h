// Zero-copy host views of device tensors.
#pragma once

#include <ATen/core/Tensor.h>

namespace spyre {

// CPU tensor over the same memory with the same size, stride and offset;
// float16 and bfloat16 appear as int16 DL16 codes. Memory must be open.
// `write` says that the caller will write through the view before the next read.
at::Tensor host_view(const at::Tensor& tensor, bool write);

} // namespace spyre
