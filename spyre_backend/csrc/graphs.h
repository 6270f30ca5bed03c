// The graph path: copies and launches that build, compile, load and parse a
// small graph each time, as the first releases did (D3.5).
#pragma once

#include "streams.h"

#include <cstdint>
#include <string>
#include <vector>

namespace spyre {

// Nodes in the order in which they run; `depth` says what they are nested in.
struct GraphNode {
  enum class Kind : uint8_t { kSuper, kHostPrepare, kFusedDevice, kDma, kPatch, kCompute };
  Kind kind;
  int depth;
  int64_t bytes;
  std::string label;

  bool operator==(const GraphNode&) const = default;
};

using Graph = std::vector<GraphNode>;

// Host preparation (dtype and sticks), then a DMA inside a fused device node.
Graph copy_graph(Engine direction, int64_t host_bytes, int64_t device_bytes);
// Patching of the addresses, then the program inside a fused device node.
Graph launch_graph(const std::string& program, int64_t blob_bytes);

// The form that is handed to the device, and back; throws on text that is none.
std::string compile_graph(const Graph& graph);
Graph load_graph(const std::string& text);

void set_graph_dispatch(bool copies, bool launches);
// Takes the whole way, from nodes to nodes, when the path is switched on.
void dispatch_copy(Engine direction, int64_t host_bytes, int64_t device_bytes);
void dispatch_launch(const std::string& program, int64_t blob_bytes);
int64_t loaded_graphs();

} // namespace spyre
