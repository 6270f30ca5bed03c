// What torch.Event holds on this device.
#pragma once

#include "streams.h"

namespace spyre {

// Recording again moves the event; who waits already keeps waiting for the
// earlier mark (as torch.cuda has it).
struct Event {
  MarkPtr mark;
};

void record_event(void** event, c10::Stream stream);
// Milliseconds of simulated time between two events.
double elapsed_time(const Event* first, const Event* second);

} // namespace spyre
