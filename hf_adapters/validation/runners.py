"""Ways to execute a model for a validation.

`run_reference`, `run_floor` and `run_float64` give the stock values. A `Runner` executes the candidate: `Device`
compiles it for the device; `Simulated` runs the same patched model in the device's number format on the CPU, which
needs no compilation and is what the mutation suites use.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn

from hf_adapters.patching import patch_state
from hf_adapters.validation.float64 import in_float64
from hf_adapters.validation.floor import HALF, ON_DEVICE, device_format, load
from hf_adapters.validation.inputs import InputSet
from hf_adapters.validation.places import located, regions, trail
from hf_adapters.validation.recording import Pooling, Recording, record, repeated_layers
from hf_adapters.validation.unsupported import raised_by_device
from hf_adapters.validation.work import HostWork, Reads, device_work, host_reads, host_work


@dataclass(frozen=True, kw_only=True, slots=True)
class Execution:
    """What a runner did with the candidate."""

    recording: Recording
    fallbacks: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """(op, category) -> calls that fell back to the CPU; category is `lookup`, `integer` or `compute`."""
    launches: int | None = None
    """Device programs launched; None when the runner has no device."""
    computed_elsewhere: Mapping[str, int] = field(default_factory=dict)
    """Heavy computations done off the device or in another format -> calls."""
    simulated_us: float | None = None
    """Time of the launches on the simulated card, each with its dispatch; None when the runner has no device."""
    multiplications: int | None = None
    """Multiplications of matrix products on the device; None when the runner cannot tell."""
    products: Mapping[frozenset[int], int] = field(default_factory=dict)
    """The same by the sizes of both operands, where the runner sees them."""
    layers: int = 0
    """Repeated layers that were called at least once."""
    seconds: float = 0.0


class Runner(Protocol):
    """Executes a model, patched already, and must leave it as it was."""

    name: str
    dtype: torch.dtype
    """Of the parameters on the device: float16 or bfloat16; set by `in_dtype`."""

    def __call__(self, model: nn.Module, input_sets: Sequence[InputSet], pooling: Pooling) -> Execution:
        """Run `model` on each set; errors of the device (`SpyreUnsupported`) pass through."""
        ...


def run_reference(model: nn.Module, input_sets: Sequence[InputSet], pooling: Pooling) -> Recording:
    """Stock values in float32 on the CPU."""
    with torch.no_grad():
        return record(model, on_device(input_sets), layers=repeated_layers(model), pooling=pooling)


def on_device(input_sets: Sequence[InputSet]) -> list[InputSet]:
    """The sets that are executed, without those for float64 alone."""
    return [batch for batch in input_sets if batch.use != "float64"]


def run_float64(model: nn.Module, input_sets: Sequence[InputSet], pooling: Pooling) -> Recording:
    """Values in float64 arithmetic on the CPU; the model's weights stay float32."""
    refresh_derived(model)
    compared = [batch for batch in input_sets if batch.use != "device"]
    with in_float64():
        return record(model, compared, layers=repeated_layers(model), pooling=pooling)


def run_floor(
    model: nn.Module, input_sets: Sequence[InputSet], pooling: Pooling, dtype: torch.dtype = torch.float16
) -> Execution:
    """A stock model in the device's number format, without device or patch; its error against
    `run_reference` is the noise floor of `dtype`."""
    return in_dtype(Simulated(), dtype)(model, input_sets, pooling)


R = TypeVar("R", bound=Runner)


def in_dtype(runner: R, dtype: torch.dtype) -> R:
    """The same runner for parameters of another dtype; one that names none runs in float16."""
    if getattr(runner, "dtype", torch.float16) == dtype:
        return runner
    other = copy.copy(runner)
    other.dtype = dtype
    return other


class Simulated:
    """Runs a model in the device's number format on the CPU; counts heavy computation in any other format as done off
    the device."""

    name = "simulated"
    dtype = torch.float16

    def __call__(self, model: nn.Module, input_sets: Sequence[InputSet], pooling: Pooling) -> Execution:
        """See `Runner`."""
        started = time.perf_counter()
        narrow = half_copy(model, self.dtype)
        refresh_derived(narrow)
        for parameter in narrow.parameters():
            if parameter.dtype in HALF:
                loaded = load(parameter.data)
                parameter.data = loaded
                setattr(parameter, ON_DEVICE, getattr(loaded, ON_DEVICE, False))
        layers = repeated_layers(narrow)
        with device_format() as log:
            recording = record(narrow, on_device(input_sets), layers=layers, pooling=pooling)
        return Execution(
            recording=recording,
            computed_elsewhere={f"{op} in {dtype}": calls for (op, dtype), calls in log.off_format.items()},
            multiplications=log.products.total(),
            products=log.products,
            layers=_layers_called(recording, layers),
            seconds=time.perf_counter() - started,
        )


