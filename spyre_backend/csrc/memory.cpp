// Blocks of device memory: split on allocation, coalesced when freed (D3.2).
#include "memory.h"

#include "regions.h"
#include "state.h"
#include "streams.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>

namespace spyre {
namespace {

using c10::CachingAllocator::StatArray;
using c10::CachingAllocator::StatType;

// Freed blocks at least this large give their pages back to the host at once.
constexpr size_t kReturnBytes = size_t{32} << 20;
// torch.cuda's border between its small and its large pool.
constexpr size_t kSmallBytes = size_t{1} << 20;

int64_t next_generation() {
  static std::atomic<int64_t> last{0};
  return ++last;
}

StatType pool_of(const Block& block) {
  return block.requested < kSmallBytes ? StatType::SMALL_POOL : StatType::LARGE_POOL;
}

void change(StatArray& stat, const Block& block, int64_t amount) {
  for (const auto type : {StatType::AGGREGATE, pool_of(block)}) {
    auto& entry = stat[static_cast<size_t>(type)];
    amount >= 0 ? entry.increase(amount) : entry.decrease(-amount);
  }
}

// A free part of a region that is in use otherwise.
void note_split(Pool& memory, size_t region, size_t size, int sign) {
  if (size == region_table().regions[region].size) {
    return;
  }
  auto& count = memory.stats.inactive_split[static_cast<size_t>(StatType::AGGREGATE)];
  auto& bytes = memory.stats.inactive_split_bytes[static_cast<size_t>(StatType::AGGREGATE)];
  sign > 0 ? count.increase(1) : count.decrease(1);
  sign > 0 ? bytes.increase(size) : bytes.decrease(size);
}

void add_free(Pool& memory, size_t region, size_t offset, size_t size) {
  insert_free(memory, region, offset, size);
  note_split(memory, region, size, 1);
}

void drop_free(Pool& memory, const Block& block) {
  memory.free_blocks.erase({block.size, block.region, block.offset});
  note_split(memory, block.region, block.size, -1);
}

int64_t allocated(const Pool& memory) {
  return memory.stats.allocated_bytes[static_cast<size_t>(StatType::AGGREGATE)].current;
}

void account_new(Pool& memory, const Block& block) {
  auto& stats = memory.stats;
  change(stats.allocation, block, 1);
  change(stats.active, block, 1);
  change(stats.allocated_bytes, block, block.accounted);
  change(stats.active_bytes, block, block.accounted);
  change(stats.requested_bytes, block, static_cast<int64_t>(block.requested));
}

// Maps a region when no free block is large enough; the end of the set when
// there is no room for one.
auto find_free(c10::DeviceIndex device, Pool& memory, size_t size) {
  auto found = memory.free_blocks.lower_bound({size, 0, 0});
  if (found == memory.free_blocks.end() && add_region(device, memory, size)) {
    found = memory.free_blocks.lower_bound({size, 0, 0});
    const auto mapped = static_cast<int64_t>(std::get<0>(*found));
    memory.stats.segment[static_cast<size_t>(StatType::AGGREGATE)].increase(1);
    memory.stats.reserved_bytes[static_cast<size_t>(StatType::AGGREGATE)].increase(mapped);
    memory.stats.num_device_alloc += 1;
  }
  return found;
}

Block* take_block(c10::DeviceIndex device, size_t nbytes, int64_t accounted) {
  auto& memory = pool(device);
  std::lock_guard<std::mutex> lock(memory.mutex);
  const size_t size = round_up(std::max(nbytes, static_cast<size_t>(accounted)), kStickBytes);
  if (allocated(memory) + accounted > region_table().limit) {
    return nullptr;
  }
  const auto found = find_free(device, memory, size);
  if (found == memory.free_blocks.end()) {
    return nullptr;
  }
  const auto [whole, index, offset] = *found;
  Block* block = region_table().regions[index].blocks[offset].get();
  drop_free(memory, *block);
  block->free = false;
  block->size = size;
  block->requested = nbytes;
  block->accounted = accounted;
  block->format.store(Format::kRaw);
  block->generation.store(next_generation());
  if (whole > size) {
    add_free(memory, index, offset + size, whole - size);
  }
  account_new(memory, *block);
  return block;
}

// Joins a block with its free neighbours; the pool's mutex is held, and the
// block is gone afterwards.
void coalesce(Pool& memory, Block* block) {
  const size_t index = block->region;
  Region& region = region_table().regions[index];
  if (block->size >= kReturnBytes) {
    return_pages(region, block->offset, block->size);
  }
  const auto here = region.blocks.find(block->offset);
  size_t offset = block->offset;
  size_t size = block->size;
  const auto next = std::next(here);
  if (next != region.blocks.end() && next->second->free) {
    size += next->second->size;
    drop_free(memory, *next->second);
    region.blocks.erase(next);
  }
  if (here != region.blocks.begin()) {
    const auto before = std::prev(here);
    if (before->second->free) {
      drop_free(memory, *before->second);
      offset = before->first;
      size += before->second->size;
      region.blocks.erase(here);
    }
  }
  add_free(memory, index, offset, size);
}

void end_activity(Pool& memory, Block* block) {
  change(memory.stats.active, *block, -1);
  change(memory.stats.active_bytes, *block, -block->accounted);
  coalesce(memory, block);
}

Pool& pool_with(const Block& block) {
  return pool(region_table().regions[block.region].owner);
}

void release_block(void* context) {
  if (context == nullptr || in_bad_fork()) {
    return;
  }
  auto* block = static_cast<Block*>(context);
  Pool& memory = pool_with(*block);
  std::lock_guard<std::mutex> lock(memory.mutex);
  change(memory.stats.allocation, *block, -1);
  change(memory.stats.allocated_bytes, *block, -block->accounted);
  change(memory.stats.requested_bytes, *block, -static_cast<int64_t>(block->requested));
  block->released = true;
  if (block->pins == 0) {
    end_activity(memory, block);
  }
}

thread_local int64_t expected_sticks = 0;

[[noreturn]] void throw_out_of_memory(c10::DeviceIndex device, size_t nbytes) {
  const auto [largest, free] = largest_and_free(device);
  TORCH_CHECK_WITH(
      OutOfMemoryError,
      false,
      "Spyre device memory: All memory regions exhausted (RAS 0x340f) on spyre:",
      int(device),
      ". RequestedBytes: ",
      nbytes,
      ", free: ",
      free,
      ", largest free block: ",
      largest,
      ", capacity: ",
      region_table().limit,
      ". Free tensors that are no longer needed, or use a smaller batch.");
}

struct SpyreAllocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t nbytes) override {
    check_not_forked();
    initialise();
    const auto device = current_device();
    if (nbytes == 0) {
      return {nullptr, nullptr, &release_block, device_at(device)};
    }
    const int64_t sticks = expected_sticks > 0
        ? expected_sticks
        : static_cast<int64_t>(round_up(nbytes, kStickBytes));
    Block* block = take_block(device, nbytes, sticks);
    if (block == nullptr) {
      block = take_under_pressure(device, nbytes, sticks);
    }
    const auto& region = region_table().regions[block->region];
    return {region.device + block->offset, block, &release_block, device_at(device)};
  }

