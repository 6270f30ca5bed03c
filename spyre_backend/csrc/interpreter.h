// The Python interpreter, from threads that may or may not hold its lock.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <optional>

namespace spyre {

// False once the interpreter is about to end: its lock must not be asked for.
bool interpreter_is_usable();
void interpreter_ends();
// Gives this thread a lasting place in the interpreter, so that each time it
// takes the lock is cheap.
void keep_thread_state();
// Runs Python's signal handlers (of the main thread); throws what they raise.
void check_signals();
[[noreturn]] void throw_python(const pybind11::object& error);

// Gives the interpreter's lock away while a thread waits, if it holds it.
class GilReleased {
 public:
  GilReleased() {
    if (PyGILState_Check()) {
      release_.emplace();
    }
  }

 private:
  std::optional<pybind11::gil_scoped_release> release_;
};

} // namespace spyre
