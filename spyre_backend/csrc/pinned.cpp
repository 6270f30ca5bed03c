#include "pinned.h"

#include "state.h"
#include "streams.h"

#include <c10/core/impl/alloc_cpu.h>
#include <c10/util/Exception.h>

#include <map>
#include <mutex>

namespace spyre {
namespace {

struct Pinned {
  std::mutex mutex;
  size_t most = 0; // maps that a VFIO container has room for (D1.4); each pinned buffer takes one
  std::map<const char*, size_t> ranges;
  at::HostStats stats;
};

Pinned& pinned() {
  static auto* instance = new Pinned();
  return *instance;
}

// Copies in flight hold the tensor, so its memory can go when the last does.
void release(void* pointer) {
  auto& all = pinned();
  {
    std::lock_guard<std::mutex> lock(all.mutex);
    const auto found = all.ranges.find(static_cast<const char*>(pointer));
    if (found == all.ranges.end()) {
      return;
    }
    all.stats.active_requests.decrease(1);
    all.stats.active_bytes.decrease(found->second);
    all.stats.allocations.decrease(1);
    all.stats.allocated_bytes.decrease(found->second);
    all.ranges.erase(found);
  }
  c10::free_cpu(pointer);
}

struct PinnedAllocator final : at::HostAllocator {
  at::DataPtr allocate(size_t nbytes) override {
    check_not_forked();
    initialise(); // hands over the limit
    if (nbytes == 0) {
      return {nullptr, nullptr, &release, at::DeviceType::CPU};
    }
    auto& all = pinned();
    std::lock_guard<std::mutex> lock(all.mutex);
    TORCH_CHECK_WITH(
        OutOfMemoryError,
        all.ranges.size() < all.most,
        "Spyre: RAS::VFIO::MapDMAFailed: No space left on device: ",
        all.most,
        " pinned buffers are mapped for DMA already. Free some, or pin fewer and larger ones.");
    void* pointer = c10::alloc_cpu(nbytes);
    all.ranges[static_cast<const char*>(pointer)] = nbytes;
    all.stats.active_requests.increase(1);
    all.stats.active_bytes.increase(nbytes);
    all.stats.allocations.increase(1);
    all.stats.allocated_bytes.increase(nbytes);
    return {pointer, pointer, &release, at::DeviceType::CPU};
  }

  at::DeleterFnPtr raw_deleter() const override {
    return &release;
  }

  void copy_data(void* dest, const void* src, std::size_t count) const override {
    default_copy_data(dest, src, count);
  }

  bool record_event(void*, void*, c10::Stream) override {
    return true;
  }

  // Nothing is kept back.
  void empty_cache() override {}

  at::HostStats get_stats() override {
    auto& all = pinned();
    std::lock_guard<std::mutex> lock(all.mutex);
    return all.stats;
  }

  void reset_accumulated_stats() override {
    auto& all = pinned();
    std::lock_guard<std::mutex> lock(all.mutex);
    all.stats.active_requests.reset_accumulated();
    all.stats.active_bytes.reset_accumulated();
  }

  void reset_peak_stats() override {
    auto& all = pinned();
    std::lock_guard<std::mutex> lock(all.mutex);
    all.stats.active_requests.reset_peak();
    all.stats.active_bytes.reset_peak();
  }
};

PinnedAllocator host_allocator;

} // namespace

at::HostAllocator* pinned_allocator() {
  return &host_allocator;
}

void set_dma_maps(size_t most) {
  auto& all = pinned();
  std::lock_guard<std::mutex> lock(all.mutex);
  all.most = most;
}

bool is_pinned_pointer(const void* pointer) {
  auto& all = pinned();
  std::lock_guard<std::mutex> lock(all.mutex);
  const auto* address = static_cast<const char*>(pointer);
  const auto after = all.ranges.upper_bound(address);
  if (after == all.ranges.begin()) {
    return false;
  }
  const auto& [start, size] = *std::prev(after);
  return address < start + size;
}

} // namespace spyre

namespace {
const at::HostAllocatorRegistry<at::DeviceType::PrivateUse1> registered(spyre::pinned_allocator());
} // namespace
