// Tensor creation, storage and view operators: all that is not arithmetic.
#include "copy.h"
#include "devices.h"
#include "fallback.h"
#include "generator.h"
#include "memory.h"
#include "state.h"
#include "streams.h"
#include "timeline.h"
#include "view.h"

#include <ATen/EmptyTensor.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/is_set_to_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

namespace spyre {
namespace {

using at::IntArrayRef;
using at::Tensor;
using c10::ScalarType;

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

ScalarType check_options(
    IntArrayRef size,
    std::optional<ScalarType> dtype,
    std::optional<c10::Layout> layout,
    std::optional<c10::Device> device,
    std::optional<bool> pin_memory) {
  check_not_forked();
  TORCH_CHECK(
      c10::layout_or_default(layout) == c10::Layout::Strided,
      "Spyre backend supports strided tensors only, got layout ",
      c10::layout_or_default(layout));
  TORCH_CHECK(
      !c10::pinned_memory_or_default(pin_memory),
      "Spyre backend does not support pinned memory (D3.1). Leave out pin_memory.");
  if (device.has_value()) {
    checked_index(*device);
  }
  const auto chosen = c10::dtype_or_default(dtype);
  // PyTorch binds an empty byte tensor to a storage that it moves as a whole.
  const bool storage_handle = chosen == at::kByte && size.size() == 1 && size[0] == 0;
  if (!storage_handle) {
    check_dtype(chosen);
  }
  return chosen;
}

// Allocates on the device that was asked for, as many bytes as the card would.
template <typename Allocate>
Tensor make_tensor(
    IntArrayRef size,
    ScalarType dtype,
    std::optional<c10::Device> device,
    const Allocate& allocate) {
  const c10::DeviceGuard guard(
      device_at(device.has_value() ? checked_index(*device) : current_device()));
  const ExpectSticks sticks(stick_bytes(size, dtype));
  Tensor tensor = allocate();
  if (Block* block = block_of(tensor)) {
    block->format.store(format_of(dtype));
  }
  return tensor;
}

Tensor empty(
    IntArrayRef size,
    std::optional<ScalarType> dtype,
    std::optional<c10::Layout> layout,
    std::optional<c10::Device> device,
    std::optional<bool> pin_memory,
    std::optional<c10::MemoryFormat> memory_format) {
  const auto chosen = check_options(size, dtype, layout, device, pin_memory);
  return make_tensor(size, chosen, device, [&] {
    return at::detail::empty_generic(size, device_allocator(), kKeys, chosen, memory_format);
  });
}

Tensor empty_strided(
    IntArrayRef size,
    IntArrayRef stride,
    std::optional<ScalarType> dtype,
    std::optional<c10::Layout> layout,
    std::optional<c10::Device> device,
    std::optional<bool> pin_memory) {
  const auto chosen = check_options(size, dtype, layout, device, pin_memory);
  return make_tensor(size, chosen, device, [&] {
    return at::detail::empty_strided_generic(size, stride, device_allocator(), kKeys, chosen);
  });
}

Tensor as_strided(
    const Tensor& self,
    IntArrayRef size,
    IntArrayRef stride,
    std::optional<int64_t> storage_offset) {
  return at::native::as_strided_tensorimpl(self, size, stride, storage_offset);
}

// The storage grows when the tensor's sizes and strides reach beyond its end.
void fit_storage(const Tensor& self) {
  const auto needed = at::detail::computeStorageNbytes(
      self.sizes(), self.strides(), self.itemsize(), self.storage_offset());
  const auto& storage = self.storage();
  if (self.numel() > 0 && needed > storage.nbytes()) {
    at::native::resize_bytes_nocuda(storage, needed);
  }
  // Bytes of unknown meaning stay so until a tensor with a dtype is bound.
  const void* base = storage.data();
  if (base != nullptr && self.scalar_type() != at::kByte &&
      allocation_format(base) == Format::kRaw) {
    set_allocation_format(base, format_of(self.scalar_type()));
  }
}

const Tensor& resize_(
    const Tensor& self,
    IntArrayRef size,
    std::optional<c10::MemoryFormat> memory_format) {
  if (self.sizes() == size && !memory_format.has_value()) {
    return self;
  }
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(size);
  if (memory_format.has_value()) {
    TORCH_CHECK(
        *memory_format != c10::MemoryFormat::Preserve,
        "resize_: unsupported memory format ",
        *memory_format);
    impl->empty_tensor_restride(*memory_format);
  }
  fit_storage(self);
  return self;
}

Tensor& set_storage(
    Tensor& result,
    at::Storage storage,
    int64_t storage_offset,
    IntArrayRef size,
    IntArrayRef stride) {
  at::native::checkSetStorage(result, std::move(storage), storage_offset, size, stride);
  auto* impl = result.unsafeGetTensorImpl();
  impl->set_storage_offset(storage_offset);
  if (stride.data() != nullptr) {
    impl->set_sizes_and_strides(size, stride);
  } else {
    impl->set_sizes_contiguous(size);
  }
  bind_format(result);
  fit_storage(result);
  return result;
}

Tensor& set_whole_storage(Tensor& result, at::Storage storage) {
  at::native::set_(result, std::move(storage));
  bind_format(result);
  return result;
}

Tensor& set_nothing(Tensor& result) {
  at::Storage storage(at::Storage::use_byte_size_t(), 0, device_allocator(), /*resizable=*/true);
  return set_storage(result, std::move(storage), 0, {0}, {});
}

Tensor& set_tensor(Tensor& result, const Tensor& source) {
  return at::native::set_tensor_(result, source);
}

Tensor copy_from(const Tensor& self, const Tensor& dst, bool non_blocking) {
  count_read(self, dst);
  copy_tensor(self, dst, non_blocking);
  return dst;
}

Tensor copy_from_and_resize(const Tensor& self, const Tensor& dst) {
  count_read(self, dst);
  dst.resize_(self.sizes());
  copy_tensor(self, dst);
  return dst;
}

at::Scalar local_scalar_dense(const Tensor& self) {
  auto value = at::empty({}, self.options().device(at::kCPU));
  count_read(self, value);
  copy_tensor(self.reshape({}), value);
  return at::_local_scalar_dense(value);
}

// Operations in flight pin the memory they use, whichever stream they are on.
void record_stream(Tensor& self, c10::Stream stream) {
  TORCH_CHECK_VALUE(
      stream.device() == self.device(),
      "Spyre: record_stream got a stream of ",
      stream.device(),
      " for a tensor on ",
      self.device());
  check_stream(stream);
}

// D3.5: fill_, zero_, normal_ and uniform_ are made on the CPU and copied.

Tensor host_like(const Tensor& self) {
  return at::empty(self.sizes(), self.options().device(at::kCPU));
}

Tensor& fill_scalar_(Tensor& self, const at::Scalar& value) {
  copy_tensor(at::full({}, value, self.options().device(at::kCPU)), self);
  return self;
}

Tensor& fill_tensor_(Tensor& self, const Tensor& value) {
  TORCH_CHECK(
      value.dim() == 0,
      "fill_ only supports 0-dimension value tensor but got tensor with ",
      value.dim(),
      " dimensions.");
  copy_tensor(value, self);
  return self;
}

Tensor& zero_(Tensor& self) {
  return fill_scalar_(self, 0);
}

Tensor& normal_(Tensor& self, double mean, double std, std::optional<at::Generator> generator) {
  const c10::DeviceGuard guard(self.device()); // each device has its own generator
  copy_tensor(host_like(self).normal_(mean, std, host_generator(generator)), self);
  return self;
}

Tensor& uniform_(Tensor& self, double from, double to, std::optional<at::Generator> generator) {
  const c10::DeviceGuard guard(self.device());
  copy_tensor(host_like(self).uniform_(from, to, host_generator(generator)), self);
  return self;
}

// Lookups read rows of a table by integer index. The host gathers the codes in
// place: no arithmetic, and the table is never copied.

Tensor gather_rows(const Tensor& table, int64_t dim, const Tensor& index) {
  const auto device = table.device().index();
  wait_for_current_streams(device);
  AccessGuard guard;
  const auto rows = at::index_select(host_alias(table), dim, host_alias(index));
  auto out = at::empty(rows.sizes(), table.options());
  host_alias(out).copy_(rows);
  mark_written(block_of(out));
  const auto stream = current_stream(device);
  const auto bytes = [](const Tensor& t) { return stick_bytes(t.sizes(), t.scalar_type()); };
  charge(stream, host_copy_cost(Engine::kToHost, bytes(index)));
  schedule(stream, host_copy_cost(Engine::kToDevice, bytes(out)));
  return out;
}

void check_index(const char* op, const Tensor& table, const Tensor& index) {
  TORCH_CHECK(
      index.device() == table.device(),
      "Expected all tensors to be on the same device, but ",
      op,
      " got a table on ",
      table.device(),
      " and indices on ",
      index.device());
  TORCH_CHECK_TYPE(
      index.scalar_type() == at::kLong || index.scalar_type() == at::kInt,
      op,
      ": expected indices of dtype int64 or int32, got ",
      index.scalar_type());
}

Tensor embedding(
    const Tensor& weight,
    const Tensor& indices,
    int64_t /*padding_idx*/,
    bool /*scale_grad_by_freq*/,
    bool /*sparse*/) {
  TORCH_CHECK(weight.dim() == 2, "'weight' must be 2-D");
  check_index("embedding", weight, indices);
  count_fallback("aten.embedding.default", kLookup);
  auto shape = indices.sizes().vec();
  shape.push_back(weight.size(1));
  return gather_rows(weight, 0, indices.reshape({-1})).view(shape);
}

Tensor index_select(const Tensor& self, int64_t dim, const Tensor& index) {
  check_index("index_select", self, index);
  count_fallback("aten.index_select.default", kLookup);
  return gather_rows(self, dim, index);
}

} // namespace
} // namespace spyre

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &spyre::empty);
  m.impl("empty_strided", &spyre::empty_strided);
  m.impl("as_strided", &spyre::as_strided);
  m.impl("view", &at::native::view);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("unfold", &at::native::unfold);
  m.impl("resize_", &spyre::resize_);
  m.impl("set_.source_Storage_storage_offset", &spyre::set_storage);
  m.impl("set_.source_Storage", &spyre::set_whole_storage);
  m.impl("set_", &spyre::set_nothing);
  m.impl("set_.source_Tensor", &spyre::set_tensor);
  m.impl("is_set_to", &at::native::is_set_to);
  m.impl("_copy_from", &spyre::copy_from);
  m.impl("_copy_from_and_resize", &spyre::copy_from_and_resize);
  m.impl("_local_scalar_dense", &spyre::local_scalar_dense);
  m.impl("record_stream", &spyre::record_stream);
  m.impl("fill_.Scalar", &spyre::fill_scalar_);
  m.impl("fill_.Tensor", &spyre::fill_tensor_);
  m.impl("zero_", &spyre::zero_);
  m.impl("normal_", &spyre::normal_);
  m.impl("uniform_", &spyre::uniform_);
  m.impl("embedding", &spyre::embedding);
  m.impl("index_select", &spyre::index_select);
}
