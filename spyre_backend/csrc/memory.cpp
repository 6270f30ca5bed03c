#include "memory.h"

#include "state.h"

#include <c10/util/Exception.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>

namespace spyre {
namespace {

constexpr int64_t kStickBytes = 128; // D1: STICK_BYTES
constexpr int64_t kDefaultCapacity = int64_t{128} << 30; // D1.2
constexpr size_t kMaxRegions = 256;
// Freed blocks at least this large give their pages back to the host at once.
constexpr size_t kReturnBytes = size_t{32} << 20;

size_t round_up(size_t value, size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

struct Block {
  size_t size = 0;
  bool free = true;
  Format format = Format::kRaw;
  int64_t accounted = 0;
};

struct Region {
  char* device = nullptr;
  char* host = nullptr;
  size_t size = 0;
  std::map<size_t, Block> blocks; // by offset; neighbours coalesce on free
};

struct Pool {
  std::mutex mutex;
  std::array<Region, kMaxRegions> regions;
  // Regions are only ever added, so readers need no lock.
  std::atomic<size_t> count{0};
  std::multimap<size_t, std::pair<size_t, size_t>> free_blocks; // size -> place
  MemoryStats stats;
  std::function<void()> pressure;
  std::atomic<int64_t> open_depth{0};
  std::mutex protect_mutex;
  bool strict = false;
};

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

void insert_free(Pool& memory, size_t index, size_t offset, size_t size) {
  memory.regions[index].blocks[offset] = Block{size, true, Format::kRaw, 0};
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

bool add_region(Pool& memory, size_t request) {
  const size_t index = memory.count.load();
  if (index == kMaxRegions) {
    return false;
  }
  const size_t page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t least = round_up(request, page);
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

void account(Pool& memory, int64_t delta) {
  memory.stats.allocated += delta;
  memory.stats.allocated_peak =
      std::max(memory.stats.allocated_peak, memory.stats.allocated);
}

void* take_block(Pool& memory, size_t size) {
  std::lock_guard<std::mutex> lock(memory.mutex);
  if (memory.stats.allocated + static_cast<int64_t>(size) > memory.stats.limit) {
    return nullptr;
  }
  auto found = memory.free_blocks.lower_bound(size);
  if (found == memory.free_blocks.end()) {
    if (!add_region(memory, size)) {
      return nullptr;
    }
    found = memory.free_blocks.lower_bound(size);
  }
  const auto [index, offset] = found->second;
  const size_t whole = found->first;
  memory.free_blocks.erase(found);
  auto& region = memory.regions[index];
  region.blocks[offset] =
      Block{size, false, Format::kRaw, static_cast<int64_t>(size)};
  if (whole > size) {
    insert_free(memory, index, offset + size, whole - size);
  }
  account(memory, static_cast<int64_t>(size));
  memory.stats.active += 1;
  memory.stats.allocations += 1;
  memory.stats.active_peak =
      std::max(memory.stats.active_peak, memory.stats.active);
  return region.device + offset;
}

void return_pages(const Region& region, size_t offset, size_t size) {
  const size_t page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t first = round_up(offset, page);
  const size_t last = (offset + size) / page * page;
  if (last > first) {
    ::madvise(region.host + first, last - first, MADV_REMOVE);
  }
}

void release_block(void* ptr) {
  auto& memory = pool();
  const Region* region = find_region(ptr);
  if (region == nullptr || in_bad_fork()) {
    return;
  }
  std::lock_guard<std::mutex> lock(memory.mutex);
  const auto index = static_cast<size_t>(region - memory.regions.data());
  auto& blocks = memory.regions[index].blocks;
  auto here = blocks.find(static_cast<size_t>(static_cast<char*>(ptr) - region->device));
  if (here == blocks.end() || here->second.free) {
    return;
  }
  account(memory, -here->second.accounted);
  memory.stats.active -= 1;
  memory.stats.frees += 1;
  size_t offset = here->first;
  size_t size = here->second.size;
  if (size >= kReturnBytes) {
    return_pages(*region, offset, size);
  }
  auto next = std::next(here);
  if (next != blocks.end() && next->second.free) {
    size += next->second.size;
    erase_free(memory, index, next->first, next->second.size);
    blocks.erase(next);
  }
  if (here != blocks.begin()) {
    auto before = std::prev(here);
    if (before->second.free) {
      erase_free(memory, index, before->first, before->second.size);
      offset = before->first;
      size += before->second.size;
      blocks.erase(here);
    }
  }
  insert_free(memory, index, offset, size);
}

// Calls `visit` with the live block that contains `ptr`, under the lock.
template <typename Visit>
void with_block(const void* ptr, const Visit& visit) {
  auto& memory = pool();
  const Region* region = find_region(ptr);
  if (region == nullptr) {
    return;
  }
  std::lock_guard<std::mutex> lock(memory.mutex);
  auto& blocks = const_cast<Region*>(region)->blocks;
  const auto offset =
      static_cast<size_t>(static_cast<const char*>(ptr) - region->device);
  auto after = blocks.upper_bound(offset);
  if (after != blocks.begin()) {
    visit(memory, std::prev(after)->second);
  }
}

struct SpyreAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t nbytes) override {
    check_not_forked();
    initialise();
    const c10::Device device(c10::DeviceType::PrivateUse1, 0);
    if (nbytes == 0) {
      return {nullptr, nullptr, &release_block, device};
    }
    auto& memory = pool();
    const size_t size = round_up(nbytes, kStickBytes);
    void* ptr = take_block(memory, size);
    if (ptr == nullptr && memory.pressure) {
      memory.pressure(); // D3.2: collect garbage, then try once more
      ptr = take_block(memory, size);
    }
    TORCH_CHECK_WITH(
        OutOfMemoryError,
        ptr != nullptr,
        "Spyre device memory: All memory regions exhausted (RAS 0x340f). ",
        "RequestedBytes: ",
        size,
        ", in use: ",
        memory.stats.allocated,
        ", capacity: ",
        memory.stats.limit,
        ". Free tensors that are no longer needed, or use a smaller batch.");
    return {ptr, ptr, &release_block, device};
  }

  c10::DeleterFnPtr raw_deleter() const override {
    return &release_block;
  }

  void copy_data(void* dest, const void* src, std::size_t count) const override {
    AccessGuard guard;
    std::memmove(host_pointer(dest), host_pointer(src), count);
    set_allocation_format(dest, allocation_format(src));
  }
};

SpyreAllocator allocator;

void protect_aliases(int protection) {
  auto& memory = pool();
  const size_t count = memory.count.load();
  for (size_t i = 0; i < count; ++i) {
    ::mprotect(memory.regions[i].host, memory.regions[i].size, protection);
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

c10::Allocator* device_allocator() {
  return &allocator;
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

Format allocation_format(const void* device_ptr) {
  Format format = Format::kPlain;
  with_block(device_ptr, [&](Pool&, Block& block) { format = block.format; });
  return format;
}

void set_allocation_format(const void* device_ptr, Format format) {
  with_block(device_ptr, [&](Pool&, Block& block) { block.format = format; });
}

void set_accounted_bytes(const void* device_ptr, int64_t bytes) {
  with_block(device_ptr, [&](Pool& memory, Block& block) {
    // The dense bytes are taken from the host in any case.
    account(memory, bytes - block.accounted);
    block.accounted = bytes;
  });
}

int64_t stick_bytes(c10::IntArrayRef sizes, c10::ScalarType dtype) {
  int64_t per_stick = kStickBytes / static_cast<int64_t>(c10::elementSize(dtype));
  if (dtype == c10::ScalarType::Long) {
    per_stick = 32; // held as int32 (D1.6)
  } else if (dtype == c10::ScalarType::Bool) {
    per_stick = 64; // held as two bytes (D1.6)
  }
  int64_t sticks = 1;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const bool last = i + 1 == sizes.size();
    sticks *= last ? (sizes[i] + per_stick - 1) / per_stick : sizes[i];
  }
  return sticks * kStickBytes;
}

MemoryStats memory_stats() {
  auto& memory = pool();
  std::lock_guard<std::mutex> lock(memory.mutex);
  return memory.stats;
}

void reset_peak_memory_stats() {
  auto& memory = pool();
  std::lock_guard<std::mutex> lock(memory.mutex);
  memory.stats.allocated_peak = memory.stats.allocated;
  memory.stats.active_peak = memory.stats.active;
}

void empty_cache() {
  auto& memory = pool();
  AccessGuard guard;
  std::lock_guard<std::mutex> lock(memory.mutex);
  for (const auto& [size, place] : memory.free_blocks) {
    return_pages(memory.regions[place.first], place.second, size);
  }
}

void set_pressure_callback(std::function<void()> callback) {
  pool().pressure = std::move(callback);
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
