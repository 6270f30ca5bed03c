#include "regions.h"

#include <c10/util/Exception.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace spyre {
namespace {

constexpr int64_t kDefaultCapacity = int64_t{128} << 30; // D1.2
constexpr size_t kRegionSizes[] = {12 * kGiB, 8 * kGiB, 4 * kGiB}; // D3.2
constexpr int kOffsetBits = 40; // of an address word; the rest is the region
constexpr uint64_t kOffsetMask = (uint64_t{1} << kOffsetBits) - 1;

size_t page_size() {
  static const auto size = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  return size;
}

int64_t capacity_from_environment() {
  const char* text = std::getenv("SPYRE_BACKEND_MEMORY_BYTES");
  if (text == nullptr || *text == '\0') {
    return kDefaultCapacity;
  }
  char* end = nullptr;
  const long long value = std::strtoll(text, &end, 10);
  TORCH_CHECK(
      end != nullptr && *end == '\0' && value > 0,
      "SPYRE_BACKEND_MEMORY_BYTES must be a positive number of bytes, got '",
      text,
      "'");
  return value;
}

// Maps one memory file twice. Returns false when the host refuses.
bool map_region(Region& region, size_t size, int host_protection) {
  const int file = ::memfd_create("spyre-device-memory", MFD_CLOEXEC);
  if (file < 0) {
    return false;
  }
  void* device = MAP_FAILED;
  void* host = MAP_FAILED;
  if (::ftruncate(file, static_cast<off_t>(size)) == 0) {
    device = ::mmap(nullptr, size, PROT_NONE, MAP_SHARED | MAP_NORESERVE, file, 0);
    host = ::mmap(nullptr, size, host_protection, MAP_SHARED | MAP_NORESERVE, file, 0);
  }
  ::close(file);
  if (device == MAP_FAILED || host == MAP_FAILED) {
    if (device != MAP_FAILED) {
      ::munmap(device, size);
    }
    if (host != MAP_FAILED) {
      ::munmap(host, size);
    }
    return false;
  }
  // A forked child has no device: it must not share (and change) our memory.
  ::madvise(device, size, MADV_DONTFORK);
  ::madvise(host, size, MADV_DONTFORK);
  // The contents would make a core dump as large as the card.
  ::madvise(host, size, MADV_DONTDUMP);
  region.device = static_cast<char*>(device);
  region.host = static_cast<char*>(host);
  region.size = size;
  return true;
}

void protect_aliases(int protection) {
  auto& table = region_table();
  const size_t count = table.count.load();
  for (size_t i = 0; i < count; ++i) {
    ::mprotect(table.regions[i].host, table.regions[i].size, protection);
  }
}

// The next region of the table, mapped; null when the host refuses.
Region* append_region(c10::DeviceIndex device, size_t size, int64_t first_id) {
  auto& table = region_table();
  std::lock_guard<std::mutex> adding(table.adding);
  const size_t index = table.count.load();
  if (index == kMaxRegions) {
    return nullptr;
  }
  std::lock_guard<std::mutex> protect(table.protect_mutex);
  const bool open = !table.strict || table.open_depth.load() > 0;
  Region& region = table.regions[index];
  if (!map_region(region, size, open ? PROT_READ | PROT_WRITE : PROT_NONE)) {
    return nullptr;
  }
  region.owner = device;
  region.first_id = first_id;
  table.count.store(index + 1, std::memory_order_release);
  return &region;
}

// A retired region of this size; null if there is none.
Region* revive_region(c10::DeviceIndex device, size_t size) {
  auto& table = region_table();
  const size_t count = table.count.load(std::memory_order_acquire);
  for (size_t i = 0; i < count; ++i) {
    Region& region = table.regions[i];
    if (region.owner == device && region.size == size && region.retired) {
      region.retired = false;
      return &region;
    }
  }
  return nullptr;
}

size_t index_of(const Region& region) {
  return static_cast<size_t>(&region - region_table().regions.data());
}

const Region& region_at(const void* device_ptr) {
  const Region* region = find_region(device_ptr);
  TORCH_CHECK(
      region != nullptr,
      "Spyre runtime: ",
      device_ptr,
      " is not an address in device memory");
  return *region;
}

} // namespace

