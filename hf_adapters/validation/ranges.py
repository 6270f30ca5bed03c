"""The range pass: how large a model's weights and values get, and which 16-bit format follows from that.

Both formats are held as DL16 on the device (D1.6), which reaches 8.57e9 (D1.5); they differ on the host and in what
the model's own code makes of its dtype. float16 has three more fraction bits and ends at 65504: a larger weight cannot
be converted, a larger value overflows wherever it is brought to the host as float16, and code such as that of T5 bounds
it. bfloat16 has no such end.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from hf_adapters._placement import FP16_MAX
from hf_adapters.errors import WeightRangeError
from hf_adapters.validation import streaming
from hf_adapters.validation.inputs import InputSet
from hf_adapters.validation.recording import first_tensor
from hf_adapters.validation.types import Precision
from spyre_backend.capabilities import current

HalfName = Literal["float16", "bfloat16"]
DTYPES: dict[HalfName, torch.dtype] = {"float16": torch.float16, "bfloat16": torch.bfloat16}

FP16_SMALLEST = 2.0**-14
"""Smallest normal float16; what is below is halved by each copy to the device (D1.5)."""

_CHUNK = 1 << 22
_SAMPLE = 1 << 16
_MASKED = 1e30
"""From here on a value is the fill of a mask: float32's minimum, mostly."""


@dataclass
class _Extreme:
    value: float = 0.0
    where: str = ""

    def note(self, value: float, where: str) -> None:
        if value > self.value:
            self.value, self.where = value, where


