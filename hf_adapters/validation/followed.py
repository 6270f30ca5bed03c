"""Whether a patched model follows its weights: what an adapter computed from them once is wrong after training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from hf_adapters.validation import metrics
from hf_adapters.validation.functions import Patch
from hf_adapters.validation.inputs import InputSet
from hf_adapters.validation.runners import run_float64
from hf_adapters.validation.types import Check, Thresholds

NAME = "changed weights are seen"
_LARGEST_CHANGE = 0.25


def follows_weights(model: nn.Module, patch: Patch, batch: InputSet, thresholds: Thresholds) -> Check:
    """Change every parameter of a patched model and compare it with the stock one that holds the same, in float64.

    Args:
        model: stock, float32, on the CPU; patched and restored inside, its weights bit by bit.
        patch: context manager that patches the model.
        batch: the inputs.
        thresholds: `equivalence` is the limit.
    """
    with _restored(model):
        with patch(model) as candidate:
            _change(candidate)
            ours = run_float64(candidate, [batch], "mean")
        stock = run_float64(model, [batch], "mean")
    worst: dict[str, float] = {}
    for key, right in stock.values.items():
        got = ours.values.get(key)
        same = got is not None and got.shape == right.shape
        errors = metrics.vector_errors(got, right, batch.valid) if got is not None and same else None
        worst[key] = float("inf") if errors is None else float(errors.nan_to_num(nan=float("inf")).amax())
    limits = metrics.propagated(worst, thresholds.equivalence, thresholds.equivalence_growth)
    where = max(worst, key=lambda key: worst[key] / limits[key])
    return Check(name=NAME, passed=worst[where] <= limits[where], where=where, value=worst[where], limit=limits[where])


def _change(model: nn.Module) -> None:
    """Scale each parameter by a factor of its own, in place, as an optimizer does."""
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters(), start=1):
            if parameter.is_floating_point():
                parameter.mul_(1.0 + _LARGEST_CHANGE * ((number * 0.618) % 1.0))


@contextmanager
def _restored(model: nn.Module) -> Iterator[None]:
    kept = [(parameter, parameter.detach().clone()) for parameter in model.parameters()]
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter, value in kept:
                parameter.copy_(value)
