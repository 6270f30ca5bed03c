#include "fallback.h"

#include "generator.h"
#include "memory.h"
#include "state.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/native/CPUFallback.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <set>

namespace spyre {
namespace {

std::mutex mutex;
std::map<std::pair<std::string, std::string>, int64_t> counts;
std::set<std::string> warned;
std::atomic<int64_t> reads = 0;
thread_local int own_copies = 0;

// While a fallback fetches its operands.
struct OwnCopies {
  OwnCopies() {
    ++own_copies;
  }
  ~OwnCopies() {
    --own_copies;
  }
  OwnCopies(const OwnCopies&) = delete;
  OwnCopies& operator=(const OwnCopies&) = delete;
};

// "aten::add" with overload "Tensor" -> "aten.add.Tensor", as torch.ops prints it.
std::string operator_name(const c10::OperatorHandle& op) {
  std::string name = op.schema().name();
  const auto colons = name.find("::");
  if (colons != std::string::npos) {
    name.replace(colons, 2, ".");
  }
  const auto& overload = op.schema().overload_name();
  return name + "." + (overload.empty() ? "default" : overload);
}

struct Seen {
  bool any = false;
  bool all_integer = true;
  std::optional<c10::Device> device;
  std::optional<c10::Device> other; // of a tensor that is no scalar

  void add(const c10::IValue& value) {
    if (value.isTensor()) {
      const auto& tensor = value.toTensor();
      if (tensor.defined()) {
        any = true;
        if (!device && tensor.device().type() == c10::DeviceType::PrivateUse1) {
          device = tensor.device();
        } else if (tensor.device() != device && tensor.dim() > 0) {
          other = tensor.device();
        }
        all_integer = all_integer && is_integer(tensor.scalar_type());
      }
    } else if (value.isTensorList() || value.isOptionalTensorList()) {
      for (const auto& item : value.toListRef()) {
        add(item);
      }
    }
  }
};

// Indices may stay on the host, on other devices too, and copies are between devices.
bool may_mix_devices(const std::string& name) {
  return name.starts_with("aten::index") || name.starts_with("aten::_index_put") ||
      name.starts_with("aten::_unsafe_index") || name.starts_with("aten::_copy_from");
}

void check_devices(const c10::OperatorHandle& op, const Seen& seen) {
  const auto& name = op.schema().name();
  TORCH_CHECK(
      !seen.device || !seen.other || *seen.device == *seen.other || may_mix_devices(name),
      "Expected all tensors to be on the same device, but ",
      operator_name(op),
      " got tensors on ",
      *seen.other,
      " and ",
      *seen.device,
      "; move them with .to()");
}

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  check_not_forked();
  initialise();
  const auto& schema = op.schema();
  const size_t arguments = schema.arguments().size();
  Seen seen;
  for (size_t i = 0; i < arguments; ++i) {
    seen.add(torch::jit::peek(*stack, i, arguments));
  }
  check_devices(op, seen);
  const c10::OptionalDeviceGuard guard(seen.device); // each device has its own generator
  bool takes_generator = false;
  for (size_t i = 0; i < arguments; ++i) {
    auto& value = torch::jit::peek(*stack, i, arguments);
    if (schema.arguments()[i].name() == "generator") {
      takes_generator = true;
      value = host_generator(value.toOptional<at::Generator>());
    }
  }
  {
    std::optional<DefaultGeneratorSwap> swap;
    if (!takes_generator && op.hasTag(at::Tag::nondeterministic_seeded)) {
      swap.emplace();
    }
    const OwnCopies own;
    at::native::cpu_fallback(op, stack);
  }
  const size_t returns = schema.returns().size();
  for (size_t i = 0; i < returns; ++i) {
    seen.add(torch::jit::peek(*stack, i, returns));
  }
  count_fallback(operator_name(op), seen.any && seen.all_integer ? kInteger : kCompute);
}

} // namespace

void count_fallback(const std::string& op, const char* category) {
  bool first = false;
  {
    std::lock_guard<std::mutex> lock(mutex);
    counts[{op, category}] += 1;
    first = warned.insert(op).second;
  }
  if (first) {
    warn_python("FallbackWarning", (op + " is falling back to cpu").c_str());
  }
}

std::vector<std::tuple<std::string, std::string, int64_t>> fallback_counts() {
  std::lock_guard<std::mutex> lock(mutex);
  std::vector<std::tuple<std::string, std::string, int64_t>> rows;
  rows.reserve(counts.size());
  for (const auto& [key, count] : counts) {
    rows.emplace_back(key.first, key.second, count);
  }
  return rows;
}

void reset_fallback_counts() {
  std::lock_guard<std::mutex> lock(mutex);
  counts.clear();
}

void count_read(const at::Tensor& from, const at::Tensor& to) {
  if (own_copies == 0 && from.device().type() == c10::DeviceType::PrivateUse1 && to.device().is_cpu() &&
      !is_integer(from.scalar_type())) {
    reads += from.numel();
  }
}

int64_t values_read() {
  return reads;
}

} // namespace spyre

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&spyre::fallback>());
}
