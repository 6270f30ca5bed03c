#include "convert.h"

#include "dl16.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ne.h>

#include <cstring>

namespace spyre {
namespace {

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

} // namespace

bool is_coded(at::ScalarType dtype) {
  return dtype == at::kHalf || dtype == at::kBFloat16;
}

void write_values(const at::Tensor& given, at::ScalarType dtype, const at::Tensor& target) {
  const auto values = given.to(dtype);
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

void read_values(const at::Tensor& source, at::ScalarType dtype, const at::Tensor& values) {
  if (!is_coded(dtype)) {
    values.copy_(source);
    return;
  }
  const auto codes = source.contiguous();
  if (!is_coded(values.scalar_type())) {
    // Not through float16: what the destination can hold stays finite.
    values.copy_(dl16::decode_tensor(codes));
    return;
  }
  if (values.is_contiguous()) {
    from_codes(values.scalar_type(), words(codes), mutable_words(values), values.numel());
    return;
  }
  const auto dense = at::empty(values.sizes(), values.options());
  from_codes(values.scalar_type(), words(codes), mutable_words(dense), dense.numel());
  values.copy_(dense);
}

bool casts_on_device(at::ScalarType from, at::ScalarType to) {
  const bool from_float = is_coded(from) || from == at::kFloat;
  return from == to || (from_float && (is_coded(to) || to == at::kFloat || to == at::kBool));
}

void move_values(
    const at::Tensor& source,
    at::ScalarType from,
    const at::Tensor& target,
    at::ScalarType to) {
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
    const auto values = is_coded(from) ? dl16::decode_tensor(source) : source;
    if (is_coded(to)) {
      target.copy_(dl16::encode_tensor(values.to(at::kFloat)));
    } else {
      target.copy_(to == at::kLong ? wrap_int64(values.to(at::kLong)) : values);
    }
  }
}

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

} // namespace spyre
