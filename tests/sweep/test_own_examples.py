"""Adapters that no accepted structure uses are left out of their own example."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hf_adapters
from hf_adapters.protocols import Adapter, Example
from hf_adapters.sweep import own_examples
from hf_adapters.sweep.own_examples import ExampleControl
from spyre_backend.errors import SpyreUnsupported

RELEASE = "2026.07"


class Cubed(nn.Module):
    """``x ** 3``, whose exponent the device takes no scalar for."""

    def forward(self, x: Tensor) -> Tensor:
        return x**3


class Doubled(nn.Module):
    """``x + x``, which the device has."""

    def forward(self, x: Tensor) -> Tensor:
        return x + x


def with_examples(*modules: type[nn.Module]) -> Adapter:
    adapter = next(found for found in hf_adapters.catalogue() if found.name == "functional_calls")
    x = torch.linspace(0.5, 2, 128, dtype=torch.float64).view(2, 64)
    examples = [Example(kind.__name__, lambda kind=kind: kind().eval(), lambda: {"x": x}) for kind in modules]
    return replace(adapter, examples=lambda: examples)


def test_an_example_is_lost_when_the_device_refuses_it_without_the_adapter() -> None:
    found = own_examples.example_control(with_examples(Doubled, Cubed), release=RELEASE)
    assert (found.example, found.outcome, found.rule, found.lost) == ("Cubed", "lost", "pow-scalar-exponent", True)


def test_an_example_that_runs_without_the_adapter_or_not_at_all_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = with_examples(Doubled)
    right = torch.linspace(0.5, 2, 128).view(2, 64) * 2
    refusal = SpyreUnsupported(op="aten.pow", rule="op-unsupported")

    def outcome(*results: Any) -> ExampleControl:
        answers = iter(results)
        monkeypatch.setattr(own_examples, "run_example", lambda *_: next(answers))
        return own_examples.example_control(adapter, release=RELEASE)

    assert outcome((right, None), (None, refusal)).lost
    without = outcome((right, None), (right * 1.1, None))
    assert (without.lost, without.rule) == (True, None)
    assert outcome((right, None), (None, RuntimeError("sizes differ"))).outcome == "unusable"
    assert outcome((right, None), (right, None)).outcome == "kept"
    assert outcome((None, refusal)).outcome == "unusable"
    wrong = outcome((right * 1.1, None))
    assert (wrong.outcome, "wrong with all adapters" in wrong.reason) == ("unusable", True)
    assert own_examples.example_control(with_examples(), release=RELEASE).outcome == "unusable"
