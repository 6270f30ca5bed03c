// Random numbers of the device: made on the host, from a state of its own.
#pragma once

#include <ATen/core/Generator.h>

namespace spyre {

const at::Generator& default_generator(c10::DeviceIndex index);
at::Generator new_generator(c10::DeviceIndex index);
// The CPU generator that holds the state of `generator`; the default one when
// it is undefined, `generator` itself when it already is a CPU generator.
at::Generator host_generator(const std::optional<at::Generator>& generator);

// While alive, the default CPU generator continues the device's sequence: some
// CPU kernels (native_dropout) draw from it and take no generator.
class DefaultGeneratorSwap {
 public:
  DefaultGeneratorSwap();
  ~DefaultGeneratorSwap();
  DefaultGeneratorSwap(const DefaultGeneratorSwap&) = delete;
  DefaultGeneratorSwap& operator=(const DefaultGeneratorSwap&) = delete;

 private:
  void exchange();
};

} // namespace spyre
