// DL16 ("SEN169_FP16", D1.5): 1 sign bit, 6 exponent bits with bias 31, 9
// fraction bits. Only magnitude 0 is zero, there are no subnormals, and
// magnitude 0x7FFF is the one code for NaN and infinity.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <string>

namespace spyre::dl16 {

constexpr uint16_t kMerged = 0x7FFF; // NaN and infinity
constexpr uint16_t kLargest = 0x7FFE; // 8 573 157 376
constexpr uint16_t kSaturatedInfinity = 0x6FFF; // fp16 infinity, D1.5 (2)
constexpr uint16_t kLargestHalf = 0x5DFF; // 65472, D1.5 (#2518)

// One value at a time; the array kernels below agree with these bit for bit.
float decode(uint16_t code);
uint16_t encode(float value);

void encode(const float* in, uint16_t* out, int64_t n);
void decode(const uint16_t* in, float* out, int64_t n);
// in == out is allowed.
void round(const float* in, float* out, int64_t n);

at::Tensor encode_tensor(const at::Tensor& values); // float32 -> int16
at::Tensor decode_tensor(const at::Tensor& codes); // int16 -> float32
at::Tensor round_tensor(const at::Tensor& values); // float32 -> float32
at::Tensor& round_tensor_(at::Tensor& values);
// partials [nblk, ...] float32 -> [...] float32, each step rounded to DL16.
at::Tensor block_accumulate(const at::Tensor& partials);

// How a float16, which has one fraction bit more, is rounded to DL16.
enum class Rounding : uint8_t { kNearestEven, kHalfUp, kTruncate };

// Switches of the host <-> device conversion; the defaults are D1.5's.
struct CopyNumerics {
  Rounding half_rounding = Rounding::kNearestEven;
  bool halve_subnormals = true; // fp16 subnormals, each direction (#4689)
  bool saturate_half = true; // 65504 -> 65472 instead of 65536 (#2518)
  uint16_t half_infinity = kSaturatedInfinity; // code of fp16 infinity, without sign
  bool saturate_bfloat16 = true; // finite bf16 out of range -> +-0x7FFE
  bool truncate_bfloat16 = false; // device to host, before #2524
  bool merged_is_infinity = false; // 0x7FFF reads as infinity instead of NaN
};

void set_copy_numerics(const CopyNumerics& numerics);
CopyNumerics copy_numerics();

// Host 16-bit patterns <-> DL16 codes under the current switches.
void half_to_codes(const uint16_t* in, uint16_t* out, int64_t n);
void bfloat16_to_codes(const uint16_t* in, uint16_t* out, int64_t n);
void codes_to_half(const uint16_t* in, uint16_t* out, int64_t n);
void codes_to_bfloat16(const uint16_t* in, uint16_t* out, int64_t n);

} // namespace spyre::dl16
