// The mapped regions behind device memory, and the table of their blocks.
#pragma once

#include "memory.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <map>
#include <mutex>
#include <utility>

namespace spyre {

constexpr int64_t kStickBytes = 128; // D1: STICK_BYTES
constexpr size_t kMaxRegions = 256;

struct Block {
  size_t size = 0;
  bool free = true;
  Format format = Format::kRaw;
  int64_t accounted = 0;
  int64_t generation = 0; // of the last write; unique over all allocations
};

struct Region {
  char* device = nullptr; // no access rights; the address that tensors carry
  char* host = nullptr; // the same pages, for the runtime
  size_t size = 0;
  std::map<size_t, Block> blocks; // by offset; neighbours coalesce on free
};

struct Pool {
  std::mutex mutex; // guards blocks, free_blocks and stats
  std::array<Region, kMaxRegions> regions;
  // Regions are only ever added, so readers need no lock.
  std::atomic<size_t> count{0};
  std::multimap<size_t, std::pair<size_t, size_t>> free_blocks; // size -> region, offset
  MemoryStats stats;
  std::function<void()> pressure;
  std::atomic<int64_t> open_depth{0};
  std::mutex protect_mutex; // guards the rights of the host mappings in strict mode
  bool strict = false;
};

Pool& pool();
size_t round_up(size_t value, size_t multiple);
const Region* find_region(const void* device_ptr);
size_t region_index(const Region& region);
// Adds a region of at least `request` bytes as one free block; the pool's
// mutex is held. False when the host has no more address space.
bool add_region(Pool& memory, size_t request);
void insert_free(Pool& memory, size_t index, size_t offset, size_t size);
void erase_free(Pool& memory, size_t index, size_t offset, size_t size);
// Gives whole pages of a free range back to the host.
void return_pages(const Region& region, size_t offset, size_t size);

} // namespace spyre
