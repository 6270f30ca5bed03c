#include "dl16.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cstring>

// One object file for every machine: the loader picks the widest version that
// the processor runs.
#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__)
#define SPYRE_SIMD __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define SPYRE_SIMD
#endif
// Rounding in place reads and writes the same element, never a later one.
#if defined(__clang__)
#define SPYRE_IVDEP _Pragma("clang loop vectorize(assume_safety)")
#else
#define SPYRE_IVDEP _Pragma("GCC ivdep")
#endif
// A builtin, not std::bit_cast: GCC does not inline plain functions into clones.
#define SPYRE_INLINE static inline __attribute__((always_inline))

namespace spyre::dl16 {
namespace {

constexpr int64_t kGrain = 1 << 15;
constexpr int64_t kTile = 2048; // floats of one accumulator; stays in the L1 cache

// float32 bits >> 14 has DL16's fraction and a bias that is 96 too large.
constexpr int32_t kDropped = 14;
constexpr int32_t kRebias = 96 << 9;
constexpr int32_t kHalfUlp = 1 << (kDropped - 1);
constexpr int32_t kSmallestBits = (kRebias + 1) << kDropped;
constexpr int32_t kLargestBits = (kRebias + kLargest) << kDropped;
// A value exactly between 0 and the smallest number rounds to 0, as 0 is even.
constexpr int32_t kUnderflowBits = kSmallestBits - (1 << 23);
// A value exactly between the largest number and the merged code stays finite.
constexpr int32_t kOverflowBits = kLargestBits + kHalfUlp;
constexpr int32_t kNanBits = 0x7FC00000;
constexpr int32_t kSign = static_cast<int32_t>(0x80000000u);

SPYRE_INLINE int32_t round_bits(int32_t bits) {
  const int32_t magnitude = bits & 0x7FFFFFFF;
  const uint32_t odd = (static_cast<uint32_t>(magnitude) >> kDropped) & 1u;
  int32_t rounded = static_cast<int32_t>(
      (static_cast<uint32_t>(magnitude) + static_cast<uint32_t>(kHalfUlp - 1) + odd) &
      ~((1u << kDropped) - 1u));
  const int32_t tiny = magnitude > kUnderflowBits ? kSmallestBits : 0;
  rounded = magnitude <= kSmallestBits - kHalfUlp ? tiny : rounded;
  rounded |= bits & kSign;
  return magnitude > kOverflowBits ? kNanBits : rounded;
}

SPYRE_INLINE float round_value(float value) {
  return __builtin_bit_cast(float, round_bits(__builtin_bit_cast(int32_t, value)));
}

SPYRE_INLINE uint16_t encode_bits(int32_t bits) {
  const int32_t rounded = round_bits(bits);
  const int32_t magnitude = rounded & 0x7FFFFFFF;
  // Zero comes out negative and NaN too large, so two bounds are all it takes.
  int32_t code = (magnitude >> kDropped) - kRebias;
  code = code < 0 ? 0 : code;
  code = code > kMerged ? kMerged : code;
  return static_cast<uint16_t>(code | ((rounded >> 16) & 0x8000));
}

SPYRE_INLINE float decode_code(uint16_t code) {
  const int32_t magnitude = code & 0x7FFF;
  const int32_t sign = static_cast<int32_t>(static_cast<uint32_t>(code & 0x8000) << 16);
  const int32_t bits = ((magnitude + kRebias) << kDropped) | sign;
  const int32_t finite = magnitude == 0 ? sign : bits;
  return __builtin_bit_cast(float, magnitude == kMerged ? kNanBits : finite);
}

SPYRE_SIMD void encode_span(const float* in, uint16_t* out, int64_t n) {
  SPYRE_IVDEP
  for (int64_t i = 0; i < n; ++i) {
    out[i] = encode_bits(__builtin_bit_cast(int32_t, in[i]));
  }
}

SPYRE_SIMD void decode_span(const uint16_t* in, float* out, int64_t n) {
  SPYRE_IVDEP
  for (int64_t i = 0; i < n; ++i) {
    out[i] = decode_code(in[i]);
  }
}

SPYRE_SIMD void round_span(const float* in, float* out, int64_t n) {
  SPYRE_IVDEP
  for (int64_t i = 0; i < n; ++i) {
    out[i] = round_value(in[i]);
  }
}

SPYRE_SIMD void accumulate_span(const float* partial, float* sum, int64_t n) {
  SPYRE_IVDEP
  for (int64_t i = 0; i < n; ++i) {
    sum[i] = round_value(sum[i] + round_value(partial[i]));
  }
}

void check_input(const at::Tensor& tensor, at::ScalarType dtype, const char* name) {
  TORCH_CHECK(
      tensor.device().is_cpu() && tensor.scalar_type() == dtype,
      name,
      ": expected a CPU tensor of dtype ",
      dtype,
      ", got ",
      tensor.scalar_type(),
      " on ",
      tensor.device());
}

} // namespace

float decode(uint16_t code) {
  return decode_code(code);
}

uint16_t encode(float value) {
  return encode_bits(__builtin_bit_cast(int32_t, value));
}

void encode(const float* in, uint16_t* out, int64_t n) {
  at::parallel_for(0, n, kGrain, [&](int64_t begin, int64_t end) {
    encode_span(in + begin, out + begin, end - begin);
  });
}

void decode(const uint16_t* in, float* out, int64_t n) {
  at::parallel_for(0, n, kGrain, [&](int64_t begin, int64_t end) {
    decode_span(in + begin, out + begin, end - begin);
  });
}

void round(const float* in, float* out, int64_t n) {
  at::parallel_for(0, n, kGrain, [&](int64_t begin, int64_t end) {
    round_span(in + begin, out + begin, end - begin);
  });
}

at::Tensor encode_tensor(const at::Tensor& values) {
  check_input(values, at::kFloat, "dl16_encode");
  const auto source = values.contiguous();
  auto out = at::empty(source.sizes(), source.options().dtype(at::kShort));
  encode(
      source.const_data_ptr<float>(),
      reinterpret_cast<uint16_t*>(out.mutable_data_ptr<int16_t>()),
      out.numel());
  return out;
}

at::Tensor decode_tensor(const at::Tensor& codes) {
  check_input(codes, at::kShort, "dl16_decode");
  const auto source = codes.contiguous();
  auto out = at::empty(source.sizes(), source.options().dtype(at::kFloat));
  decode(
      reinterpret_cast<const uint16_t*>(source.const_data_ptr<int16_t>()),
      out.mutable_data_ptr<float>(),
      out.numel());
  return out;
}

at::Tensor round_tensor(const at::Tensor& values) {
  check_input(values, at::kFloat, "dl16_round");
  if (values.is_non_overlapping_and_dense()) {
    auto out = at::empty_like(values);
    if (out.strides() == values.strides()) {
      round(values.const_data_ptr<float>(), out.mutable_data_ptr<float>(), out.numel());
      return out;
    }
  }
  const auto source = values.contiguous();
  auto out = at::empty(source.sizes(), source.options());
  round(source.const_data_ptr<float>(), out.mutable_data_ptr<float>(), out.numel());
  return out;
}

at::Tensor& round_tensor_(at::Tensor& values) {
  check_input(values, at::kFloat, "dl16_round_");
  if (values.is_non_overlapping_and_dense()) {
    auto* data = values.mutable_data_ptr<float>();
    round(data, data, values.numel());
  } else {
    values.copy_(round_tensor(values));
  }
  return values;
}

at::Tensor block_accumulate(const at::Tensor& partials) {
  check_input(partials, at::kFloat, "block_accumulate");
  TORCH_CHECK(
      partials.dim() >= 1 && partials.size(0) >= 1,
      "block_accumulate: expected partials of shape [nblk, ...] with nblk >= 1, got ",
      partials.sizes());
  const auto source = partials.contiguous();
  auto out = at::empty(source.sizes().slice(1), source.options());
  const int64_t blocks = source.size(0);
  const int64_t inner = out.numel();
  const float* in = source.const_data_ptr<float>();
  float* sum = out.mutable_data_ptr<float>();
  const int64_t tiles = (inner + kTile - 1) / kTile;
  const int64_t grain = std::max<int64_t>(1, kGrain / (kTile * blocks));
  at::parallel_for(0, tiles, grain, [&](int64_t begin, int64_t end) {
    for (int64_t tile = begin; tile < end; ++tile) {
      const int64_t first = tile * kTile;
      const int64_t n = std::min(kTile, inner - first);
      round_span(in + first, sum + first, n);
      for (int64_t block = 1; block < blocks; ++block) {
        accumulate_span(in + block * inner + first, sum + first, n);
      }
    }
  });
  return out;
}

} // namespace spyre::dl16
