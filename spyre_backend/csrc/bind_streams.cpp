#include "bindings.h"

#include "devices.h"
#include "graphs.h"
#include "streams.h"
#include "timeline.h"

namespace py = pybind11;

namespace spyre {
namespace {

const char* engine_name(Engine engine) {
  switch (engine) {
    case Engine::kToDevice:
      return "to device";
    case Engine::kToHost:
      return "to host";
    case Engine::kPeer:
      return "peer";
    default:
      return "compute";
  }
}

py::list spans_as_list() {
  py::list out;
  for (const auto& span : take_spans()) {
    out.append(py::make_tuple(
        span.name,
        int(span.device),
        span.stream,
        engine_name(span.engine),
        span.start_us,
        span.end_us));
  }
  return out;
}

} // namespace

void bind_streams(py::module_& m) {
  m.def("device_count", [] { return int(device_count()); });
  m.def("current_device", [] { return int(current_device()); });
  m.def("set_current_device", [](int device) {
    set_current_device(static_cast<c10::DeviceIndex>(device));
  });
  m.def("set_launch_blocking", &set_launch_blocking, py::arg("blocking"));
  m.def("set_graph_dispatch", &set_graph_dispatch, py::kw_only(), py::arg("copies"), py::arg("launches"));
  m.def("loaded_graphs", &loaded_graphs);
  m.def("num_host_streams", &num_host_streams);
  m.def("stream_priority", &stream_priority);
  m.def("synchronise", [](int device) {
    synchronise_device(checked_index(device_at(static_cast<c10::DeviceIndex>(device))));
  });
  m.def("cores_waiting", [](int device) {
    return cores_waiting(checked_index(device_at(static_cast<c10::DeviceIndex>(device))));
  });
  m.def("device_time", [](int device) {
    return device_time(checked_index(device_at(static_cast<c10::DeviceIndex>(device))));
  });
  m.def("record_spans", &record_spans, py::arg("on"));
  m.def("take_spans", &spans_as_list);
  m.def(
      "set_clock_costs",
      [](double launch, double copy, double link, double device_copy, double per_byte_device) {
        set_clock_costs({launch, copy, link, device_copy, per_byte_device});
      },
      py::kw_only(),
      py::arg("launch"),
      py::arg("copy"),
      py::arg("per_byte_link"),
      py::arg("device_copy"),
      py::arg("per_byte_device"));
}

} // namespace spyre
