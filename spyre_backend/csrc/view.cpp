#include "view.h"

#include "memory.h"
#include "state.h"

#include <ATen/ops/from_blob.h>

namespace spyre {

at::Tensor host_view(const at::Tensor& tensor, bool write) {
  check_not_forked();
  TORCH_CHECK(
      tensor.device().type() == c10::DeviceType::PrivateUse1,
      "host_view: expected a tensor on spyre, got one on ",
      tensor.device());
  TORCH_CHECK(
      memory_is_open(),
      "host_view: device memory is closed; use it inside `with device_access():`");
  const auto dtype = tensor.scalar_type();
  const bool coded = dtype == at::kHalf || dtype == at::kBFloat16;
  const void* base = tensor.storage().data();
  if (base != nullptr && allocation_format(base) == Format::kRaw) {
    set_allocation_format(base, format_of(dtype));
  }
  if (write) {
    mark_written(base);
  }
  auto options = at::TensorOptions().device(at::kCPU).dtype(coded ? at::kShort : dtype);
  // The view keeps the storage alive, so a kernel may drop its tensor early.
  auto keep = tensor.storage();
  return at::for_blob(host_pointer(base), tensor.sizes())
      .strides(tensor.strides())
      .storage_offset(tensor.storage_offset())
      .deleter([keep](void*) {})
      .options(options)
      .make_tensor();
}

} // namespace spyre
