#include "generator.h"

#include "devices.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>

#include <mutex>
#include <vector>

namespace spyre {
namespace {

// CPU kernels refuse generators of another device, so the state lives in a CPU
// generator that this class only wraps.
struct GeneratorImpl final : c10::GeneratorImpl {
  GeneratorImpl(c10::DeviceIndex index, at::Generator host)
      : c10::GeneratorImpl(
            device_at(index),
            c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        host(std::move(host)) {}

  void set_current_seed(uint64_t seed) override {
    host.set_current_seed(seed);
  }
  void set_offset(uint64_t offset) override {
    host.set_offset(offset);
  }
  uint64_t get_offset() const override {
    return host.get_offset();
  }
  uint64_t current_seed() const override {
    return host.current_seed();
  }
  uint64_t seed() override {
    return host.seed();
  }
  void set_state(const c10::TensorImpl& state) override {
    host.unsafeGetGeneratorImpl()->set_state(state);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return host.unsafeGetGeneratorImpl()->get_state();
  }
  GeneratorImpl* clone_impl() const override {
    return new GeneratorImpl(device().index(), host.clone());
  }

  at::Generator host;
};

} // namespace

const at::Generator& default_generator(c10::DeviceIndex index) {
  static const auto* generators = [] {
    auto* made = new std::vector<at::Generator>();
    for (int i = 0; i < device_count(); ++i) {
      made->push_back(new_generator(static_cast<c10::DeviceIndex>(i)));
    }
    return made;
  }();
  return generators->at(static_cast<size_t>(index));
}

at::Generator new_generator(c10::DeviceIndex index) {
  return at::make_generator<GeneratorImpl>(index, at::detail::createCPUGenerator());
}

at::Generator host_generator(const std::optional<at::Generator>& generator) {
  const at::Generator& chosen =
      generator.has_value() && generator->defined() ? *generator : default_generator(current_device());
  if (chosen.device().is_cpu()) {
    return chosen;
  }
  return static_cast<GeneratorImpl*>(chosen.unsafeGetGeneratorImpl())->host;
}

DefaultGeneratorSwap::DefaultGeneratorSwap() {
  exchange();
}

DefaultGeneratorSwap::~DefaultGeneratorSwap() {
  exchange();
}

void DefaultGeneratorSwap::exchange() {
  static std::mutex mutex;
  std::lock_guard<std::mutex> lock(mutex);
  auto device = host_generator(std::nullopt);
  auto host = at::detail::getDefaultCPUGenerator();
  const auto device_state = device.get_state();
  device.set_state(host.get_state());
  host.set_state(device_state);
}

} // namespace spyre
