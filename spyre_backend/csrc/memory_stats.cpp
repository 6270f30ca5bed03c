// What is known about blocks and pools, and what a tensor takes.
#include "regions.h"

#include <algorithm>

namespace spyre {
namespace {

constexpr size_t kProgramRegionBytes = size_t{64} << 20;

using c10::CachingAllocator::StatArray;

template <typename Visit>
void for_each_stat(c10::CachingDeviceAllocator::DeviceStats& stats, const Visit& visit) {
  for (StatArray* array :
       {&stats.allocation,
        &stats.segment,
        &stats.active,
        &stats.inactive_split,
        &stats.allocated_bytes,
        &stats.reserved_bytes,
        &stats.active_bytes,
        &stats.inactive_split_bytes,
        &stats.requested_bytes}) {
    for (auto& stat : *array) {
      visit(stat);
    }
  }
}

} // namespace

Format format_of(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::Half:
      return Format::kHalf;
    case c10::ScalarType::BFloat16:
      return Format::kBFloat16;
    case c10::ScalarType::Long:
      return Format::kInt64;
    default:
      return Format::kPlain;
  }
}

Block* find_block(const void* ptr) {
  const Region* region = ptr == nullptr ? nullptr : find_region(ptr);
  if (region == nullptr) {
    return nullptr;
  }
  std::lock_guard<std::mutex> lock(pool(region->owner).mutex);
  const auto offset = static_cast<size_t>(static_cast<const char*>(ptr) - region->device);
  const auto after = region->blocks.upper_bound(offset);
  if (after == region->blocks.begin()) {
    return nullptr;
  }
  Block* block = std::prev(after)->second.get();
  return block->free ? nullptr : block;
}

Format allocation_format(const void* device_ptr) {
  const Block* block = find_block(device_ptr);
  return block == nullptr ? Format::kPlain : block->format.load();
}

void set_allocation_format(const void* device_ptr, Format format) {
  if (Block* block = find_block(device_ptr)) {
    block->format.store(format);
  }
}

int64_t write_generation(const void* device_ptr) {
  const Block* block = find_block(device_ptr);
  return block == nullptr ? 0 : block->generation.load();
}

void mark_written(const void* device_ptr) {
  mark_written(find_block(device_ptr));
}

int64_t elements_per_stick(c10::ScalarType dtype) {
  if (dtype == c10::ScalarType::Long) {
    return 32; // held as int32 (D1.6)
  }
  if (dtype == c10::ScalarType::Bool) {
    return 64; // held as two bytes (D1.6)
  }
  return kStickBytes / static_cast<int64_t>(c10::elementSize(dtype));
}

int64_t stick_bytes(c10::IntArrayRef sizes, c10::ScalarType dtype) {
  const int64_t per_stick = elements_per_stick(dtype);
  int64_t sticks = 1;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const bool last = i + 1 == sizes.size();
    sticks *= last ? (sizes[i] + per_stick - 1) / per_stick : sizes[i];
  }
  return sticks * kStickBytes;
}

c10::CachingDeviceAllocator::DeviceStats memory_stats(c10::DeviceIndex device) {
  auto& memory = pool(device);
  std::lock_guard<std::mutex> lock(memory.mutex);
  return memory.stats;
}

int64_t memory_limit() {
  return region_table().limit;
}

std::pair<int64_t, int64_t> largest_and_free(c10::DeviceIndex device) {
  auto& memory = pool(device);
  std::lock_guard<std::mutex> lock(memory.mutex);
  const int64_t limit = region_table().limit;
  const int64_t free = limit - memory.stats.allocated_bytes[0].current;
  int64_t largest = limit - memory.mapped;
  if (!memory.free_blocks.empty()) {
    largest = std::max(largest, static_cast<int64_t>(std::get<0>(*memory.free_blocks.rbegin())));
  }
  return {std::min(largest, free), free};
}

void reset_peak_memory_stats(c10::DeviceIndex device) {
  auto& memory = pool(device);
  std::lock_guard<std::mutex> lock(memory.mutex);
  for_each_stat(memory.stats, [](auto& stat) { stat.reset_peak(); });
}

void reset_accumulated_memory_stats(c10::DeviceIndex device) {
  auto& memory = pool(device);
  std::lock_guard<std::mutex> lock(memory.mutex);
  for_each_stat(memory.stats, [](auto& stat) { stat.reset_accumulated(); });
  memory.stats.num_alloc_retries = 0;
  memory.stats.num_ooms = 0;
}

void empty_cache() {
  AccessGuard guard;
  for (int device = 0; device < device_count(); ++device) {
    auto& memory = pool(static_cast<c10::DeviceIndex>(device));
    std::lock_guard<std::mutex> lock(memory.mutex);
    retire_free_regions(static_cast<c10::DeviceIndex>(device), memory);
    for (const auto& [size, region, offset] : memory.free_blocks) {
      return_pages(region_table().regions[region], offset, size);
    }
  }
}

void set_pressure_callback(std::function<void()> callback) {
  region_table().pressure = std::move(callback);
}

void* allocate_program_bytes(c10::DeviceIndex device, size_t bytes) {
  auto& memory = pool(device);
  std::lock_guard<std::mutex> lock(memory.mutex);
  const size_t size = round_up(bytes, kStickBytes);
  auto& free = memory.program_free[size];
  if (!free.empty()) {
    void* start = free.back();
    free.pop_back();
    return start;
  }
  if (size > memory.program_left) {
    const size_t mapped = std::max(size, kProgramRegionBytes);
    const Region* region = map_private_region(device, mapped);
    TORCH_CHECK_WITH(
        OutOfMemoryError, region != nullptr, "Spyre runtime: the host has no room for a program region");
    memory.program = region->device;
    memory.program_left = mapped;
  }
  void* start = memory.program;
  memory.program += size;
  memory.program_left -= size;
  return start;
}

void free_program_bytes(c10::DeviceIndex device, void* start, size_t bytes) {
  auto& memory = pool(device);
  std::lock_guard<std::mutex> lock(memory.mutex);
  memory.program_free[round_up(bytes, kStickBytes)].push_back(start);
}

} // namespace spyre
