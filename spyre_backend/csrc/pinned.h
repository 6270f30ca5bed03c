// Host memory that non-blocking copies may read and write later.
#pragma once

#include <ATen/core/CachingHostAllocator.h>

namespace spyre {

at::HostAllocator* pinned_allocator();
bool is_pinned_pointer(const void* pointer);

} // namespace spyre
