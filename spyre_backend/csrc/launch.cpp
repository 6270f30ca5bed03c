#include "launch.h"

#include "convert.h"
#include "failures.h"
#include "graphs.h"
#include "interpreter.h"
#include "state.h"
#include "timeline.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <torch/csrc/autograd/python_variable.h>

#include <cstring>

namespace py = pybind11;

namespace spyre {
namespace {

std::atomic<int64_t> launches{0};
std::atomic<bool> structure_only{false};

// A symbolic address: argument `i` of the program, not patched yet.
constexpr uint64_t kSymbolic = uint64_t{0xFFFF} << 48;
// An argument without memory.
constexpr uint64_t kNoMemory = uint64_t{0xFFFE} << 48;

at::Tensor flat_view(const ArgumentSpec& spec, void* device_address) {
  const auto options = at::TensorOptions().device(at::kCPU).dtype(
      is_coded(spec.dtype) ? at::kShort : spec.dtype);
  if (device_address == nullptr) {
    return at::empty({0}, options);
  }
  return at::for_blob(host_pointer(device_address), {spec.elements}).options(options).make_tensor();
}

} // namespace

struct Launcher::Call final : Task {
  Call(
      std::shared_ptr<Launcher> program,
      c10::DeviceIndex device,
      std::vector<const void*> addresses,
      std::vector<Block*> blocks)
      : program(std::move(program)),
        device(device),
        addresses(std::move(addresses)),
        pins(std::move(blocks)),
        threads(at::get_num_threads()) {}

  void run() override {
    program->run(*this);
  }

  bool computes() const override {
    return true;
  }

