// Emulated device memory: regions mapped twice, once without any access
// rights (the addresses that tensors carry) and once readable and writable
// (the addresses that only the runtime uses).
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/ScalarType.h>
#include <c10/core/Storage.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>

namespace spyre {

// How the bytes of an allocation relate to the bytes that a host would hold.
enum class Format : uint8_t {
  kRaw,      // host bytes whose element type is not known yet
  kPlain,    // host bytes
  kHalf,     // DL16 codes of a float16 tensor
  kBFloat16, // DL16 codes of a bfloat16 tensor
  kInt64,    // int64 holding values wrapped to int32
};

Format format_of(c10::ScalarType dtype);

struct MemoryStats {
  int64_t allocated = 0;       // bytes of live tensors, in whole sticks
  int64_t allocated_peak = 0;
  int64_t active = 0;          // live allocations
  int64_t active_peak = 0;
  int64_t allocations = 0;     // allocations made since the start
  int64_t frees = 0;
  int64_t reserved = 0;        // bytes of mapped regions
  int64_t limit = 0;           // capacity of the emulated card
};

c10::Allocator* device_allocator();

// Host alias of a device address; throws when `device_ptr` is not one of ours.
void* host_pointer(const void* device_ptr);
bool is_device_pointer(const void* ptr);

Format allocation_format(const void* device_ptr);
void set_allocation_format(const void* device_ptr, Format format);
// A number that changes with every write to the allocation, and differs between
// allocations, so that what was read from it can be kept. 0 when there is none.
int64_t write_generation(const void* device_ptr);
void mark_written(const void* device_ptr);
// Records what the device would reserve for a tensor of this shape (D2.2:
// whole 128-byte sticks), instead of the dense size.
void set_accounted_bytes(const void* device_ptr, int64_t bytes);
int64_t elements_per_stick(c10::ScalarType dtype);
int64_t stick_bytes(c10::IntArrayRef sizes, c10::ScalarType dtype);

MemoryStats memory_stats();
void reset_peak_memory_stats();
void empty_cache();
void set_pressure_callback(std::function<void()> callback);

// Opening and closing of the alias mapping. Counted, process wide.
void open_memory();
void close_memory();
bool memory_is_open();

struct AccessGuard {
  AccessGuard() {
    open_memory();
  }
  ~AccessGuard() {
    close_memory();
  }
  AccessGuard(const AccessGuard&) = delete;
  AccessGuard& operator=(const AccessGuard&) = delete;
};

} // namespace spyre
