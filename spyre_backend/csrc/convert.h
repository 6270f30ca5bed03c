// What host and device make of each other's values (D1.5, D1.6, D2.3).
#pragma once

#include "memory.h"

#include <ATen/core/Tensor.h>

namespace spyre {

bool is_coded(at::ScalarType dtype); // held as DL16 codes

// Host values into device memory; `target` is a host alias of a tensor of
// dtype `dtype`. Shapes broadcast, dtypes convert.
void write_values(const at::Tensor& values, at::ScalarType dtype, const at::Tensor& target);
// Device memory, as the host alias of a tensor of dtype `dtype`, into host values.
void read_values(const at::Tensor& source, at::ScalarType dtype, const at::Tensor& values);
// Whether the device itself makes this cast; the host makes every other (D1.6).
bool casts_on_device(at::ScalarType from, at::ScalarType to);
// Between two host aliases.
void move_values(
    const at::Tensor& source,
    at::ScalarType from,
    const at::Tensor& target,
    at::ScalarType to);

// Bytes of whole storages (torch.save, pickle, deepcopy).
void convert_to_device(Format format, const void* in, void* out, int64_t nbytes);
void convert_to_host(Format format, const void* in, void* out, int64_t nbytes);

} // namespace spyre