  std::shared_ptr<Launcher> program;
  c10::DeviceIndex device;
  std::vector<const void*> addresses;
  BlockPins pins;
  int threads;
};

bool ArgumentSpec::fits(const at::Tensor& tensor) const {
  if (!tensor.has_storage() || tensor.scalar_type() != dtype ||
      tensor.sizes() != at::IntArrayRef(sizes) || !has_memory(tensor)) {
    return false;
  }
  const auto given = tensor.strides();
  if (elements > 0) {
    for (size_t i = 0; i < sizes.size(); ++i) {
      if (sizes[i] > 1 && given[i] != strides[i]) {
        return false;
      }
    }
  }
  const int64_t offset = tensor.storage_offset();
  return per_stick == 0 || offset == 0 || (row > 0 ? offset % row : offset) % per_stick == 0;
}

Launcher::Launcher(
    std::string name,
    std::vector<ArgumentSpec> specs,
    py::object execute,
    bool honours_offset)
    : name_(std::move(name)), specs_(std::move(specs)), honours_offset_(honours_offset) {
  if (!execute.is_none()) {
    execute_ = new py::object(std::move(execute));
  }
}

Launcher::~Launcher() {
  for (const auto& blob : blobs_) {
    if (blob->device != nullptr) {
      free_program_bytes(blob->owner, blob->device, specs_.size() * sizeof(uint64_t));
    }
  }
  if (execute_ != nullptr && interpreter_is_usable()) {
    py::gil_scoped_acquire gil;
    delete execute_;
  }
}

bool Launcher::launch(const py::args& args) {
  check_not_forked();
  if (args.size() != specs_.size()) {
    return false;
  }
  auto device = current_device();
  std::vector<const void*> addresses;
  std::vector<Block*> blocks;
  addresses.reserve(args.size());
  blocks.reserve(args.size());
  for (size_t i = 0; i < specs_.size(); ++i) {
    PyObject* object = PyTuple_GET_ITEM(args.ptr(), static_cast<Py_ssize_t>(i));
    if (!THPVariable_Check(object)) {
      return false;
    }
    const auto& tensor = THPVariable_Unpack(object);
    if (tensor.device().type() != c10::DeviceType::PrivateUse1 || !specs_[i].fits(tensor) ||
        (i > 0 && tensor.device().index() != device)) {
      return false;
    }
    device = tensor.device().index();
    const auto& data = tensor.storage().data_ptr();
    const auto* base = static_cast<const char*>(data.get());
    if (specs_[i].elements == 0) {
      base = nullptr;
    }
    // A binder of old releases took the base of the storage (#3770).
    const auto offset = honours_offset_ ? tensor.storage_offset() * tensor.itemsize() : 0;
    addresses.push_back(base == nullptr ? nullptr : base + offset);
    blocks.push_back(base == nullptr ? nullptr : block_of(data));
  }
  auto call =
      std::make_unique<Call>(shared_from_this(), device, std::move(addresses), std::move(blocks));
  call->site = calling_site();
  const Cost cost{Engine::kCompute, clock_costs().launch + microseconds_, name_.c_str()};
  dispatch_launch(name_, static_cast<int64_t>(specs_.size() * sizeof(uint64_t)));
  count_launch();
  enqueue(current_stream(device), std::move(call), cost);
  return true;
}

void Launcher::run(Call& call) {
  Blob* blob = take_blob(call.device);
  try {
    AccessGuard guard;
    host_compute(call, *blob);
    transfer(*blob);
    compute(call, patched_addresses(call, *blob));
  } catch (...) {
    give_blob(call.device, blob);
    throw;
  }
  give_blob(call.device, blob);
}

// Step 1: the real address for each symbolic one.
void Launcher::host_compute(const Call& call, Blob& blob) const {
  for (size_t i = 0; i < call.addresses.size(); ++i) {
    const void* address = call.addresses[i];
    blob.host[i] = address == nullptr ? kNoMemory : address_word(address);
  }
}

// Step 2: into the program's region.
void Launcher::transfer(Blob& blob) const {
  if (!blob.host.empty()) {
    std::memcpy(
        host_pointer(blob.device), blob.host.data(), blob.host.size() * sizeof(uint64_t));
  }
}

// Step 3, prologue: the program's registers take the addresses from its region,
// which afterwards holds symbolic addresses again.
std::vector<void*> Launcher::patched_addresses(const Call& call, Blob& blob) const {
  std::vector<void*> addresses;
  addresses.reserve(specs_.size());
  auto* words = static_cast<uint64_t*>(host_pointer(blob.device));
  for (size_t i = 0; i < specs_.size(); ++i) {
    const uint64_t word = words[i];
    TORCH_CHECK(
        (word & kSymbolic) != kSymbolic,
        "Spyre runtime: program ",
        name_,
        " was started with the symbolic address of argument ",
        i);
    addresses.push_back(word == kNoMemory ? nullptr : address_from_word(call.device, word));
    words[i] = kSymbolic | i;
  }
  return addresses;
}

// Step 3, the program itself.
void Launcher::compute(Call& call, const std::vector<void*>& addresses) const {
  const auto& blocks = call.pins.blocks();
  if (execute_ != nullptr && !structure_only.load()) {
    if (at::get_num_threads() != call.threads) {
      at::set_num_threads(call.threads); // sums must not depend on who computes
    }
    keep_thread_state();
    py::gil_scoped_acquire gil;
    py::list views(addresses.size());
    py::list numbers(addresses.size());
    py::list generations(addresses.size());
    for (size_t i = 0; i < addresses.size(); ++i) {
      views[i] = py::cast(flat_view(specs_[i], addresses[i]));
      numbers[i] = py::int_(reinterpret_cast<uintptr_t>(addresses[i]));
      generations[i] = py::int_(blocks[i] == nullptr ? 0 : blocks[i]->generation.load());
    }
    (*execute_)(views, numbers, generations);
  }
  for (size_t i = 0; i < addresses.size(); ++i) {
    if (specs_[i].writes && addresses[i] != nullptr) {
      mark_written(blocks[i]);
    }
  }
}

Blob* Launcher::take_blob(c10::DeviceIndex device) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto& free = free_blobs_[static_cast<size_t>(device)];
  if (!free.empty()) {
    Blob* blob = free.back();
    free.pop_back();
    return blob;
  }
  auto blob = std::make_unique<Blob>();
  blob->owner = device;
  blob->host.resize(specs_.size());
  if (!specs_.empty()) {
    blob->device = static_cast<uint64_t*>(
        allocate_program_bytes(device, specs_.size() * sizeof(uint64_t)));
  }
  blobs_.push_back(std::move(blob));
  return blobs_.back().get();
}

void Launcher::give_blob(c10::DeviceIndex device, Blob* blob) {
  std::lock_guard<std::mutex> lock(mutex_);
  free_blobs_[static_cast<size_t>(device)].push_back(blob);
}

size_t Launcher::num_blobs() {
  std::lock_guard<std::mutex> lock(mutex_);
  return blobs_.size();
}

int64_t launch_count() {
  return launches.load();
}

void reset_launch_count() {
  launches.store(0);
}

void count_launch() {
  launches.fetch_add(1);
}

void skip_compute(bool skip) {
  structure_only.store(skip);
}

} // namespace spyre
