// Random numbers of the device: made on the host, from a state of its own.
#pragma once

#include <ATen/core/Generator.h>

namespace spyre {

const at::Generator& default_generator();
at::Generator new_generator();
// The CPU generator that holds the state of `generator`; the default one when
// it is undefined, `generator` itself when it already is a CPU generator.
at::Generator host_generator(const std::optional<at::Generator>& generator);

} // namespace spyre
