// Simulated time: when each operation would run on the card.
//
// Times are given when work is queued, in the order of the calls, so they are
// the same in every run. An operation begins when its stream, the engine that it
// occupies and the host are ready.
#pragma once

#include "streams.h"

#include <array>
#include <string>
#include <vector>

namespace spyre {

struct Span {
  std::string name;
  c10::DeviceIndex device = 0;
  c10::StreamId stream = 0;
  Engine engine = Engine::kCompute;
  double start_us = 0;
  double end_us = 0;
};

// Places an operation; returns its end.
double schedule(c10::Stream stream, const Cost& cost);
// The stream waits for this moment.
void delay_until(c10::Stream stream, double time_us);
double ready_time(c10::Stream stream);
double device_time(c10::DeviceIndex device); // when all streams are ready
// The host has seen this moment: nothing queued later begins before it.
void host_reached(double time_us);
double host_time();

void record_spans(bool on);
std::vector<Span> take_spans();

// Linear costs of copies and fixed costs of dispatch, in microseconds; set by
// Python from the clock's constants (D3.6, D7.8, D7.10).
struct ClockCosts {
  double launch = 0;
  double copy = 0;
  double per_byte_link = 0; // the host side and the link
  double device_copy = 0;
  double per_byte_device = 0; // read and written in device memory
};

void set_clock_costs(const ClockCosts& costs);
ClockCosts clock_costs();
Cost host_copy_cost(Engine engine, int64_t bytes);
Cost device_copy_cost(int64_t bytes);
Cost peer_copy_cost(int64_t bytes); // through the host

} // namespace spyre
