#include "memory.h"

#include "regions.h"
#include "state.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <cstring>

namespace spyre {
namespace {

// Freed blocks at least this large give their pages back to the host at once.
constexpr size_t kReturnBytes = size_t{32} << 20;

int64_t next_generation() {
  static std::atomic<int64_t> last{0};
  return ++last;
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
      Block{size, false, Format::kRaw, static_cast<int64_t>(size), next_generation()};
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

void release_block(void* ptr) {
  auto& memory = pool();
  const Region* region = find_region(ptr);
  if (region == nullptr || in_bad_fork()) {
    return;
  }
  std::lock_guard<std::mutex> lock(memory.mutex);
  const auto index = region_index(*region);
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
    mark_written(dest);
  }
};

SpyreAllocator allocator;

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

Format allocation_format(const void* device_ptr) {
  Format format = Format::kPlain;
  with_block(device_ptr, [&](Pool&, Block& block) { format = block.format; });
  return format;
}

void set_allocation_format(const void* device_ptr, Format format) {
  with_block(device_ptr, [&](Pool&, Block& block) { block.format = format; });
}

int64_t write_generation(const void* device_ptr) {
  int64_t generation = 0;
  with_block(device_ptr, [&](Pool&, Block& block) { generation = block.generation; });
  return generation;
}

void mark_written(const void* device_ptr) {
  with_block(device_ptr, [](Pool&, Block& block) { block.generation = next_generation(); });
}

void set_accounted_bytes(const void* device_ptr, int64_t bytes) {
  with_block(device_ptr, [&](Pool& memory, Block& block) {
    // The dense bytes are taken from the host in any case.
    account(memory, bytes - block.accounted);
    block.accounted = bytes;
  });
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

} // namespace spyre
