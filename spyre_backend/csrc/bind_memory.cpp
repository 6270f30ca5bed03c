#include "bindings.h"

#include "devices.h"
#include "memory.h"
#include "pinned.h"
#include "streams.h"
#include "view.h"

#include <cstring>

namespace py = pybind11;

namespace spyre {
namespace {

c10::DeviceIndex index_of(int device) {
  return checked_index(device_at(static_cast<c10::DeviceIndex>(device)));
}

py::list chunks_as_list(const at::Tensor& tensor) {
  py::list out;
  const auto bytes = static_cast<int64_t>(tensor.storage().nbytes());
  for (const auto& chunk : chunks_of(tensor.storage().data(), bytes)) {
    out.append(py::make_tuple(chunk.region_id, chunk.offset, chunk.domain_id, chunk.bytes));
  }
  return out;
}

} // namespace

void bind_memory(py::module_& m) {
  m.def(
      "host_view",
      [](const at::Tensor& tensor, bool write) {
        if (tensor.device().type() == c10::DeviceType::PrivateUse1) {
          synchronise_device(tensor.device().index());
        }
        return host_view(tensor, write);
      },
      py::arg("tensor"),
      py::arg("write") = true);
  m.def("write_generation", [](const at::Tensor& tensor) {
    synchronise_device(tensor.device().index());
    return write_generation(tensor.storage().data());
  });
  m.def("mark_written", [](const at::Tensor& tensor) { mark_written(block_of(tensor)); });
  m.def("chunks", &chunks_as_list);
  m.def("open_memory", &open_memory);
  m.def("close_memory", &close_memory);
  m.def("memory_is_open", &memory_is_open);
  m.def("memory_limit", &memory_limit);
  m.def("memory_room", [](int device) { return largest_and_free(index_of(device)); });
  m.def("empty_cache", &empty_cache);
  m.def("set_dma_maps", &set_dma_maps, py::arg("most"));
}

} // namespace spyre
