#include "copy.h"

#include "dl16.h"
#include "fallback.h"
#include "memory.h"
#include "state.h"
#include "view.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ne.h>

#include <cstring>

namespace spyre {
namespace {

bool on_device(const at::Tensor& tensor) {
  return tensor.device().type() == c10::DeviceType::PrivateUse1;
}

bool is_coded(at::ScalarType dtype) {
  return dtype == at::kHalf || dtype == at::kBFloat16;
}

const uint16_t* words(const at::Tensor& tensor) {
  return static_cast<const uint16_t*>(tensor.const_data_ptr());
}

uint16_t* mutable_words(const at::Tensor& tensor) {
  return static_cast<uint16_t*>(tensor.mutable_data_ptr());
}

void to_codes(at::ScalarType dtype, const uint16_t* in, uint16_t* out, int64_t n) {
  dtype == at::kHalf ? dl16::half_to_codes(in, out, n) : dl16::bfloat16_to_codes(in, out, n);
}

void from_codes(at::ScalarType dtype, const uint16_t* in, uint16_t* out, int64_t n) {
  dtype == at::kHalf ? dl16::codes_to_half(in, out, n) : dl16::codes_to_bfloat16(in, out, n);
}

at::Tensor wrap_int64(const at::Tensor& values) {
  return values.to(at::kInt).to(at::kLong); // held as int32 on the device (D1.6)
}

void host_to_device(const at::Tensor& src, const at::Tensor& dst) {
  AccessGuard guard;
  const auto dtype = dst.scalar_type();
  const auto values = src.to(dtype);
  auto target = host_view(dst, /*write=*/true);
  if (dtype == at::kLong) {
    target.copy_(wrap_int64(values));
  } else if (!is_coded(dtype)) {
    target.copy_(values);
  } else if (target.is_contiguous() && values.is_contiguous() &&
             values.numel() == target.numel()) {
    to_codes(dtype, words(values), mutable_words(target), target.numel());
  } else {
    const auto dense = values.contiguous();
    const auto codes = at::empty(dense.sizes(), dense.options().dtype(at::kShort));
    to_codes(dtype, words(dense), mutable_words(codes), codes.numel());
    target.copy_(codes);
  }
}

void device_to_host(const at::Tensor& src, const at::Tensor& dst) {
  AccessGuard guard;
  const auto source = host_view(src.expand_as(dst), /*write=*/false);
  if (!is_coded(src.scalar_type())) {
    dst.copy_(source);
    return;
  }
  const auto codes = source.contiguous();
  if (!is_coded(dst.scalar_type())) {
    // Not through float16: what the destination can hold stays finite.
    dst.copy_(dl16::decode_tensor(codes));
    return;
  }
  if (dst.is_contiguous()) {
    from_codes(dst.scalar_type(), words(codes), mutable_words(dst), dst.numel());
    return;
  }
  const auto values = at::empty(dst.sizes(), dst.options());
  from_codes(dst.scalar_type(), words(codes), mutable_words(values), values.numel());
  dst.copy_(values);
}

// Views that begin inside a stick cannot be copied on the device (D2.7, #3798).
void check_stick_aligned(const at::Tensor& tensor) {
  const auto per_stick = elements_per_stick(tensor.scalar_type());
  if (tensor.storage_offset() % per_stick != 0) {
    throw_mid_stick_copy(
        tensor.storage_offset(), per_stick, tensor.sizes(), tensor.scalar_type());
  }
}

bool casts_on_device(at::ScalarType from, at::ScalarType to) {
  const bool from_float = is_coded(from) || from == at::kFloat;
  return from == to || (from_float && (is_coded(to) || to == at::kFloat || to == at::kBool));
}

void device_to_device(const at::Tensor& src, const at::Tensor& dst) {
  const auto from = src.scalar_type();
  const auto to = dst.scalar_type();
  if (casts_on_device(from, to)) {
    check_stick_aligned(src);
    check_stick_aligned(dst);
  }
  AccessGuard guard;
  const auto source = host_view(src, /*write=*/false);
  auto target = host_view(dst, /*write=*/true);
  if (from == to || (is_coded(from) && is_coded(to))) {
    target.copy_(source);
  } else if (is_coded(from) && to == at::kFloat) {
    target.copy_(dl16::decode_tensor(source));
  } else if (from == at::kFloat && is_coded(to)) {
    target.copy_(dl16::encode_tensor(source));
  } else if (to == at::kBool && is_coded(from)) {
    target.copy_(at::ne(dl16::decode_tensor(source), 0));
  } else if (to == at::kBool && from == at::kFloat) {
    target.copy_(source);
  } else {
    // Every other cast is done by the host (D1.6).
    count_fallback("spyre.to_dtype_cpu", is_integer(from) && is_integer(to) ? kInteger : kCompute);
    const auto values = is_coded(from) ? dl16::decode_tensor(source) : source;
    if (is_coded(to)) {
      target.copy_(dl16::encode_tensor(values.to(at::kFloat)));
    } else {
      target.copy_(to == at::kLong ? wrap_int64(values.to(at::kLong)) : values);
    }
  }
}

// ---- bytes of whole storages (torch.save, pickle, deepcopy) ----

void convert_to_device(Format format, const void* in, void* out, int64_t nbytes) {
  if (format == Format::kHalf || format == Format::kBFloat16) {
    const auto dtype = format == Format::kHalf ? at::kHalf : at::kBFloat16;
    to_codes(dtype, static_cast<const uint16_t*>(in), static_cast<uint16_t*>(out), nbytes / 2);
  } else if (format == Format::kInt64) {
    const auto* values = static_cast<const int64_t*>(in);
    auto* target = static_cast<int64_t*>(out);
    for (int64_t i = 0; i < nbytes / 8; ++i) {
      target[i] = static_cast<int32_t>(values[i]);
    }
  } else if (in != out) {
    std::memcpy(out, in, nbytes);
  }
}

void convert_to_host(Format format, const void* in, void* out, int64_t nbytes) {
  if (format == Format::kHalf || format == Format::kBFloat16) {
    const auto dtype = format == Format::kHalf ? at::kHalf : at::kBFloat16;
    from_codes(dtype, static_cast<const uint16_t*>(in), static_cast<uint16_t*>(out), nbytes / 2);
  } else {
    std::memcpy(out, in, nbytes);
  }
}

// A byte tensor on the device is PyTorch's way to move a storage whose dtype it
// does not know; the allocation remembers it.
void copy_storage_bytes(const at::Tensor& src, const at::Tensor& dst) {
  AccessGuard guard;
  TORCH_CHECK(
      src.scalar_type() == at::kByte && dst.scalar_type() == at::kByte &&
          src.numel() == dst.numel() && src.is_contiguous() && dst.is_contiguous(),
      "Spyre: bytes of a storage can only be copied as a whole");
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

void copy_tensor(const at::Tensor& src, const at::Tensor& dst) {
  check_not_forked();
  if (dst.numel() == 0 || src.is_same(dst)) {
    return; // D6.3: newer builds return early
  }
  const bool bytes = (on_device(src) && src.scalar_type() == at::kByte) ||
      (on_device(dst) && dst.scalar_type() == at::kByte);
  if (bytes) {
    copy_storage_bytes(src, dst);
  } else if (on_device(src) && on_device(dst)) {
    device_to_device(src, dst);
  } else if (on_device(dst)) {
    TORCH_CHECK(src.device().is_cpu(), "Spyre: cannot copy from ", src.device(), " to spyre");
    host_to_device(src, dst);
  } else {
    TORCH_CHECK(dst.device().is_cpu(), "Spyre: cannot copy from spyre to ", dst.device());
    device_to_host(src, dst);
  }
}

void bind_format(const at::Tensor& tensor) {
  const auto& storage = tensor.storage();
  void* base = storage.mutable_data();
  if (base == nullptr || tensor.scalar_type() == at::kByte ||
      allocation_format(base) != Format::kRaw) {
    return;
  }
  AccessGuard guard;
  const auto format = format_of(tensor.scalar_type());
  void* bytes = host_pointer(base);
  convert_to_device(format, bytes, bytes, static_cast<int64_t>(storage.nbytes()));
  set_allocation_format(base, format);
  mark_written(base);
}

} // namespace spyre
