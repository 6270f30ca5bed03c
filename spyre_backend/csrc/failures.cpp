#include "failures.h"

#include "interpreter.h"

#include <c10/util/Exception.h>
#include <torch/csrc/utils/pybind.h>

#include <atomic>
#include <iostream>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

namespace py = pybind11;

namespace spyre {
namespace {

struct Failure {
  c10::Stream stream;
  uint32_t site;
  std::exception_ptr error;
};

struct Failures {
  std::mutex mutex;
  std::vector<Failure> kept;
  std::atomic<size_t> count{0};
};

Failures& failures() {
  static auto* instance = new Failures();
  return *instance;
}

struct Site {
  PyCodeObject* code; // kept for ever
  int instruction;
};

struct Sites {
  std::vector<Site> sites{{nullptr, 0}};
  std::unordered_map<uint64_t, uint32_t> known;
  std::unordered_map<PyCodeObject*, bool> internal; // keeps its keys alive
};

// Guarded by the GIL.
Sites& sites() {
  static auto* instance = new Sites();
  return *instance;
}

// Code that no user wrote: PyTorch, this backend, and generated wrappers.
bool looks_internal(PyCodeObject* code) {
  const auto file = py::cast<std::string>(py::handle(code->co_filename));
  for (const char* part :
       {"/torch/", "/spyre_backend/", "torchinductor", "<eval_with_key>", "<string>"}) {
    if (file.find(part) != std::string::npos) {
      return true;
    }
  }
  return file.ends_with("contextlib.py") || file.ends_with("threading.py");
}

bool is_internal(PyCodeObject* code) {
  auto& known = sites().internal;
  const auto found = known.find(code);
  if (found != known.end()) {
    return found->second;
  }
  Py_INCREF(code);
  return known[code] = looks_internal(code);
}

uint32_t intern(PyCodeObject* code, int instruction) {
  auto& table = sites();
  const uint64_t key =
      (reinterpret_cast<uint64_t>(code) << 16) ^ static_cast<uint64_t>(instruction);
  const auto [entry, fresh] = table.known.try_emplace(key, 0);
  if (fresh) {
    Py_INCREF(code);
    entry->second = static_cast<uint32_t>(table.sites.size());
    table.sites.push_back({code, instruction});
  }
  return entry->second;
}

std::string describe(uint32_t site) {
  if (site == 0) {
    return "";
  }
  const Site& place = sites().sites.at(site);
  const int line = PyCode_Addr2Line(place.code, place.instruction);
  return py::cast<std::string>(py::handle(place.code->co_filename)) + ":" + std::to_string(line) +
      " in " + py::cast<std::string>(py::handle(place.code->co_qualname));
}

[[noreturn]] void rethrow(const Failure& failure) {
  py::gil_scoped_acquire gil;
  const std::string where = describe(failure.site);
  try {
    std::rethrow_exception(failure.error);
  } catch (py::error_already_set& error) {
    const auto value = error.value();
    py::module_::import("spyre_backend.device.failures").attr("launched_at")(value, where);
    throw_python(value);
  } catch (c10::Error& error) {
    if (!where.empty()) {
      error.add_context("launched at " + where);
    }
    throw;
  } catch (const std::exception& error) {
    TORCH_CHECK(false, error.what(), "\nlaunched at ", where);
  }
}

} // namespace

uint32_t calling_site() {
  if (!interpreter_is_usable()) {
    return 0;
  }
  py::gil_scoped_acquire gil;
  PyThreadState* thread = PyThreadState_Get();
  auto frame = py::reinterpret_steal<py::object>(
      reinterpret_cast<PyObject*>(PyThreadState_GetFrame(thread)));
  uint32_t innermost = 0;
  while (frame) {
    auto* raw = reinterpret_cast<PyFrameObject*>(frame.ptr());
    auto* code = PyFrame_GetCode(raw);
    const int instruction = PyFrame_GetLasti(raw);
    const bool internal = is_internal(code);
    Py_DECREF(code); // the frame keeps it
    if (!internal) {
      return intern(code, instruction);
    }
    if (innermost == 0) {
      innermost = intern(code, instruction);
    }
    frame = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetBack(raw)));
  }
  return innermost;
}

void keep_failure(c10::Stream stream, uint32_t site) {
  auto& all = failures();
  std::lock_guard<std::mutex> lock(all.mutex);
  all.kept.push_back({stream, site, std::current_exception()});
  all.count.store(all.kept.size());
}

bool has_failed(c10::Stream stream) {
  auto& all = failures();
  if (all.count.load() == 0) {
    return false;
  }
  std::lock_guard<std::mutex> lock(all.mutex);
  for (const auto& failure : all.kept) {
    if (failure.stream == stream) {
      return true;
    }
  }
  return false;
}

bool device_has_failed(c10::DeviceIndex device) {
  auto& all = failures();
  if (all.count.load() == 0) {
    return false;
  }
  std::lock_guard<std::mutex> lock(all.mutex);
  for (const auto& failure : all.kept) {
    if (failure.stream.device_index() == device) {
      return true;
    }
  }
  return false;
}

void raise_failure(c10::DeviceIndex device) {
  auto& all = failures();
  std::vector<Failure> mine;
  {
    std::lock_guard<std::mutex> lock(all.mutex);
    std::vector<Failure> others;
    for (auto& failure : all.kept) {
      (failure.stream.device_index() == device ? mine : others).push_back(std::move(failure));
    }
    all.kept = std::move(others);
    all.count.store(all.kept.size());
  }
  if (mine.empty()) {
    return;
  }
  py::gil_scoped_acquire gil; // Python exceptions are dropped under it
  const Failure first = mine.front();
  mine.clear();
  rethrow(first);
}

void report_failures() {
  auto& all = failures();
  std::vector<Failure> kept;
  {
    std::lock_guard<std::mutex> lock(all.mutex);
    kept.swap(all.kept);
    all.count.store(0);
  }
  py::gil_scoped_acquire gil;
  for (const auto& failure : kept) {
    try {
      std::rethrow_exception(failure.error);
    } catch (const std::exception& error) {
      std::cerr << "Spyre: an operation failed and nothing waited for it: " << error.what()
                << "\n  launched at " << describe(failure.site) << std::endl;
    }
  }
  kept.clear();
}

} // namespace spyre
