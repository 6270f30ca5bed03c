// The parts of spyre_backend._C.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace spyre {

void bind_memory(pybind11::module_& m);
void bind_streams(pybind11::module_& m);
void bind_launch(pybind11::module_& m);

} // namespace spyre
