// Host 16-bit floats <-> DL16 codes, as copies convert them (D1.5). Both sides
// have 65,536 values, so each conversion is a table built from scalar rules.
#include "dl16.h"

#include <ATen/Parallel.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <atomic>
#include <cmath>
#include <memory>
#include <mutex>

namespace spyre::dl16 {
namespace {

using Table = std::array<uint16_t, 65536>;

struct Tables {
  CopyNumerics numerics;
  Table half_to_code;
  Table bfloat16_to_code;
  Table code_to_half;
  Table code_to_bfloat16;
};

constexpr uint16_t kHalfNan = 0x7E00;
constexpr uint16_t kHalfInfinity = 0x7C00;
constexpr uint16_t kBFloat16Nan = 0x7FC0;
constexpr uint16_t kBFloat16Infinity = 0x7F80;

// Magnitude of a normal float16 -> code: one fraction bit less, bias 31 for 15.
uint16_t round_half(uint16_t magnitude, Rounding rounding) {
  const uint16_t kept = magnitude >> 1;
  const uint16_t tie = magnitude & 1; // one bit is dropped, so inexact means a tie
  const bool up = rounding == Rounding::kHalfUp ||
      (rounding == Rounding::kNearestEven && (kept & 1) != 0);
  return kept + (up ? tie : 0) + ((31 - 15) << 9);
}

uint16_t half_to_code(uint16_t half, const CopyNumerics& numerics) {
  const uint16_t sign = half & 0x8000;
  const uint16_t magnitude = half & 0x7FFF;
  if (magnitude > kHalfInfinity) {
    return kMerged;
  }
  if (magnitude == kHalfInfinity) {
    return numerics.half_infinity | sign;
  }
  if (magnitude < 0x0400) {
    const int units = numerics.halve_subnormals ? magnitude >> 1 : magnitude;
    return encode(std::ldexp(static_cast<float>(units), -24)) | sign;
  }
  const uint16_t code = round_half(magnitude, numerics.half_rounding);
  const bool carried_out = code > kLargestHalf;
  return (carried_out && numerics.saturate_half ? kLargestHalf : code) | sign;
}

uint16_t code_to_half(uint16_t code, const CopyNumerics& numerics) {
  const uint16_t sign = code & 0x8000;
  const uint16_t magnitude = code & 0x7FFF;
  if (magnitude == kMerged) {
    return numerics.merged_is_infinity ? (kHalfInfinity | sign) : kHalfNan;
  }
  const uint16_t half = c10::Half(decode(magnitude)).x;
  const bool subnormal = half < 0x0400;
  return (subnormal && numerics.halve_subnormals ? half >> 1 : half) | sign;
}

uint16_t bfloat16_to_code(uint16_t bits, const CopyNumerics& numerics) {
  const uint16_t sign = bits & 0x8000;
  const float value = static_cast<float>(c10::BFloat16(bits, c10::BFloat16::from_bits()));
  const uint16_t code = encode(value);
  if ((code & 0x7FFF) == kMerged) {
    return std::isfinite(value) && numerics.saturate_bfloat16 ? (kLargest | sign) : kMerged;
  }
  return code;
}

uint16_t code_to_bfloat16(uint16_t code, const CopyNumerics& numerics) {
  if ((code & 0x7FFF) == kMerged) {
    return numerics.merged_is_infinity ? (kBFloat16Infinity | (code & 0x8000)) : kBFloat16Nan;
  }
  const float value = decode(code);
  if (numerics.truncate_bfloat16) {
    return static_cast<uint16_t>(__builtin_bit_cast(uint32_t, value) >> 16);
  }
  return c10::BFloat16(value).x;
}

std::shared_ptr<const Tables> build(const CopyNumerics& numerics) {
  auto tables = std::make_shared<Tables>();
  tables->numerics = numerics;
  for (uint32_t i = 0; i < 65536; ++i) {
    const auto bits = static_cast<uint16_t>(i);
    tables->half_to_code[i] = half_to_code(bits, numerics);
    tables->bfloat16_to_code[i] = bfloat16_to_code(bits, numerics);
    tables->code_to_half[i] = code_to_half(bits, numerics);
    tables->code_to_bfloat16[i] = code_to_bfloat16(bits, numerics);
  }
  return tables;
}

std::shared_ptr<const Tables>& slot() {
  static std::shared_ptr<const Tables> tables = build(CopyNumerics{});
  return tables;
}

std::shared_ptr<const Tables> current() {
  return std::atomic_load(&slot());
}

void translate(const Table& table, const uint16_t* in, uint16_t* out, int64_t n) {
  at::parallel_for(0, n, 1 << 15, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      out[i] = table[in[i]];
    }
  });
}

} // namespace

void set_copy_numerics(const CopyNumerics& numerics) {
  std::atomic_store(&slot(), build(numerics));
}

CopyNumerics copy_numerics() {
  return current()->numerics;
}

void half_to_codes(const uint16_t* in, uint16_t* out, int64_t n) {
  translate(current()->half_to_code, in, out, n);
}

void bfloat16_to_codes(const uint16_t* in, uint16_t* out, int64_t n) {
  translate(current()->bfloat16_to_code, in, out, n);
}

void codes_to_half(const uint16_t* in, uint16_t* out, int64_t n) {
  translate(current()->code_to_half, in, out, n);
}

void codes_to_bfloat16(const uint16_t* in, uint16_t* out, int64_t n) {
  translate(current()->code_to_bfloat16, in, out, n);
}

} // namespace spyre::dl16
