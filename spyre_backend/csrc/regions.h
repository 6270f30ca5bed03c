// The mapped regions behind device memory, and the table of their blocks.
#pragma once

#include "devices.h"
#include "memory.h"

#include <array>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <tuple>

namespace spyre {

constexpr int64_t kStickBytes = 128; // D1: STICK_BYTES
constexpr size_t kMaxRegions = 512;
constexpr size_t kGiB = size_t{1} << 30;
constexpr size_t kChunkBytes = 12 * kGiB; // largest region of the card (D3.2)

struct Region {
  char* device = nullptr; // no access rights; the address that tensors carry
  char* host = nullptr; // the same pages, for the runtime
  size_t size = 0;
  c10::DeviceIndex owner = 0;
  int64_t first_id = 0; // of its chunks, counted on the device
  std::map<size_t, std::unique_ptr<Block>> blocks; // by offset; neighbours coalesce on free
  bool retired = false; // out of its pool; guarded by the pool's mutex
};

// All regions of all devices. Regions are only ever added, so readers need no lock.
struct RegionTable {
  std::array<Region, kMaxRegions> regions;
  std::atomic<size_t> count{0};
  std::mutex adding;
  std::atomic<int64_t> open_depth{0};
  std::mutex protect_mutex; // guards the rights of the host mappings in strict mode
  bool strict = false;
  int64_t limit = 0;
  std::function<void()> pressure;
};

// The memory of one device.
struct Pool {
  std::mutex mutex; // guards everything here, and the blocks of its regions
  std::set<std::tuple<size_t, size_t, size_t>> free_blocks; // size, region, offset
  int64_t mapped = 0; // bytes of regions
  int64_t next_region_id = 0;
  c10::CachingDeviceAllocator::DeviceStats stats;
  char* program = nullptr; // bump-allocated memory of programs
  size_t program_left = 0;
  std::map<size_t, std::vector<void*>> program_free; // by size
};

RegionTable& region_table();
Pool& pool(c10::DeviceIndex device);
size_t round_up(size_t value, size_t multiple);
const Region* find_region(const void* device_ptr);
// Adds a region of at least `request` bytes as one free block; the pool's
// mutex is held. False when the card or the host has no more room.
bool add_region(c10::DeviceIndex device, Pool& memory, size_t request);
// Takes regions that hold nothing out of the pool, whose mutex is held: their
// pages go back to the host and their room to the card.
void retire_free_regions(c10::DeviceIndex device, Pool& memory);
// Maps a region that is no part of any pool; null when the host has no room.
Region* map_private_region(c10::DeviceIndex device, size_t size);
void insert_free(Pool& memory, size_t index, size_t offset, size_t size);
// Gives whole pages of a free range back to the host.
void return_pages(const Region& region, size_t offset, size_t size);

} // namespace spyre
