#include "view.h"

#include "convert.h"
#include "state.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/from_blob.h>

namespace spyre {

bool has_memory(const at::Tensor& tensor) {
  const auto needed = at::detail::computeStorageNbytes(
      tensor.sizes(), tensor.strides(), tensor.itemsize(), tensor.storage_offset());
  return tensor.numel() == 0 || needed <= tensor.storage().nbytes();
}

namespace {

at::TensorOptions host_options(const at::Tensor& tensor) {
  const auto dtype = tensor.scalar_type();
  return at::TensorOptions().device(at::kCPU).dtype(is_coded(dtype) ? at::kShort : dtype);
}

void settle_format(const at::Tensor& tensor) {
  Block* block = block_of(tensor);
  if (block != nullptr && block->format.load() == Format::kRaw) {
    block->format.store(format_of(tensor.scalar_type()));
  }
}

void check_on_device(const at::Tensor& tensor) {
  check_not_forked();
  TORCH_CHECK(
      tensor.device().type() == c10::DeviceType::PrivateUse1,
      "host_view: expected a tensor on spyre, got one on ",
      tensor.device());
  TORCH_CHECK(
      has_memory(tensor),
      "Spyre: a tensor of size ",
      tensor.sizes(),
      " has no memory for its elements any more: its storage was resized to ",
      tensor.storage().nbytes(),
      " bytes");
}

} // namespace

Block* block_of(const at::Tensor& tensor) {
  return block_of(tensor.storage().data_ptr());
}

at::Tensor host_view(const at::Tensor& tensor, bool write) {
  check_on_device(tensor);
  TORCH_CHECK(
      memory_is_open(),
      "host_view: device memory is closed; use it inside `with device_access():`");
  settle_format(tensor);
  if (write) {
    mark_written(block_of(tensor));
  }
  // The view keeps the storage alive, so a kernel may drop its tensor early.
  auto keep = tensor.storage();
  return at::for_blob(host_pointer(keep.data()), tensor.sizes())
      .strides(tensor.strides())
      .storage_offset(tensor.storage_offset())
      .deleter([keep](void*) {})
      .options(host_options(tensor))
      .make_tensor();
}

at::Tensor host_alias(const at::Tensor& tensor) {
  check_on_device(tensor);
  settle_format(tensor);
  return at::for_blob(host_pointer(tensor.storage().data()), tensor.sizes())
      .strides(tensor.strides())
      .storage_offset(tensor.storage_offset())
      .options(host_options(tensor))
      .make_tensor();
}

BlockPins::BlockPins(std::vector<Block*> blocks) : blocks_(std::move(blocks)) {
  pin_blocks(blocks_);
}

BlockPins::~BlockPins() {
  unpin_blocks(blocks_);
}

BlockPins::BlockPins(BlockPins&& other) noexcept : blocks_(std::move(other.blocks_)) {
  other.blocks_.clear();
}

} // namespace spyre
