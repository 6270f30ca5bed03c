// Operators without a device kernel run on the CPU, warn once and are counted.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

namespace spyre {

constexpr const char* kLookup = "lookup";
constexpr const char* kInteger = "integer";
constexpr const char* kCompute = "compute";

inline bool is_integer(c10::ScalarType dtype) {
  return c10::isIntegralType(dtype, /*includeBool=*/true);
}

void count_fallback(const std::string& op, const char* category);
std::vector<std::tuple<std::string, std::string, int64_t>> fallback_counts();
void reset_fallback_counts();

// Elements of floating-point tensors that callers copied to the host themselves; those that a fallback fetched are not
// counted.
void count_read(const at::Tensor& from, const at::Tensor& to);
int64_t values_read();

} // namespace spyre
