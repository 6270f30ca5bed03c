"""The first place where a candidate leaves the stock model: a layer, then a module inside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hf_adapters.validation import metrics
from hf_adapters.validation.float64 import in_float64
from hf_adapters.validation.floor import device_format
from hf_adapters.validation.functions import Patch
from hf_adapters.validation.inputs import InputSet
from hf_adapters.validation.recording import Recording, record, repeated_layers
from hf_adapters.validation.runners import half_copy, refresh_derived
from hf_adapters.validation.types import Thresholds


@dataclass(frozen=True, slots=True)
class Off:
    """A place that exceeds its limit."""

    batch: str
    """Name of the input set."""
    place: str
    error: float
    limit: float
    before: float | None
    """Error of the place before it, in order of computation."""


def first_off(
    batches: Sequence[InputSet], candidate: Recording, reference: Recording, limits: Mapping[str, float]
) -> Off | None:
    """The first place of `reference`, in order of computation, where the candidate's error exceeds its limit.

    Args:
        batches: the inputs of both recordings.
        candidate: values under test.
        reference: stock values.
        limits: largest relative error by key of `reference`.
    """
    before: float | None = None
    for key, stock in reference.values.items():
        name, _, place = key.partition("/")
        valid = next(batch.valid for batch in batches if batch.name == name)
        error = _largest(candidate.values.get(key), stock, valid)
        if not error <= limits[key]:
            return Off(name, place, error, limits[key], before)
        before = error
    return None


def floor_limits(
    floor: Recording, reference: Recording, thresholds: Thresholds, batches: Sequence[InputSet]
) -> dict[str, float]:
    """Accepted error by key: `floor_multiple` times the floor there."""
    limits = {}
    for key, stock in reference.values.items():
        valid = next(batch.valid for batch in batches if batch.name == key.partition("/")[0])
        errors = metrics.vector_errors(floor.values[key], stock, valid)
        errors = errors[errors.isfinite()]
        largest = float(errors.amax()) if errors.numel() else 0.0
        limits[key] = thresholds.floor_multiple * max(largest, thresholds.floor_minimum)
    return limits


def inside(
    model: nn.Module,
    batch: InputSet,
    apply: Patch,
    layer: str,
    thresholds: Thresholds,
    *,
    exact: bool,
    dtype: torch.dtype = torch.float16,
) -> Off | None:
    """The first module inside a layer whose own output is off; modules return before the modules around them.

    Args:
        model: stock.
        batch: inputs.
        apply: patches the model.
        layer: path of a repeated layer; any other place means the modules outside of all layers, and the first layer
            includes them.
        thresholds: the limits.
        exact: compare in float64; otherwise in the device's number format, in units of the floor.
        dtype: float16 or bfloat16, that of the parameters on the device.

    Returns:
        None when no module has an output of the stock shape that is off.
    """
    paths = _scope(model, layer)
    stock = _outputs(model, batch, paths, in_float64() if exact else torch.no_grad())
    if exact:
        limits = dict.fromkeys(stock.values, thresholds.equivalence)
    else:
        limits = floor_limits(_narrow_outputs(model, batch, paths, dtype), stock, thresholds, [batch])
    with apply(model) as candidate:
        ours = (
            _outputs(candidate, batch, paths, in_float64())
            if exact
            else _narrow_outputs(candidate, batch, paths, dtype)
        )
    comparable = {
        key: value
        for key, value in stock.values.items()
        if key in ours.values and ours.values[key].shape == value.shape
    }
    return first_off([batch], ours, Recording(comparable), limits)


def _scope(model: nn.Module, layer: str) -> list[str]:
    layers = repeated_layers(model)
    if layer in layers and layer != next(iter(layers)):
        return [path for path, _ in model.named_modules() if path.startswith(layer + ".")]
    # What is outside of all layers includes the embeddings, whose fault shows at the first layer.
    layers.pop(layer, None)
    return [
        path
        for path, _ in model.named_modules()
        if path and not any(path == p or path.startswith(p + ".") for p in layers)
    ]


def _narrow_outputs(model: nn.Module, batch: InputSet, paths: Sequence[str], dtype: torch.dtype) -> Recording:
    narrow = half_copy(model, dtype)
    refresh_derived(narrow)
    return _outputs(narrow, batch, paths, device_format())


def _outputs(
    model: nn.Module, batch: InputSet, paths: Sequence[str], arithmetic: AbstractContextManager[Any]
) -> Recording:
    """Outputs of the modules at `paths`, keyed in the order in which they returned."""
    modules = {path: module for path, module in model.named_modules() if path in set(paths)}
    order: list[str] = []
    handles = [m.register_forward_hook(lambda *_, p=p: order.append(f"{batch.name}/{p}")) for p, m in modules.items()]
    refresh_derived(model)
    try:
        with arithmetic:
            found = record(model, [batch], layers=modules, pooling="mean").values
    finally:
        for handle in handles:
            handle.remove()
    return Recording({key: found[key] for key in dict.fromkeys(order) if key in found})


def _largest(ours: Tensor | None, stock: Tensor, valid: Tensor) -> float:
    if ours is None or ours.dim() != stock.dim():
        return float("inf")
    ours = ours[tuple(slice(0, size) for size in stock.shape)]
    if ours.shape != stock.shape:
        return float("inf")
    errors = metrics.vector_errors(ours, stock, valid)
    return float(errors.nan_to_num(nan=float("inf")).amax()) if errors.numel() else 0.0
