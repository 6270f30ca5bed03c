#pragma once

#include "memory.h"

#include <ATen/core/Tensor.h>

#include <vector>

namespace spyre {

// A CPU tensor over a device tensor's memory: same size, stride and offset;
// 16-bit floats appear as int16 DL16 codes. Keeps the memory alive; only valid
// while device memory is open. With `write`, the allocation counts as written.
at::Tensor host_view(const at::Tensor& tensor, bool write);

// The same for operations in flight: keeps nothing alive (see BlockPins) and
// counts as no write.
at::Tensor host_alias(const at::Tensor& tensor);

Block* block_of(const at::Tensor& tensor);
// Whether the storage reaches as far as the tensor.
bool has_memory(const at::Tensor& tensor);

// Keeps the memory of tensors from being used again while an operation is in
// flight; owners may free them meanwhile.
class BlockPins {
 public:
  explicit BlockPins(std::vector<Block*> blocks);
  ~BlockPins();
  BlockPins(BlockPins&& other) noexcept;
  BlockPins(const BlockPins&) = delete;
  BlockPins& operator=(const BlockPins&) = delete;
  BlockPins& operator=(BlockPins&&) = delete;

  const std::vector<Block*>& blocks() const {
    return blocks_;
  }

 private:
  std::vector<Block*> blocks_;
};

} // namespace spyre