  // Blocks, not addresses, are what the deleter takes.
  c10::DeleterFnPtr raw_deleter() const override {
    return nullptr;
  }

  void copy_data(void* dest, const void* src, std::size_t count) const override {
    wait_for_current_streams(device_of_pointer(src));
    AccessGuard guard;
    std::memmove(host_pointer(dest), host_pointer(src), count);
    set_allocation_format(dest, allocation_format(src));
    mark_written(dest);
  }

  bool initialized() override {
    return is_initialised();
  }

  void emptyCache(c10::MempoolId_t) override {
    empty_cache();
  }

  // What is in flight pins its blocks, whichever stream it is on.
  void recordStream(const c10::DataPtr&, c10::Stream stream) override {
    checked_index(stream.device());
  }

  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    return memory_stats(checked_index(device_at(device)));
  }

  void resetAccumulatedStats(c10::DeviceIndex device) override {
    reset_accumulated_memory_stats(checked_index(device_at(device)));
  }

  void resetPeakStats(c10::DeviceIndex device) override {
    reset_peak_memory_stats(checked_index(device_at(device)));
  }

  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    const auto free = largest_and_free(checked_index(device_at(device))).second;
    return {static_cast<size_t>(free), static_cast<size_t>(memory_limit())};
  }

 private:
  // D3.2: collect garbage, then try once more.
  static Block* take_under_pressure(c10::DeviceIndex device, size_t nbytes, int64_t sticks) {
    auto& memory = pool(device);
    {
      std::lock_guard<std::mutex> lock(memory.mutex);
      memory.stats.num_alloc_retries += 1;
    }
    if (region_table().pressure) {
      region_table().pressure();
    }
    // What was freed while operations used it is free when these have ended.
    drain_device(device);
    {
      std::lock_guard<std::mutex> lock(memory.mutex);
      retire_free_regions(device, memory);
    }
    Block* block = take_block(device, nbytes, sticks);
    if (block == nullptr) {
      {
        std::lock_guard<std::mutex> lock(memory.mutex);
        memory.stats.num_ooms += 1;
      }
      throw_out_of_memory(device, static_cast<size_t>(sticks));
    }
    return block;
  }
};

SpyreAllocator allocator;

} // namespace

ExpectSticks::ExpectSticks(int64_t bytes) : before_(expected_sticks) {
  expected_sticks = bytes;
}

ExpectSticks::~ExpectSticks() {
  expected_sticks = before_;
}

c10::DeviceAllocator* device_allocator() {
  return &allocator;
}

Block* block_of(const c10::DataPtr& data) {
  if (data.get_deleter() == &release_block) {
    return static_cast<Block*>(data.get_context());
  }
  return find_block(data.get());
}

void pin_blocks(c10::ArrayRef<Block*> blocks) {
  Pool* locked = nullptr;
  std::unique_lock<std::mutex> lock;
  for (Block* block : blocks) {
    if (block == nullptr) {
      continue;
    }
    Pool& memory = pool_with(*block);
    if (&memory != locked) {
      lock = std::unique_lock<std::mutex>();
      lock = std::unique_lock<std::mutex>(memory.mutex);
      locked = &memory;
    }
    block->pins += 1;
  }
}

void unpin_blocks(c10::ArrayRef<Block*> blocks) {
  for (Block* block : blocks) {
    if (block == nullptr) {
      continue;
    }
    Pool& memory = pool_with(*block);
    std::lock_guard<std::mutex> lock(memory.mutex);
    block->pins -= 1;
    if (block->pins == 0 && block->released) {
      end_activity(memory, block);
    }
  }
}

void mark_written(Block* block) {
  if (block != nullptr) {
    block->generation.store(next_generation());
  }
}

} // namespace spyre