@dataclass
class Ranges:
    """What the range pass found; largest absolute values with their places."""

    weight: _Extreme = field(default_factory=_Extreme)
    value: _Extreme = field(default_factory=_Extreme)
    """Of the outputs of all modules and the inputs of those without children."""
    crossing: _Extreme = field(default_factory=_Extreme)
    """Of what goes from the host to the device or back: rows of embedding tables, results of the model."""
    elements: int = 0
    exact_in: set[HalfName] = field(default_factory=lambda: set(DTYPES))
    """Formats that hold every weight exactly."""
    rounded: dict[HalfName, float] = field(default_factory=dict)
    """Weights that a format does not hold exactly, by format; estimated from a sample of each tensor."""
    tiny: float = 0.0
    """Weights other than zero below `FP16_SMALLEST`, by the same sample."""

    @property
    def checkpoint(self) -> Literal["float16", "bfloat16", "float32"]:
        """The narrowest format that holds every weight exactly: the format of the checkpoint, as far as it matters."""
        return next((name for name in ("bfloat16", "float16") if name in self.exact_in), "float32")

    def add_weight(self, weight: Tensor, where: str) -> None:
        """Take one float32 tensor into account."""
        flat = weight.detach().reshape(-1)
        for part in torch.split(flat, _CHUNK):
            self.weight.note(_largest(part), where)
            for name in tuple(self.exact_in):
                if bool(_off(part, DTYPES[name]).any()):
                    self.exact_in.discard(name)
        sample = flat[:: max(1, flat.numel() // _SAMPLE)]
        share = flat.numel() / max(1, sample.numel())
        self.elements += flat.numel()
        for name, dtype in DTYPES.items():
            self.rounded[name] = self.rounded.get(name, 0.0) + share * float(_off(sample, dtype).sum())
        self.tiny += share * float(((sample != 0) & (sample.abs() < FP16_SMALLEST)).sum())


def measure(model: nn.Module, input_sets: Sequence[InputSet]) -> Ranges:
    """Run a stock float32 model on the CPU and look at its weights and at what its modules take and give.

    Args:
        model: stock, in evaluation mode; one that carries a stream of layers is measured with all of them.
        input_sets: batches to run.
    """
    found = Ranges()
    # A forward may change a model (BigBird leaves its sparse attention at short inputs), so a twin with the same
    # parameters is run.
    model = copy.deepcopy(model, {id(parameter): parameter for parameter in model.parameters()})
    stream = streaming.stream_of(model)
    streamed = () if stream is None else tuple(f"{stream.path}.{kind}." for kind in sorted(set(stream.kinds)))
    for path, parameter in model.named_parameters():
        if parameter.is_floating_point() and not path.startswith(streamed or ("\0",)):
            found.add_weight(parameter, path)
    calls = [{key: value.clone() for key, value in batch.kwargs.items()} for batch in input_sets]
    with torch.no_grad(), _watched(model, found):
        if stream is not None:
            streaming.run(model, calls, _layer_by_layer(model, stream, found))
        for call in calls if stream is None else ():
            model(**call)
    return found


def choose(model: nn.Module, input_sets: Sequence[InputSet], forced: torch.dtype | None = None) -> Precision:
    """The format in which a model is validated, with the figures that decided.

    Args:
        model: stock, float32, on the CPU, in evaluation mode.
        input_sets: batches of the range pass.
        forced: float16 or bfloat16 when the caller decides; the ranges are measured all the same.

    Raises:
        WeightRangeError: float16 is forced and a weight does not fit into it.
    """
    try:
        ranges = measure(model, input_sets)
    except Exception as error:  # a forward may raise anything, and the attempts that follow will tell of it
        dtype = "float16" if forced is None else _name_of(forced)
        reason = f"no range pass, the stock model fails on the CPU: {type(error).__name__}"
        return Precision(dtype=dtype, forced=forced is not None, reason=reason)
    dtype, reason = _choice(ranges)
    if forced is not None:
        reason = f"asked for; by its ranges it would be {dtype}: {reason}"
        dtype = _name_of(forced)
        if dtype == "float16" and ranges.weight.value > FP16_MAX:
            raise WeightRangeError(
                f"{ranges.weight.where} holds values up to {ranges.weight.value:.3g}, beyond {FP16_MAX:.0f}, the "
                "largest float16; choose bfloat16, or leave the choice to the range pass"
            )
    return Precision(
        dtype=dtype,
        forced=forced is not None,
        reason=reason,
        checkpoint=ranges.checkpoint,
        largest_weight=ranges.weight.value,
        largest_weight_at=ranges.weight.where,
        largest_value=ranges.value.value,
        largest_value_at=ranges.value.where,
        largest_crossing=ranges.crossing.value,
        largest_crossing_at=ranges.crossing.where,
        rounded_share=ranges.rounded.get(dtype, 0.0) / max(1, ranges.elements),
        tiny_share=ranges.tiny / max(1, ranges.elements),
    )


def _name_of(dtype: torch.dtype) -> HalfName:
    return next(name for name, known in DTYPES.items() if known == dtype)


def _choice(ranges: Ranges) -> tuple[HalfName, str]:
    weight, value, crossing = ranges.weight, ranges.value, ranges.crossing
    limit = current().numerics.dl16_max
    largest = max(weight.value, value.value)
    beyond = f"; the device itself holds no more than {limit:.3g} (D1.5)" if largest > limit else ""
    if weight.value > FP16_MAX:
        reached = f"weights reach {weight.value:.3g} in {weight.where}"
    elif crossing.value > FP16_MAX:
        reached = f"what crosses to or from the host reaches {crossing.value:.3g} at {crossing.where}"
    elif value.value > FP16_MAX:
        reached = f"values reach {value.value:.3g} at {value.where}"
    else:
        reached = f"weights reach {weight.value:.3g}, values {value.value:.3g}"
        return "float16", f"{reached}: float16 holds them, with more fraction bits"
    return "bfloat16", f"{reached}, beyond {FP16_MAX:.0f}, the largest float16{beyond}"


def _largest(x: Tensor) -> float:
    if not x.numel():
        return 0.0
    low, high = (float(end) for end in torch.aminmax(x.detach()))
    largest = max(-low, high)
    if largest < _MASKED:
        return largest
    # Fills of masks, infinities and NaN are no range of the model; what they do is judged by the reference.
    kept = x[x.abs() < _MASKED]
    return float(kept.abs().amax()) if kept.numel() else 0.0


def _off(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Where a format of 16 bits does not hold a float32 value exactly."""
    if dtype == torch.bfloat16 and x.dtype == torch.float32 and x.is_contiguous():
        # The upper half of a float32 is a bfloat16.
        return x.view(torch.int32).bitwise_and(0xFFFF) != 0
    return x.to(dtype).to(x.dtype) != x


@contextmanager
def _watched(model: nn.Module, found: Ranges) -> Iterator[None]:
    """Note what every module gives, and what those without children take: products made between modules show there."""

    def watch(path: str, module: nn.Module) -> Callable[..., None]:
        where, leaf = path or type(module).__name__, not any(True for _ in module.children())
        crosses = isinstance(module, nn.Embedding) or module is model

        def note(_module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            tensors = list(_results(output)) if module is model else [first_tensor(output)]
            for tensor in tensors:
                size = _size(tensor)
                found.value.note(size, where)
                if crosses:
                    found.crossing.note(size, where)
            if leaf and args:
                found.value.note(_size(args[0]), f"the input of {where}")

        return note

    handles = [module.register_forward_hook(watch(path, module)) for path, module in model.named_modules()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _layer_by_layer(
    model: nn.Module, stream: streaming.LayerStream, found: Ranges
) -> Callable[[int, int, Tensor], None]:
    def note(call: int, layer: int, output: Tensor) -> None:
        found.value.note(_size(output), f"{stream.path}.{layer}")
        if call == 0:
            held = model.get_submodule(f"{stream.path}.{stream.kinds[layer]}")
            for name, parameter in held.named_parameters():
                found.add_weight(parameter, f"{stream.path}.{layer}.{name}")

    return note


def _size(value: Any) -> float:
    return _largest(value.detach()) if isinstance(value, Tensor) and value.is_floating_point() else 0.0


def _results(output: Any) -> Iterator[Tensor]:
    """What a caller reads of a model's output: vectors of tokens and of sentences, no caches."""
    if isinstance(output, Mapping):
        output = list(output.values())
    for item in output if isinstance(output, Sequence) else [output]:
        if isinstance(item, Tensor):
            yield item
