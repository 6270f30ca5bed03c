// Emulated device memory: regions mapped twice, once without any access
// rights (the addresses that tensors carry) and once readable and writable
// (the addresses that only the runtime uses).
#pragma once

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/ScalarType.h>
#include <c10/core/Storage.h>
#include <c10/util/ArrayRef.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <vector>

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

// One allocation, or one free range of a region. The pool's mutex guards what
// is not atomic.
struct Block {
  size_t region = 0;
  size_t offset = 0;
  size_t size = 0;
  size_t requested = 0;
  int64_t accounted = 0; // what the card would reserve: whole sticks (D2.2)
  int pins = 0; // operations in flight that use the block
  bool free = true;
  bool released = false; // freed by its owner while pinned
  std::atomic<Format> format{Format::kRaw};
  // Of the last write; unique over all allocations.
  std::atomic<int64_t> generation{0};
};

// A part of a composite address (D3.2).
struct Chunk {
  int64_t region_id = 0;
  int64_t offset = 0;
  int64_t domain_id = 0; // the device
  int64_t bytes = 0;
};

c10::DeviceAllocator* device_allocator();

// Host alias of a device address; throws when `device_ptr` is not one of ours.
void* host_pointer(const void* device_ptr);
bool is_device_pointer(const void* ptr);
// Device that an address belongs to; throws when it is not one of ours.
c10::DeviceIndex device_of_pointer(const void* ptr);
// The address as the card sees it: chunks of at most a region each.
std::vector<Chunk> chunks_of(const void* device_ptr, int64_t bytes);
// One word for an address, as correction blobs hold it, and back.
uint64_t address_word(const void* device_ptr);
void* address_from_word(c10::DeviceIndex device, uint64_t word);

// Live block behind a storage or an address; null when there is none.
Block* block_of(const c10::DataPtr& data);
Block* find_block(const void* device_ptr);

Format allocation_format(const void* device_ptr);
void set_allocation_format(const void* device_ptr, Format format);
// A number that changes with every write to the allocation, and differs between
// allocations, so that what was read from it can be kept. 0 when there is none.
int64_t write_generation(const void* device_ptr);
void mark_written(const void* device_ptr);
void mark_written(Block* block);
int64_t elements_per_stick(c10::ScalarType dtype);
int64_t stick_bytes(c10::IntArrayRef sizes, c10::ScalarType dtype);

// While it lives, allocations of this thread reserve what the device would for
// a tensor (D2.2: whole 128-byte sticks), instead of the dense size.
class ExpectSticks {
 public:
  explicit ExpectSticks(int64_t bytes);
  ~ExpectSticks();
  ExpectSticks(const ExpectSticks&) = delete;
  ExpectSticks& operator=(const ExpectSticks&) = delete;

 private:
  int64_t before_;
};

// Blocks that operations in flight use. Freed meanwhile, they count as free at
// once, and their memory is used again when the last operation has ended.
void pin_blocks(c10::ArrayRef<Block*> blocks);
void unpin_blocks(c10::ArrayRef<Block*> blocks);

c10::CachingDeviceAllocator::DeviceStats memory_stats(c10::DeviceIndex device);
int64_t memory_limit(); // capacity of each emulated card, in bytes
// Largest allocation that would succeed now, and bytes not allocated.
std::pair<int64_t, int64_t> largest_and_free(c10::DeviceIndex device);
void reset_peak_memory_stats(c10::DeviceIndex device);
void reset_accumulated_memory_stats(c10::DeviceIndex device);
void empty_cache();
void set_pressure_callback(std::function<void()> callback);

// Memory for programs, apart from that of tensors (D1.4: a segment of its own).
void* allocate_program_bytes(c10::DeviceIndex device, size_t bytes);
void free_program_bytes(c10::DeviceIndex device, void* start, size_t bytes);

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
