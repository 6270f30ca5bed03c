// Simulated time: when each operation would run on the card.
//
// An operation begins when its stream, the engine that it occupies and the host
// are ready. An idle engine takes what is queued first; one that was busy takes
// the highest priority among what is ready, in the order of the calls, and never
// interrupts what it has begun. What priorities do on the card is not published
// (D8.6): this is how the worker threads share the cores, too. Places are found
// when somebody asks for a time, so that what was queued later can go ahead, and
// depend on the calls alone: times are the same in every run.
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

// A moment in simulated time, known once everything before it has its place.
struct Moment {
  double us = 0;
  bool known = false;
};

// Queues an operation.
void schedule(c10::Stream stream, const Cost& cost);
// The moment at which everything queued on the stream so far has ended.
MomentPtr mark_moment(c10::Stream stream);
// The stream waits for this moment.
void delay_until(c10::Stream stream, MomentPtr moment);
// These give everything its place that may begin before the time they return.
double time_of(const Moment& moment);
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
