// Host memory that non-blocking copies may read and write later.
#pragma once

#include <ATen/core/CachingHostAllocator.h>

namespace spyre {

at::HostAllocator* pinned_allocator();
void set_dma_maps(size_t most);
bool is_pinned_pointer(const void* pointer);

} // namespace spyre
