#include "regions.h"

#include <c10/util/Exception.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

namespace spyre {
namespace {

constexpr int64_t kDefaultCapacity = int64_t{128} << 30; // D1.2

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
    device = ::mmap(nullptr, size, PROT_NONE, MAP_SHARED, file, 0);
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
  region.device = static_cast<char*>(device);
  region.host = static_cast<char*>(host);
  region.size = size;
  return true;
}

void protect_aliases(int protection) {
  auto& memory = pool();
  const size_t count = memory.count.load();
  for (size_t i = 0; i < count; ++i) {
    ::mprotect(memory.regions[i].host, memory.regions[i].size, protection);
  }
}

} // namespace

size_t round_up(size_t value, size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

Pool& pool() {
  static Pool* instance = [] {
    auto* made = new Pool();
    made->stats.limit = capacity_from_environment();
    const char* strict = std::getenv("SPYRE_BACKEND_STRICT_MEMORY");
    made->strict = strict != nullptr && std::strcmp(strict, "1") == 0;
    return made;
  }();
  return *instance;
}

const Region* find_region(const void* ptr) {
  auto& memory = pool();
  const auto* address = static_cast<const char*>(ptr);
  const size_t count = memory.count.load(std::memory_order_acquire);
  for (size_t i = 0; i < count; ++i) {
    const auto& region = memory.regions[i];
    if (address >= region.device && address < region.device + region.size) {
      return &region;
    }
  }
  return nullptr;
}

size_t region_index(const Region& region) {
  return static_cast<size_t>(&region - pool().regions.data());
}

void insert_free(Pool& memory, size_t index, size_t offset, size_t size) {
  memory.regions[index].blocks[offset] = Block{size, true, Format::kRaw, 0, 0};
  memory.free_blocks.emplace(size, std::make_pair(index, offset));
}

void erase_free(Pool& memory, size_t index, size_t offset, size_t size) {
  auto range = memory.free_blocks.equal_range(size);
  for (auto it = range.first; it != range.second; ++it) {
    if (it->second == std::make_pair(index, offset)) {
      memory.free_blocks.erase(it);
      return;
    }
  }
}

bool add_region(Pool& memory, size_t request) {
  const size_t index = memory.count.load();
  if (index == kMaxRegions) {
    return false;
  }
  const size_t least = round_up(request, page_size());
  std::lock_guard<std::mutex> protect(memory.protect_mutex);
  const bool open = !memory.strict || memory.open_depth.load() > 0;
  const int protection = open ? PROT_READ | PROT_WRITE : PROT_NONE;
  for (size_t size : {size_t{1} << 30, size_t{256} << 20, size_t{64} << 20, least}) {
    if (size < least) {
      continue;
    }
    if (map_region(memory.regions[index], size, protection)) {
      memory.count.store(index + 1, std::memory_order_release);
      memory.stats.reserved += static_cast<int64_t>(size);
      insert_free(memory, index, 0, size);
      return true;
    }
  }
  return false;
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
  const Region* region = find_region(device_ptr);
  TORCH_CHECK(
      region != nullptr,
      "Spyre runtime: ",
      device_ptr,
      " is not an address in device memory");
  return region->host + (static_cast<const char*>(device_ptr) - region->device);
}

bool is_device_pointer(const void* ptr) {
  return find_region(ptr) != nullptr;
}

void open_memory() {
  auto& memory = pool();
  if (!memory.strict) {
    memory.open_depth.fetch_add(1);
    return;
  }
  std::lock_guard<std::mutex> lock(memory.protect_mutex);
  if (memory.open_depth.fetch_add(1) == 0) {
    protect_aliases(PROT_READ | PROT_WRITE);
  }
}

void close_memory() {
  auto& memory = pool();
  if (!memory.strict) {
    memory.open_depth.fetch_sub(1);
    return;
  }
  std::lock_guard<std::mutex> lock(memory.protect_mutex);
  if (memory.open_depth.fetch_sub(1) == 1) {
    protect_aliases(PROT_NONE);
  }
}

bool memory_is_open() {
  return pool().open_depth.load() > 0;
}

} // namespace spyre
