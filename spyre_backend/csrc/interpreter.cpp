#include "interpreter.h"

#include <atomic>

namespace spyre {
namespace {

std::atomic<bool> ending{false};

} // namespace

bool interpreter_is_usable() {
  return !ending.load() && Py_IsInitialized();
}

void interpreter_ends() {
  ending.store(true);
}

void keep_thread_state() {
  thread_local bool kept = false;
  if (!kept) {
    PyGILState_Ensure();
    PyEval_SaveThread();
    kept = true;
  }
}

void check_signals() {
  if (!interpreter_is_usable()) {
    return;
  }
  pybind11::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) {
    throw pybind11::error_already_set();
  }
}

void throw_python(const pybind11::object& error) {
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  throw pybind11::error_already_set();
}

} // namespace spyre
