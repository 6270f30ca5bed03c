// What PyTorch asks of a PrivateUse1 backend outside of operators.
#include "devices.h"
#include "generator.h"
#include "memory.h"
#include "pinned.h"
#include "state.h"

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>

namespace spyre {
namespace {

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override {
    return true;
  }

  bool isAvailable() const override {
    return true;
  }

  bool hasPrimaryContext(c10::DeviceIndex) const override {
    return is_initialised();
  }

  void init() const override {
    check_not_forked();
    initialise();
  }

  c10::DeviceIndex deviceCount() const override {
    return device_count();
  }

  c10::DeviceIndex getCurrentDevice() const override {
    return current_device();
  }

  void setCurrentDevice(c10::DeviceIndex index) const override {
    set_current_device(index);
  }

  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    const auto before = current_device();
    set_current_device(index);
    return before;
  }

  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    const auto before = current_device();
    if (index >= 0) {
      set_current_device(index);
    }
    return before;
  }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    return default_generator(checked_index(device_at(index)));
  }

  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    return new_generator(checked_index(device_at(index)));
  }

  at::Device getDeviceFromPtr(void* data) const override {
    return device_at(device_of_pointer(data));
  }

  bool isPinnedPtr(const void* data) const override {
    return is_pinned_pointer(data);
  }

  at::Allocator* getPinnedMemoryAllocator() const override {
    return pinned_allocator();
  }

  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t size) const override {
    const c10::DeviceGuard guard(storage.device());
    auto fresh = device_allocator()->allocate(size);
    const size_t kept = std::min(storage.nbytes(), size);
    if (kept > 0) {
      device_allocator()->copy_data(fresh.get(), storage.data(), kept);
    } else if (storage.data() != nullptr) {
      set_allocation_format(fresh.get(), allocation_format(storage.data()));
    }
    storage.set_data_ptr_noswap(std::move(fresh));
    storage.set_nbytes(size);
  }
};

const bool registered = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks());
  return true;
}();

} // namespace
} // namespace spyre

namespace {
// Storages made without a tensor ask this registry.
struct RegisterAllocator {
  RegisterAllocator() {
    c10::SetAllocator(c10::DeviceType::PrivateUse1, spyre::device_allocator());
  }
} register_allocator;
} // namespace
