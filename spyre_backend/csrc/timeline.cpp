#include "timeline.h"

#include <algorithm>
#include <deque>
#include <map>
#include <mutex>
#include <tuple>

namespace spyre {
namespace {

using StreamKey = std::pair<c10::DeviceIndex, c10::StreamId>;

// Work of a stream, a mark in it, or its wait for one, that has no place yet.
struct Item {
  enum class Kind : uint8_t { kWork, kMark, kWait };
  Kind kind = Kind::kWork;
  Engine engine = Engine::kCompute;
  uint64_t order = 0; // of the calls
  double arrival = 0; // the host's time when it was queued
  double microseconds = 0;
  MomentPtr moment; // of marks and waits
  std::string name; // for traces
};

struct Lane {
  double ready = 0; // end of what has its place
  std::deque<Item> items;
};

// A process that never waits would keep everything that it ever queued.
constexpr size_t kMaxPending = size_t{1} << 16;

struct Timeline {
  std::mutex mutex;
  double host = 0;
  uint64_t calls = 0;
  size_t pending = 0;
  std::map<StreamKey, Lane> lanes;
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

double& engine_of(Timeline& line, c10::DeviceIndex device, Engine engine) {
  return line.engines[static_cast<size_t>(device)][static_cast<size_t>(engine)];
}

// Marks and waits at the heads of lanes, as far as they are determined.
void pass_marks(Timeline& line) {
  for (bool moved = true; moved;) {
    moved = false;
    for (auto& [key, lane] : line.lanes) {
      while (!lane.items.empty() && lane.items.front().kind != Item::Kind::kWork) {
        Item& item = lane.items.front();
        const bool waits = item.kind == Item::Kind::kWait;
        if (waits && !item.moment->known) {
          break;
        }
        lane.ready = std::max(lane.ready, waits ? item.moment->us : item.arrival);
        if (!waits) {
          *item.moment = {lane.ready, true};
        }
        lane.items.pop_front();
        line.pending -= 1;
        moved = true;
      }
    }
  }
}

// When an item could begin, and what decides between items that could begin at
// the same time: an engine that is idle has begun before the next call comes.
auto turn_of(Timeline& line, const StreamKey& key, const Lane& lane) {
  const Item& item = lane.items.front();
  const double start =
      std::max({item.arrival, lane.ready, engine_of(line, key.first, item.engine)});
  const bool waited = start > item.arrival;
  return std::tuple(start, waited ? 0 : 1, waited ? stream_priority(key.second) : 0, item.order);
}

// Gives the next operation its place; false when none is left.
bool place_next(Timeline& line) {
  using Turn = std::tuple<double, int, int, uint64_t>;
  std::pair<const StreamKey, Lane>* next = nullptr;
  Turn first;
  for (auto& entry : line.lanes) {
    if (!entry.second.items.empty() && entry.second.items.front().kind == Item::Kind::kWork) {
      const Turn turn = turn_of(line, entry.first, entry.second);
      if (next == nullptr || turn < first) {
        next = &entry;
        first = turn;
      }
    }
  }
  if (next == nullptr) {
    return false;
  }
  auto& [key, lane] = *next;
  Item& item = lane.items.front();
  const double start = std::get<0>(first);
  lane.ready = engine_of(line, key.first, item.engine) = start + item.microseconds;
  if (line.recording) {
    line.spans.push_back(
        {std::move(item.name), key.first, key.second, item.engine, start, lane.ready});
  }
  lane.items.pop_front();
  line.pending -= 1;
  return true;
}

template <typename Done>
void place_until(Timeline& line, const Done& done) {
  pass_marks(line);
  while (!done() && place_next(line)) {
    pass_marks(line);
  }
}

void place_all(Timeline& line) {
  place_until(line, [] { return false; });
}

void add(Timeline& line, c10::Stream stream, Item item) {
  item.order = line.calls++;
  item.arrival = line.host;
  line.lanes[key_of(stream)].items.push_back(std::move(item));
  line.pending += 1;
  if (line.pending > kMaxPending) {
    place_all(line);
  }
}

} // namespace

void schedule(c10::Stream stream, const Cost& cost) {
  auto& line = timeline();
  std::lock_guard<std::mutex> lock(line.mutex);
  Item item;
  item.engine = cost.engine;
  item.microseconds = cost.microseconds;
  if (line.recording) {
    item.name = cost.name;
  }
  add(line, stream, std::move(item));
}

MomentPtr mark_moment(c10::Stream stream) {
  auto& line = timeline();
  std::lock_guard<std::mutex> lock(line.mutex);
  Item item;
  item.kind = Item::Kind::kMark;
  item.moment = std::make_shared<Moment>();
  auto moment = item.moment;
  add(line, stream, std::move(item));
  return moment;
}

void delay_until(c10::Stream stream, MomentPtr moment) {
  auto& line = timeline();
  std::lock_guard<std::mutex> lock(line.mutex);
  Item item;
  item.kind = Item::Kind::kWait;
  item.moment = std::move(moment);
  add(line, stream, std::move(item));
}

double time_of(const Moment& moment) {
  auto& line = timeline();
  std::lock_guard<std::mutex> lock(line.mutex);
  place_until(line, [&] { return moment.known; });
  return moment.us;
}

double ready_time(c10::Stream stream) {
  auto& line = timeline();
  std::lock_guard<std::mutex> lock(line.mutex);
  Lane& lane = line.lanes[key_of(stream)];
  place_until(line, [&] { return lane.items.empty(); });
  return std::max(lane.ready, line.host);
}

double device_time(c10::DeviceIndex device) {
  auto& line = timeline();
  std::lock_guard<std::mutex> lock(line.mutex);
  place_until(line, [&] {
    return std::all_of(line.lanes.begin(), line.lanes.end(), [&](const auto& entry) {
      return entry.first.first != device || entry.second.items.empty();
    });
  });
  double latest = line.host;
  for (const auto& [key, lane] : line.lanes) {
    latest = key.first == device ? std::max(latest, lane.ready) : latest;
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
  place_all(line); // the trace begins, or ends, here
  line.recording = on;
}

std::vector<Span> take_spans() {
  auto& line = timeline();
  std::lock_guard<std::mutex> lock(line.mutex);
  place_all(line);
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