size_t round_up(size_t value, size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

RegionTable& region_table() {
  static RegionTable* instance = [] {
    auto* made = new RegionTable();
    made->limit = capacity_from_environment();
    const char* strict = std::getenv("SPYRE_BACKEND_STRICT_MEMORY");
    made->strict = strict != nullptr && std::strcmp(strict, "1") == 0;
    return made;
  }();
  return *instance;
}

Pool& pool(c10::DeviceIndex device) {
  static auto* pools = new std::array<Pool, kMaxDevices>();
  return pools->at(static_cast<size_t>(device));
}

const Region* find_region(const void* ptr) {
  auto& table = region_table();
  const auto* address = static_cast<const char*>(ptr);
  const size_t count = table.count.load(std::memory_order_acquire);
  for (size_t i = 0; i < count; ++i) {
    const auto& region = table.regions[i];
    if (address >= region.device && address < region.device + region.size) {
      return &region;
    }
  }
  return nullptr;
}

void insert_free(Pool& memory, size_t index, size_t offset, size_t size) {
  auto block = std::make_unique<Block>();
  block->region = index;
  block->offset = offset;
  block->size = size;
  region_table().regions[index].blocks[offset] = std::move(block);
  memory.free_blocks.emplace(size, index, offset);
}

bool add_region(c10::DeviceIndex device, Pool& memory, size_t request) {
  const auto left = static_cast<size_t>(region_table().limit - memory.mapped);
  // A card of an odd size, or one with little left, still gets a last region.
  const size_t rest = round_up(left, page_size());
  const size_t least = round_up(request, page_size());
  std::vector<size_t> sizes;
  if (least > kChunkBytes) {
    sizes = {round_up(least, 4 * kGiB), least};
  } else {
    sizes.assign(std::begin(kRegionSizes), std::end(kRegionSizes));
    // A host that refuses whole regions of address space gives smaller ones.
    sizes.insert(sizes.end(), {kGiB, kGiB / 4, kGiB / 16, least});
  }
  for (size_t size : sizes) {
    size = std::min(size, rest);
    if (size < least) {
      continue;
    }
    Region* region = revive_region(device, size);
    if (region == nullptr && (region = append_region(device, size, memory.next_region_id))) {
      memory.next_region_id += static_cast<int64_t>(round_up(size, kChunkBytes) / kChunkBytes);
    }
    if (region != nullptr) {
      memory.mapped += static_cast<int64_t>(size);
      insert_free(memory, index_of(*region), 0, size);
      return true;
    }
  }
  return false;
}

void retire_free_regions(c10::DeviceIndex device, Pool& memory) {
  auto& table = region_table();
  const size_t count = table.count.load(std::memory_order_acquire);
  for (size_t i = 0; i < count; ++i) {
    Region& region = table.regions[i];
    if (region.owner != device || region.blocks.size() != 1 || !region.blocks.begin()->second->free) {
      continue;
    }
    memory.free_blocks.erase({region.size, i, 0});
    region.blocks.clear();
    region.retired = true; // its addresses stay reserved
    return_pages(region, 0, region.size);
    memory.mapped -= static_cast<int64_t>(region.size);
    memory.stats.segment[0].decrease(1);
    memory.stats.reserved_bytes[0].decrease(region.size);
    memory.stats.num_device_free += 1;
  }
}

Region* map_private_region(c10::DeviceIndex device, size_t size) {
  constexpr int64_t kProgramRegions = 1 << 20; // ids apart from those of tensors
  return append_region(device, size, kProgramRegions);
}

void return_pages(const Region& region, size_t offset, size_t size) {
  const size_t first = round_up(offset, page_size());
  const size_t last = (offset + size) / page_size() * page_size();
  if (last > first) {
    ::madvise(region.host + first, last - first, MADV_REMOVE);
  }
}

void* host_pointer(const void* device_ptr) {
  if (device_ptr == nullptr) {
    return nullptr;
  }
  const Region& region = region_at(device_ptr);
  return region.host + (static_cast<const char*>(device_ptr) - region.device);
}

bool is_device_pointer(const void* ptr) {
  return find_region(ptr) != nullptr;
}

c10::DeviceIndex device_of_pointer(const void* ptr) {
  return region_at(ptr).owner;
}

std::vector<Chunk> chunks_of(const void* device_ptr, int64_t bytes) {
  std::vector<Chunk> chunks;
  if (device_ptr == nullptr) {
    return chunks;
  }
  const Region& region = region_at(device_ptr);
  constexpr auto kChunk = static_cast<int64_t>(kChunkBytes);
  int64_t position = static_cast<const char*>(device_ptr) - region.device;
  do {
    const int64_t offset = position % kChunk;
    const int64_t here = std::min(bytes, kChunk - offset);
    chunks.push_back({region.first_id + position / kChunk, offset, region.owner, here});
    position += here;
    bytes -= here;
  } while (bytes > 0);
  return chunks;
}

uint64_t address_word(const void* device_ptr) {
  const Region& region = region_at(device_ptr);
  const auto offset = static_cast<uint64_t>(static_cast<const char*>(device_ptr) - region.device);
  return (static_cast<uint64_t>(index_of(region)) << kOffsetBits) | offset;
}

void* address_from_word(c10::DeviceIndex device, uint64_t word) {
  auto& table = region_table();
  const auto index = static_cast<size_t>(word >> kOffsetBits);
  const auto offset = static_cast<size_t>(word & kOffsetMask);
  TORCH_CHECK(
      index < table.count.load(std::memory_order_acquire) &&
          table.regions[index].owner == device && offset < table.regions[index].size,
      "Spyre runtime: the program holds the address ",
      word,
      ", which is not in the memory of spyre:",
      int(device));
  return table.regions[index].device + offset;
}

void open_memory() {
  auto& table = region_table();
  if (!table.strict) {
    table.open_depth.fetch_add(1);
    return;
  }
  std::lock_guard<std::mutex> lock(table.protect_mutex);
  if (table.open_depth.fetch_add(1) == 0) {
    protect_aliases(PROT_READ | PROT_WRITE);
  }
}

void close_memory() {
  auto& table = region_table();
  if (!table.strict) {
    table.open_depth.fetch_sub(1);
    return;
  }
  std::lock_guard<std::mutex> lock(table.protect_mutex);
  if (table.open_depth.fetch_sub(1) == 1) {
    protect_aliases(PROT_NONE);
  }
}

bool memory_is_open() {
  return region_table().open_depth.load() > 0;
}

} // namespace spyre
