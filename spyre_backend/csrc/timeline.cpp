#include "timeline.h"

#include <algorithm>
#include <map>
#include <mutex>

namespace spyre {
namespace {

using StreamKey = std::pair<c10::DeviceIndex, c10::StreamId>;

struct Timeline {
  std::mutex mutex;
  double host = 0;
  std::map<StreamKey, double> streams;
  std::array<std::array<double, static_cast<size_t>(Engine::kCount)>, kMaxDevices> engines{};
  ClockCosts costs;
  bool recording = false;
  std::vector<Span> spans;
};

Timeline& timeline() {
  static auto* instance = new Timeline();
  return *instance;
}

StreamKey key_of(c10::Stream stream) {
  return {stream.device_index(), stream.id()};
}

} // namespace

double schedule(c10::Stream stream, const Cost& cost) {
  auto& line = timeline();
  std::lock_guard<std::mutex> lock(line.mutex);
  double& ready = line.streams[key_of(stream)];
  double& engine = line.engines[static_cast<size_t>(stream.device_index())]
                               [static_cast<size_t>(cost.engine)];
  const double start = std::max({line.host, ready, engine});
  ready = engine = start + cost.microseconds;
  if (line.recording) {
    line.spans.push_back(
        {cost.name, stream.device_index(), stream.id(), cost.engine, start, ready});
  }
  return ready;
}

void delay_until(c10::Stream stream, double time_us) {
  auto& line = timeline();
  std::lock_guard<std::mutex> lock(line.mutex);
  double& ready = line.streams[key_of(stream)];
  ready = std::max(ready, time_us);
}

double ready_time(c10::Stream stream) {
  auto& line = timeline();
  std::lock_guard<std::mutex> lock(line.mutex);
  return std::max(line.streams[key_of(stream)], line.host);
}

double device_time(c10::DeviceIndex device) {
  auto& line = timeline();
  std::lock_guard<std::mutex> lock(line.mutex);
  double latest = line.host;
  for (const auto& [key, ready] : line.streams) {
    latest = key.first == device ? std::max(latest, ready) : latest;
  }
  return latest;
}

void host_reached(double time_us) {
  auto& line = timeline();
  std::lock_guard<std::mutex> lock(line.mutex);
  line.host = std::max(line.host, time_us);
}

double host_time() {
  auto& line = timeline();
  std::lock_guard<std::mutex> lock(line.mutex);
  return line.host;
}

void record_spans(bool on) {
  auto& line = timeline();
  std::lock_guard<std::mutex> lock(line.mutex);
  line.recording = on;
}

std::vector<Span> take_spans() {
  auto& line = timeline();
  std::lock_guard<std::mutex> lock(line.mutex);
  return std::exchange(line.spans, {});
}

void set_clock_costs(const ClockCosts& costs) {
  auto& line = timeline();
  std::lock_guard<std::mutex> lock(line.mutex);
  line.costs = costs;
}

ClockCosts clock_costs() {
  auto& line = timeline();
  std::lock_guard<std::mutex> lock(line.mutex);
  return line.costs;
}

Cost host_copy_cost(Engine engine, int64_t bytes) {
  const auto costs = clock_costs();
  const char* name = engine == Engine::kToDevice ? "copy to device" : "copy to host";
  return {engine, costs.copy + costs.per_byte_link * static_cast<double>(bytes), name};
}

Cost device_copy_cost(int64_t bytes) {
  const auto costs = clock_costs();
  const double us = costs.device_copy + costs.per_byte_device * static_cast<double>(bytes);
  return {Engine::kCompute, us, "copy on device"};
}

Cost peer_copy_cost(int64_t bytes) {
  const auto there = host_copy_cost(Engine::kToHost, bytes);
  const auto back = host_copy_cost(Engine::kToDevice, bytes);
  return {Engine::kPeer, there.microseconds + back.microseconds, "copy to peer"};
}

} // namespace spyre
