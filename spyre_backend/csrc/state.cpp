#include "state.h"

#include <c10/util/Exception.h>

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>

namespace spyre {
namespace {

std::atomic<bool> initialised{false};
std::atomic<bool> bad_fork{false};
std::function<void()> initialise_callback;

void after_fork_in_child() {
  if (initialised.load()) {
    bad_fork.store(true);
  }
}

bool downcast_warning_enabled() {
  const char* value = std::getenv("TORCH_SPYRE_DOWNCAST_WARN");
  return value == nullptr || std::strcmp(value, "0") != 0;
}

void warn_int64_once() {
  static std::atomic<bool> warned{false};
  if (downcast_warning_enabled() && !warned.exchange(true)) {
    warn_python(
        "DowncastWarning",
        "Backend Spyre does not support int64; downcasting to int32. Values outside "
        "the int32 range wrap around. Set TORCH_SPYRE_DOWNCAST_WARN=0 to silence this.");
  }
}

} // namespace

bool in_bad_fork() {
  return bad_fork.load();
}

void check_not_forked() {
  TORCH_CHECK(
      !bad_fork.load(),
      "Cannot re-initialize Spyre in a forked subprocess: the parent process had used "
      "the device before it forked, and device memory is not shared with the child. "
      "Use the 'spawn' start method of multiprocessing.");
}

void initialise() {
  if (initialised.load(std::memory_order_acquire)) {
    return;
  }
  static std::once_flag registered;
  std::call_once(registered, [] {
    ::pthread_atfork(nullptr, nullptr, &after_fork_in_child);
  });
  if (!initialised.exchange(true) && initialise_callback) {
    initialise_callback();
  }
}

bool is_initialised() {
  return initialised.load() && !bad_fork.load();
}

void set_initialise_callback(std::function<void()> callback) {
  initialise_callback = std::move(callback);
}

c10::ArrayRef<c10::ScalarType> supported_dtypes() {
  static constexpr c10::ScalarType dtypes[] = {
      c10::ScalarType::Half,
      c10::ScalarType::BFloat16,
      c10::ScalarType::Float,
      c10::ScalarType::Int,
      c10::ScalarType::Char,
      c10::ScalarType::Bool,
      c10::ScalarType::Float8_e4m3fn,
      c10::ScalarType::Long,
  };
  return dtypes;
}

void check_dtype(c10::ScalarType dtype) {
  const auto known = supported_dtypes();
  if (std::find(known.begin(), known.end(), dtype) == known.end()) {
    throw_unsupported_dtype(dtype);
  }
  if (dtype == c10::ScalarType::Long) {
    warn_int64_once();
  }
}

} // namespace spyre
