#include "copy.h"

#include "convert.h"
#include "failures.h"
#include "fallback.h"
#include "graphs.h"
#include "memory.h"
#include "pinned.h"
#include "state.h"
#include "timeline.h"
#include "view.h"

#include <ATen/MemoryOverlap.h>

#include <cstring>

namespace spyre {
namespace {

// A copy that the stream's worker makes.
template <typename Make>
struct CopyTask final : Task {
  CopyTask(std::vector<Block*> blocks, Block* written, Make make)
      : pins(std::move(blocks)), written(written), make(std::move(make)) {}

  void run() override {
    AccessGuard guard;
    make();
    mark_written(written);
  }

  BlockPins pins;
  Block* written;
  Make make;
};

template <typename Make>
void enqueue_copy(
    c10::Stream stream,
    const Cost& cost,
    std::vector<Block*> blocks,
    Block* written,
    Make make) {
  auto task = std::make_unique<CopyTask<Make>>(std::move(blocks), written, std::move(make));
  task->site = calling_site();
  enqueue(stream, std::move(task), cost);
}

bool on_device(const at::Tensor& tensor) {
  return tensor.device().type() == c10::DeviceType::PrivateUse1;
}

c10::Stream stream_of(const at::Tensor& tensor) {
  return current_stream(tensor.device().index());
}

bool is_pinned(const at::Tensor& tensor) {
  return tensor.has_storage() && is_pinned_pointer(tensor.storage().data());
}

int64_t bytes_on_device(const at::Tensor& tensor) {
  return stick_bytes(tensor.sizes(), tensor.scalar_type());
}

// Pinned sources of non-blocking copies are read when the stream comes to it;
// others have been read when the call returns.
void host_to_device(const at::Tensor& src, const at::Tensor& dst, bool non_blocking) {
  const auto stream = stream_of(dst);
  const auto dtype = dst.scalar_type();
  const auto cost = host_copy_cost(Engine::kToDevice, bytes_on_device(dst));
  dispatch_copy(Engine::kToDevice, static_cast<int64_t>(src.nbytes()), bytes_on_device(dst));
  const auto target = host_alias(dst);
  Block* block = block_of(dst);
  const bool later = non_blocking && is_pinned(src);
  if (!later && is_idle(stream)) {
    schedule(stream, cost);
    AccessGuard guard;
    write_values(src, dtype, target);
    mark_written(block);
    return;
  }
  auto values = src.detach();
  if (!later) {
    values = values.to(dtype);
    values = values.is_alias_of(src) ? values.clone() : values;
  }
  enqueue_copy(stream, cost, {block}, block, [values, dtype, target] {
    write_values(values, dtype, target);
  });
}

void device_to_host(const at::Tensor& given, const at::Tensor& dst, bool non_blocking) {
  const auto src = given.sizes().equals(dst.sizes()) ? given : given.expand_as(dst);
  const auto stream = stream_of(src);
  const auto dtype = src.scalar_type();
  const auto cost = host_copy_cost(Engine::kToHost, bytes_on_device(given));
  dispatch_copy(Engine::kToHost, static_cast<int64_t>(dst.nbytes()), bytes_on_device(given));
  if (non_blocking && is_pinned(dst)) {
    const auto source = host_alias(src);
    const auto values = dst.detach();
    enqueue_copy(stream, cost, {block_of(src)}, nullptr, [source, dtype, values] {
      read_values(source, dtype, values);
    });
    return;
  }
  wait_for_current_streams(stream.device_index());
  charge(stream, cost);
  AccessGuard guard;
  read_values(host_alias(src), dtype, dst);
}

// Views that begin inside a stick cannot be copied on the device (D2.7, #3798).
void check_stick_aligned(const at::Tensor& tensor) {
  const auto per_stick = elements_per_stick(tensor.scalar_type());
  if (tensor.storage_offset() % per_stick != 0) {
    throw_mid_stick_copy(
        tensor.storage_offset(), per_stick, tensor.sizes(), tensor.scalar_type());
  }
}

// Every cast that the device does not have is made by the host (D1.6).
void cast_on_host(const at::Tensor& src, const at::Tensor& dst) {
  const auto from = src.scalar_type();
  const auto to = dst.scalar_type();
  count_fallback("spyre.to_dtype_cpu", is_integer(from) && is_integer(to) ? kInteger : kCompute);
  wait_for_current_streams(src.device().index());
  wait_for_current_streams(dst.device().index());
  charge(stream_of(src), host_copy_cost(Engine::kToHost, bytes_on_device(src)));
  charge(stream_of(dst), host_copy_cost(Engine::kToDevice, bytes_on_device(dst)));
  AccessGuard guard;
  move_values(host_alias(src), from, host_alias(dst), to);
  mark_written(block_of(dst));
}

// Between two cards the copy runs on the source's stream; the destination's
// stream waits for it, and it for what was queued there before.
void device_to_device(const at::Tensor& src, const at::Tensor& dst) {
  const auto from = src.scalar_type();
  const auto to = dst.scalar_type();
  if (!casts_on_device(from, to)) {
    cast_on_host(src, dst);
    return;
  }
  check_stick_aligned(src);
  check_stick_aligned(dst);
  const auto stream = stream_of(src);
  const auto other = stream_of(dst);
  const bool peers = stream != other;
  if (peers) {
    wait_for_mark(stream, record_mark(other));
  }
  const auto cost =
      peers ? peer_copy_cost(bytes_on_device(dst)) : device_copy_cost(bytes_on_device(dst));
  const auto source = host_alias(src);
  const auto target = host_alias(dst);
  Block* written = block_of(dst);
  enqueue_copy(stream, cost, {block_of(src), written}, written, [source, from, target, to] {
    move_values(source, from, target, to);
  });
  if (peers) {
    wait_for_mark(other, record_mark(stream));
  }
}

// A byte tensor on the device is PyTorch's way to move a storage whose dtype it
// does not know; the allocation remembers it.
void copy_storage_bytes(const at::Tensor& src, const at::Tensor& dst) {
  const auto whole = [](const at::Tensor& tensor) {
    return tensor.scalar_type() == at::kByte && tensor.is_contiguous() &&
        tensor.storage_offset() == 0 &&
        tensor.numel() == static_cast<int64_t>(tensor.storage().nbytes());
  };
  TORCH_CHECK(
      whole(src) && whole(dst) && src.numel() == dst.numel(),
      "Spyre: bytes of a storage can only be copied as a whole; read them with .cpu()");
  for (const auto& tensor : {src, dst}) {
    if (on_device(tensor)) {
      wait_for_current_streams(tensor.device().index());
    }
  }
  AccessGuard guard;
  const auto nbytes = src.numel();
  const void* from = src.storage().data();
  void* to = dst.storage().mutable_data();
  if (!on_device(dst)) {
    convert_to_host(allocation_format(from), host_pointer(from), to, nbytes);
  } else if (!on_device(src)) {
    convert_to_device(allocation_format(to), from, host_pointer(to), nbytes);
    mark_written(to);
  } else {
    std::memmove(host_pointer(to), host_pointer(from), nbytes);
    set_allocation_format(to, allocation_format(from));
    mark_written(to);
  }
}

} // namespace

void copy_tensor(const at::Tensor& src, const at::Tensor& dst, bool non_blocking) {
  check_not_forked();
  if (dst.numel() == 0 || src.is_same(dst)) {
    return; // D6.3: newer builds return early
  }
  at::assert_no_internal_overlap(dst);
  at::assert_no_partial_overlap(dst, src);
  const bool bytes = (on_device(src) && src.scalar_type() == at::kByte) ||
      (on_device(dst) && dst.scalar_type() == at::kByte);
  if (bytes) {
    copy_storage_bytes(src, dst);
  } else if (on_device(src) && on_device(dst)) {
    device_to_device(src, dst);
  } else if (on_device(dst)) {
    TORCH_CHECK(src.device().is_cpu(), "Spyre: cannot copy from ", src.device(), " to spyre");
    host_to_device(src, dst, non_blocking);
  } else {
    TORCH_CHECK(dst.device().is_cpu(), "Spyre: cannot copy from spyre to ", dst.device());
    device_to_host(src, dst, non_blocking);
  }
}

void bind_format(const at::Tensor& tensor) {
  const auto& storage = tensor.storage();
  void* base = storage.mutable_data();
  if (base == nullptr || tensor.scalar_type() == at::kByte ||
      allocation_format(base) != Format::kRaw) {
    return;
  }
  wait_for_current_streams(tensor.device().index());
  AccessGuard guard;
  const auto format = format_of(tensor.scalar_type());
  void* bytes = host_pointer(base);
  convert_to_device(format, bytes, bytes, static_cast<int64_t>(storage.nbytes()));
  set_allocation_format(base, format);
  mark_written(base);
}

} // namespace spyre
