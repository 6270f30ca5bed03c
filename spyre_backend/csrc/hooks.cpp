// What PyTorch asks of a PrivateUse1 backend outside of operators.
#include "generator.h"
#include "memory.h"
#include "state.h"

#include <ATen/detail/PrivateUse1HooksInterface.h>
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
    return 1;
  }

  c10::DeviceIndex getCurrentDevice() const override {
    return 0;
  }

  void setCurrentDevice(c10::DeviceIndex index) const override {
    TORCH_CHECK(index == 0, "Spyre: invalid device index ", int(index), "; there is one device");
  }

  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    setCurrentDevice(index);
    return 0;
  }

  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override {
    return 0;
  }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    return default_generator();
  }

  at::Generator getNewGenerator(c10::DeviceIndex) const override {
    return new_generator();
  }

  at::Device getDeviceFromPtr(void* data) const override {
    TORCH_CHECK(is_device_pointer(data), "Spyre: ", data, " is not an address in device memory");
    return at::Device(at::DeviceType::PrivateUse1, 0);
  }

  bool isPinnedPtr(const void*) const override {
    return false;
  }

  at::Allocator* getPinnedMemoryAllocator() const override {
    TORCH_CHECK(
        false,
        "Spyre backend does not support pinned host memory (D3.1): copies are staged by "
        "the runtime. Leave out pin_memory.");
  }

  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t size) const override {
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