def half_copy(model: nn.Module, dtype: torch.dtype = torch.float16) -> nn.Module:
    """A deep copy with half-precision parameters, as a checkpoint loaded so has them; buffers outside the checkpoint
    (rotary frequencies) keep float32."""
    memo: dict[int, object] = {}
    for parameter in model.parameters():
        narrow = (
            nn.Parameter(parameter.detach().to(dtype), requires_grad=False)
            if parameter.is_floating_point()
            else parameter
        )
        memo[id(parameter)] = narrow
    twin = copy.deepcopy(model, memo)
    for module in twin.modules():
        for name, buffer in module.named_buffers(recurse=False):
            if buffer.is_floating_point() and name not in module._non_persistent_buffers_set:
                module._buffers[name] = buffer.to(dtype)
    return twin.eval()


def refresh_derived(model: nn.Module) -> None:
    """Recompute what a patch derived from the weights now, in ordinary arithmetic, and not during the run that is
    measured."""
    state = patch_state(model)
    if state is not None:
        with torch.no_grad():
            state.patcher.refresh()


def _layers_called(recording: Recording, layers: Mapping[str, nn.Module]) -> int:
    places = {key.partition("/")[2] for key in recording.values}
    return sum(path in places for path in layers)


class Device:
    """Compiles the model for the device with `hf_adapters.compile` and calls it there."""

    name = "device"
    dtype = torch.float16

    def __init__(
        self, *, adapters: Sequence[str] | None = None, release: str | None = None, watched: bool = False
    ) -> None:
        """`adapters` as `only` of `hf_adapters.compile`; an empty sequence compiles the stock model. `watched`: patches
        that nobody has reviewed may not fetch values from the device inside the forward (`host_reads`)."""
        self.adapters = adapters
        self.release = release
        self.watched = watched

    def __call__(self, model: nn.Module, input_sets: Sequence[InputSet], pooling: Pooling) -> Execution:
        """See `Runner`. The model is decompiled again, also after an error."""
        import hf_adapters
        from spyre_backend.emulator.profile import profile
        from spyre_backend.runtime.observed import launches as observed

        started = time.perf_counter()
        compiled = hf_adapters.compile(model, dtype=self.dtype, only=self.adapters, release=self.release)
        try:
            layers = repeated_layers(compiled)
            device = torch.spyre  # type: ignore[attr-defined]
            device.reset_fallback_counts()
            device.reset_launch_count()
            with (
                torch.no_grad(),
                host_work() as elsewhere,
                _located_refusals(compiled, elsewhere),
                device_work() as work,
                host_reads() as reads,
                observed() as ran,
            ):
                recording = record(compiled, on_device(input_sets), layers=layers, pooling=pooling)
            counts: dict[tuple[str, str], int] = dict(device.fallback_counts())
            launches = int(device.launch_count())
            simulated = profile(ran)
        finally:
            hf_adapters.decompile(model)
        return Execution(
            recording=recording,
            fallbacks=counts,
            launches=launches,
            computed_elsewhere=_elsewhere(elsewhere, reads if self.watched else Reads()),
            simulated_us=simulated.kernel_us + simulated.launch_us,
            multiplications=work.multiplications,
            layers=_layers_called(recording, layers),
            seconds=time.perf_counter() - started,
        )


def _elsewhere(compiled: HostWork, reads: Reads) -> dict[str, int]:
    """Signs of work on the CPU that no fallback counts."""
    found = {f"{op} on the CPU": calls for op, calls in compiled.operations.items()}
    return {**found, "values fetched from the device inside the forward": reads.inside} if reads.inside else found


@contextmanager
def _located_refusals(model: nn.Module, elsewhere: HostWork) -> Iterator[None]:
    """Raise what the device refuses with its path from the model's root, and tell of work on the CPU, for which a
    compiler may be missing, where another error hides it."""
    with trail(regions(model)) as followed:
        try:
            yield
        except Exception as error:
            raised = raised_by_device(error)
            if raised is None and elsewhere.operations:
                moved = ", ".join(elsewhere.operations)
                raise RuntimeError(f"a part of the model is compiled for the CPU ({moved}): {error}") from error
            if raised is None:
                raise
            raise located(raised, followed.innermost) from error


def weights_digest(model: nn.Module) -> str:
    """Hash of every tensor that `state_dict` saves, with names, shapes and dtypes."""
    import hashlib

    digest = hashlib.blake2b(digest_size=16)
    seen: dict[tuple[int, int], str] = {}
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        key = (tensor.untyped_storage().data_ptr(), tensor.storage_offset())
        if key in seen:
            digest.update(seen[key].encode())
            continue
        seen[key] = name
        digest.update(_bytes_of(tensor))
    return digest.hexdigest()


def _bytes_of(tensor: Tensor) -> memoryview:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return memoryview(flat.view(torch.uint8).numpy())  # type: ignore[arg-type]
