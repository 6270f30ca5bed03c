#include "bindings.h"

#include "launch.h"

namespace py = pybind11;

namespace spyre {
namespace {

int64_t shortest_row(const ArgumentSpec& spec) {
  int64_t row = 0;
  for (size_t i = 0; i < spec.sizes.size(); ++i) {
    if (spec.strides[i] > 1 && spec.sizes[i] > 1 && (row == 0 || spec.strides[i] < row)) {
      row = spec.strides[i];
    }
  }
  return row;
}

} // namespace

void bind_launch(py::module_& m) {
  py::class_<ArgumentSpec>(m, "ArgumentSpec")
      .def(
          py::init([](std::vector<int64_t> sizes,
                      std::vector<int64_t> strides,
                      at::ScalarType dtype,
                      bool writes,
                      int64_t elements,
                      int64_t per_stick) {
            ArgumentSpec spec{std::move(sizes), std::move(strides), dtype, writes, elements, per_stick, 0};
            spec.row = shortest_row(spec);
            return spec;
          }),
          py::kw_only(),
          py::arg("sizes"),
          py::arg("strides"),
          py::arg("dtype"),
          py::arg("writes"),
          py::arg("elements"),
          py::arg("per_stick"));
  py::class_<Launcher, std::shared_ptr<Launcher>>(m, "Launcher")
      .def(
          py::init<std::string, std::vector<ArgumentSpec>, py::object, bool>(),
          py::arg("name"),
          py::arg("specs"),
          py::arg("execute"),
          py::kw_only(),
          py::arg("honours_offset") = true)
      .def("launch", [](Launcher& self, const py::args& args) { return self.launch(args); })
      .def("set_microseconds", &Launcher::set_microseconds)
      .def("num_blobs", &Launcher::num_blobs);
  m.def("skip_compute", &skip_compute, py::arg("skip"));
}

} // namespace spyre
