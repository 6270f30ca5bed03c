"""What a stage trips over is a refusal with a rule, the operator and the module, never PyTorch's own error (D6.1)."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from spyre_backend.compiler import lowering
from spyre_backend.compiler.scheduling import SpyreScheduling
from spyre_backend.errors import SpyreUnsupported

aten = torch.ops.aten


class Largest(nn.Module):
    def forward(self, x):
        return x.amax(-1)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Largest()

    def forward(self, x):
        return self.inner(x + 1)


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()


def refusal_of(function, *tensors):
    with torch._inductor.config.patch(fx_graph_cache=False), torch.no_grad(), pytest.raises(SpyreUnsupported) as caught:
        torch.compile(function, backend="inductor", dynamic=False)(*tensors)
    return caught.value


def test_a_lowering_that_fails(monkeypatch):
    def fails(*args, **kwargs):
        raise AssertionError("not a TensorBox")

    monkeypatch.setitem(lowering.LOWERINGS, aten.amax.default, fails)
    refusal = refusal_of(Layer(), torch.ones(4, 64, device="spyre").half())
    assert (refusal.rule, refusal.op) == ("lowering-failed", "aten.amax.default")
    assert "not a TensorBox" in refusal.detail
    assert refusal.module_path == "inner (Largest)"
    assert "amax" in (refusal.source_line or "")


def test_a_stage_that_fails(monkeypatch):
    def fails(self, nodes):
        raise KeyError("buf7")

    monkeypatch.setattr(SpyreScheduling, "_exported", fails)
    assert refusal_of(Layer(), torch.ones(4, 64, device="spyre").half()).rule == "lowering-failed"
