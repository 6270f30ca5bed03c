"""What PyTorch's compiler trips over is a refusal with a rule, the operator and the module (D6.1); what ours trips over
is a defect, with the place in our code, and no verdict on the model."""

from __future__ import annotations

import errno
import pickle

import pytest
import torch
from torch import nn
from torch._inductor.exc import InductorError

from hf_adapters.validation.faults import fault_behind
from hf_adapters.validation.types import Validation
from hf_adapters.validation.unsupported import unsupported_in
from hf_adapters.validation.verdicts import failed_run
from spyre_backend.compiler import lowering, post_grad
from spyre_backend.compiler.errors import refuse
from spyre_backend.compiler.scheduling import SpyreScheduling
from spyre_backend.errors import SpyreError, SpyreInternalError, SpyreUnsupported

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


def raised(kind, function, *tensors):
    with torch._inductor.config.patch(fx_graph_cache=False), torch.no_grad(), pytest.raises(SpyreError) as caught:
        torch.compile(function, backend="inductor", dynamic=False)(*tensors)
    assert isinstance(caught.value, kind), repr(caught.value)
    return caught.value


def ones():
    return torch.ones(4, 64, device="spyre").half()


def test_a_lowering_of_pytorch_that_fails_is_a_refusal(monkeypatch):
    stock = torch._inductor.lowering.lowerings[aten.amax.default]
    monkeypatch.setitem(lowering.LOWERINGS, aten.amax.default, lambda x, *_: stock(x, 7))
    refusal = raised(SpyreUnsupported, Layer(), ones())
    assert (refusal.rule, refusal.op) == ("lowering-failed", "aten.amax.default")
    assert refusal.detail == "AssertionError"
    assert refusal.module_path == "inner (Largest)"
    assert "amax" in (refusal.source_line or "")


def test_a_lowering_of_ours_that_fails_is_a_defect(monkeypatch):
    def fails(*args, **kwargs):
        raise AssertionError("not a TensorBox")

    monkeypatch.setitem(lowering.LOWERINGS, aten.amax.default, fails)
    fault = raised(SpyreInternalError, Layer(), ones())
    assert (fault.op, fault.module_path) == ("aten.amax.default", "inner (Largest)")
    assert fault.place.startswith("spyre_backend.compiler.lowering:")
    assert "not a TensorBox" in fault.detail
    assert "amax" in (fault.source_line or "")
    again = pickle.loads(pickle.dumps(fault))
    assert str(fault).startswith(str(again))
    assert again.fields() == fault.fields()


def test_an_operator_check_that_fails_is_a_defect(monkeypatch):
    monkeypatch.setattr(post_grad, "_check_dtypes", lambda node: {}["val"])
    fault = raised(SpyreInternalError, Layer(), ones())
    assert (fault.op, fault.detail) == ("aten.add.Tensor", "KeyError: 'val'")


def test_a_stage_that_fails_while_it_handles_a_refusal_is_a_defect(monkeypatch):
    def fails(self, nodes):
        try:
            raise refuse("span-limit", op="amax")
        except SpyreUnsupported:
            return {}["buf7"]

    monkeypatch.setattr(SpyreScheduling, "_exported", fails)
    fault = raised(SpyreInternalError, Layer(), ones())
    assert "SpyreScheduling._compile" in fault.place
    found = failed_run(Validation(verdict="native", reason=""), fault)
    assert (found.verdict, found.rule, found.op) == ("crashed", None, fault.op)
    assert unsupported_in(fault) is None


def test_a_full_disk_is_neither(monkeypatch):
    def fails(self, nodes):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(SpyreScheduling, "_exported", fails)
    with torch._inductor.config.patch(fx_graph_cache=False), pytest.raises(InductorError) as caught:
        torch.compile(Layer(), backend="inductor", dynamic=False)(ones())
    assert not isinstance(caught.value, SpyreError)
    assert fault_behind(caught.value) is not None
