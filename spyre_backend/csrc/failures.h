// Errors of work that runs after its call has returned, and where it was called.
#pragma once

#include "devices.h"

#include <c10/core/Stream.h>

#include <cstdint>
#include <exception>

namespace spyre {

// The line of Python that is being run, outside of torch and of this backend;
// a small number that stays valid for ever. 0 when there is none.
uint32_t calling_site();

// Keeps the exception that is being handled for the device's next synchronisation.
void keep_failure(c10::Stream stream, uint32_t site);
// Whether work of this stream failed and nobody has been told yet.
bool has_failed(c10::Stream stream);
// Streams of the device that failed; empty when there is nothing to raise.
bool device_has_failed(c10::DeviceIndex device);
// Throws the oldest failure of the device, with the launching line, and forgets
// all of them. The streams must be idle.
void raise_failure(c10::DeviceIndex device);
// Prints failures that nobody was told about; at the end of the process.
void report_failures();

} // namespace spyre
