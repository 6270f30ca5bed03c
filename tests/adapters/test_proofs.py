"""Every adapter proves itself on its own examples: float64, on the CPU, against stock."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from hf_adapters.catalogue import catalogue
from hf_adapters.patching import patch_report, patch_with, unpatch
from hf_adapters.protocols import Adapter, Example
from hf_adapters.validation.float64 import in_float64
from spyre_backend import capabilities

CASES = [(adapter, example) for adapter in catalogue() for example in adapter.examples()]
IDS = [f"{adapter.name}-{example.name}" for adapter, example in CASES]


def tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors(item)


def release_of(adapter: Adapter) -> str:
    return adapter.releases[0] if adapter.releases else "2026.07"


@pytest.mark.parametrize(("adapter", "example"), CASES, ids=IDS)
def test_patched_equals_stock_in_float64(adapter: Adapter, example: Example) -> None:
    model, inputs = example.build(), example.inputs()
    with in_float64() if example.widened else torch.no_grad():
        stock = list(tensors(model(**inputs)))
        patch_with(model, [adapter], release=release_of(adapter))
        assert patch_report(model).sites, "the example does not contain what the adapter is for"
        patched = list(tensors(model(**inputs)))
        unpatch(model)
        undone = list(tensors(model(**inputs)))
    assert len(stock) == len(patched) > 0
    for before, after, again in zip(stock, patched, undone, strict=True):
        assert after.shape == before.shape
        assert after.dtype == before.dtype == torch.float64
        assert torch.isfinite(after).all()
        error = (after - before).abs().amax() / before.abs().amax().clamp(min=1e-300)
        assert error <= example.tolerance
        assert torch.equal(before, again)


def test_few_adapters_cover_the_census() -> None:
    """At most 13 that take a kind of operation wherever it occurs; the others name what they are written for."""
    import transformers

    general = [adapter.name for adapter in catalogue() if not adapter.architectures]
    assert len(general) <= 13, general
    for adapter in catalogue():
        assert set(adapter.architectures) <= set(transformers.CONFIG_MAPPING)


@pytest.mark.parametrize("adapter", catalogue(), ids=lambda adapter: adapter.name)
def test_adapter_says_what_it_is_for(adapter: Adapter) -> None:
    known = capabilities.load("2026.07")
    assert adapter.summary.endswith(".")
    assert adapter.examples(), "no example, no proof"
    for rule in adapter.rules:
        assert known.rule(rule) is not None
    assert set(adapter.releases or ()) <= set(capabilities.available())
