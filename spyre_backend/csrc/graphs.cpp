#include "graphs.h"

#include <c10/util/Exception.h>

#include <atomic>
#include <sstream>

namespace spyre {
namespace {

std::atomic<bool> graph_copies{false};
std::atomic<bool> graph_launches{false};
std::atomic<int64_t> loaded{0};

constexpr int kKinds = static_cast<int>(GraphNode::Kind::kCompute) + 1;

void take_graph_path(const Graph& graph) {
  const auto parsed = load_graph(compile_graph(graph));
  TORCH_INTERNAL_ASSERT(parsed == graph, "a dispatch graph changed while it was loaded");
  loaded.fetch_add(1);
}

} // namespace

Graph copy_graph(Engine direction, int64_t host_bytes, int64_t device_bytes) {
  using Kind = GraphNode::Kind;
  const GraphNode prepare{Kind::kHostPrepare, 1, host_bytes, "stickify"};
  const GraphNode device{Kind::kFusedDevice, 1, device_bytes, "device"};
  const GraphNode dma{Kind::kDma, 2, device_bytes, direction == Engine::kToHost ? "out" : "in"};
  Graph graph{{Kind::kSuper, 0, device_bytes, "copy"}};
  if (direction == Engine::kToHost) {
    graph.insert(graph.end(), {device, dma, prepare});
  } else {
    graph.insert(graph.end(), {prepare, device, dma});
  }
  return graph;
}

Graph launch_graph(const std::string& program, int64_t blob_bytes) {
  using Kind = GraphNode::Kind;
  return {
      {Kind::kSuper, 0, 0, program},
      {Kind::kPatch, 1, blob_bytes, "addresses"},
      {Kind::kFusedDevice, 1, 0, "device"},
      {Kind::kCompute, 2, 0, program},
  };
}

std::string compile_graph(const Graph& graph) {
  std::ostringstream text;
  for (const auto& node : graph) {
    text << static_cast<int>(node.kind) << ' ' << node.depth << ' ' << node.bytes << ' '
         << node.label << '\n';
  }
  return text.str();
}

Graph load_graph(const std::string& text) {
  Graph graph;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream fields(line);
    int kind = -1;
    GraphNode node{GraphNode::Kind::kSuper, 0, 0, ""};
    fields >> kind >> node.depth >> node.bytes;
    TORCH_CHECK(
        fields && kind >= 0 && kind < kKinds && fields.get() == ' ',
        "Spyre runtime: not a dispatch graph: '",
        line,
        "'");
    node.kind = static_cast<GraphNode::Kind>(kind);
    std::getline(fields, node.label);
    const int deepest = graph.empty() ? 0 : graph.back().depth + 1;
    TORCH_CHECK(
        node.depth <= deepest && (node.depth > 0) == !graph.empty(),
        "Spyre runtime: node '",
        line,
        "' of a dispatch graph is nested in nothing");
    graph.push_back(std::move(node));
  }
  return graph;
}

void set_graph_dispatch(bool copies, bool launches) {
  graph_copies.store(copies);
  graph_launches.store(launches);
}

void dispatch_copy(Engine direction, int64_t host_bytes, int64_t device_bytes) {
  if (graph_copies.load(std::memory_order_relaxed)) {
    take_graph_path(copy_graph(direction, host_bytes, device_bytes));
  }
}

void dispatch_launch(const std::string& program, int64_t blob_bytes) {
  if (graph_launches.load(std::memory_order_relaxed)) {
    take_graph_path(launch_graph(program, blob_bytes));
  }
}

int64_t loaded_graphs() {
  return loaded.load();
}

} // namespace spyre
