// Python bindings: spyre_backend._C.
#include "bindings.h"
#include "devices.h"
#include "dl16.h"
#include "failures.h"
#include "fallback.h"
#include "generator.h"
#include "interpreter.h"
#include "launch.h"
#include "memory.h"
#include "state.h"
#include "streams.h"

#include <torch/csrc/Generator.h>
#include <torch/csrc/utils/pybind.h>


namespace py = pybind11;

namespace spyre {

void throw_unsupported_dtype(c10::ScalarType dtype) {
  py::gil_scoped_acquire gil;
  throw_python(py::module_::import("spyre_backend.errors").attr("UnsupportedDtype")(py::cast(dtype)));
}

void throw_mid_stick_copy(
    int64_t offset,
    int64_t elements_per_stick,
    c10::IntArrayRef sizes,
    c10::ScalarType dtype) {
  py::gil_scoped_acquire gil;
  const auto make = py::module_::import("spyre_backend.device.refusals").attr("mid_stick_copy");
  throw_python(make(offset, elements_per_stick, py::cast(sizes), py::cast(dtype)));
}

void warn_python(const char* category, const char* message) {
  py::gil_scoped_acquire gil;
  const auto type = py::module_::import("spyre_backend.errors").attr(category);
  if (PyErr_WarnEx(type.ptr(), message, 1) < 0) {
    throw py::error_already_set(); // warnings are errors in this process
  }
}

namespace {

dl16::Rounding rounding_named(const std::string& name) {
  if (name == "half-up") {
    return dl16::Rounding::kHalfUp;
  }
  if (name == "truncate") {
    return dl16::Rounding::kTruncate;
  }
  TORCH_CHECK_VALUE(name == "rne", "half_rounding must be rne, half-up or truncate, got ", name);
  return dl16::Rounding::kNearestEven;
}

void bind_copy_numerics(py::module_& m) {
  const dl16::CopyNumerics standard;
  m.def(
      "set_copy_numerics",
      [](const std::string& half_rounding,
         bool halve_subnormals,
         bool saturate_half,
         uint16_t half_infinity,
         bool saturate_bfloat16,
         bool truncate_bfloat16,
         bool merged_is_infinity) {
        // What is queued is converted as it was asked for.
        synchronise_all();
        dl16::set_copy_numerics(
            {rounding_named(half_rounding),
             halve_subnormals,
             saturate_half,
             half_infinity,
             saturate_bfloat16,
             truncate_bfloat16,
             merged_is_infinity});
      },
      py::kw_only(),
      py::arg("half_rounding") = "rne",
      py::arg("halve_subnormals") = standard.halve_subnormals,
      py::arg("saturate_half") = standard.saturate_half,
      py::arg("half_infinity") = standard.half_infinity,
      py::arg("saturate_bfloat16") = standard.saturate_bfloat16,
      py::arg("truncate_bfloat16") = standard.truncate_bfloat16,
      py::arg("merged_is_infinity") = standard.merged_is_infinity);
}

std::function<void()> python_callback(py::function function) {
  // Never freed: the process may end without an interpreter to free it in.
  auto* kept = new py::function(std::move(function));
  return [kept] {
    py::gil_scoped_acquire gil;
    (*kept)();
  };
}

void bind_numerics(py::module_& m) {
  using release = py::call_guard<py::gil_scoped_release>;
  m.def("dl16_encode", &dl16::encode_tensor, py::arg("values"), release());
  m.def("dl16_decode", &dl16::decode_tensor, py::arg("codes"), release());
  m.def("dl16_round", &dl16::round_tensor, py::arg("values"), release());
  m.def("dl16_round_", &dl16::round_tensor_, py::arg("values"), release());
  m.def("block_accumulate", &dl16::block_accumulate, py::arg("partials"), release());
}

void bind_counters(py::module_& m) {
  m.def("fallback_counts", &fallback_counts);
  m.def("count_fallback", [](const std::string& op, const std::string& category) {
    count_fallback(op, category.c_str());
  });
  m.def("reset_fallback_counts", &reset_fallback_counts);
  m.def("values_read", &values_read);
  m.def("record_launch", &count_launch);
  m.def("launch_count", &launch_count);
  m.def("reset_launch_count", &reset_launch_count);
}

void bind_state(py::module_& m) {
  m.def("initialise", [] {
    check_not_forked();
    initialise();
  });
  m.def("is_initialised", &is_initialised);
  m.def("in_bad_fork", &in_bad_fork);
  m.def("set_initialise_callback", [](py::function function) {
    set_initialise_callback(python_callback(std::move(function)));
  });
  m.def("default_generator", [](int device) {
    return default_generator(checked_index(device_at(static_cast<c10::DeviceIndex>(device))));
  });
  m.def("set_pressure_callback", [](py::function function) {
    set_pressure_callback(python_callback(std::move(function)));
  });
  m.def("shut_down", [] {
    shut_down();
    if (!in_bad_fork()) {
      report_failures();
    }
    interpreter_ends();
  });
}

} // namespace
} // namespace spyre

PYBIND11_MODULE(_C, m) {
  m.doc() = "Native part of the emulated Spyre device.";
  spyre::bind_numerics(m);
  spyre::bind_copy_numerics(m);
  spyre::bind_counters(m);
  spyre::bind_state(m);
  spyre::bind_memory(m);
  spyre::bind_streams(m);
  spyre::bind_launch(m);
}
