"""torch.compile on device tensors: values, refusals with their place, programs as data."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from spyre_backend import capabilities, compiler
from spyre_backend.compiler import stages
from spyre_backend.errors import SpyreUnsupported
from spyre_backend.program import Program


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    torch.spyre.reset_fallback_counts()


def half(*size, seed=0):
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)).half()


def on_device(function, *tensors):
    with torch.no_grad():
        return torch.compile(function, backend="inductor", dynamic=False)(*(t.to("spyre") for t in tensors))


def attention(q, k, v):
    return torch.softmax(q @ k.transpose(-1, -2) * 0.125, -1) @ v


CASES = {
    "linear": (lambda x, w, b: F.linear(x, w, b), [half(2, 64, 128), half(192, 128, seed=1), half(192, seed=2)]),
    "attention": (attention, [half(2, 4, 64, 64), half(2, 4, 64, 64, seed=1), half(2, 4, 64, 64, seed=2)]),
    "split and merge heads": (
        lambda x: x.view(2, 64, 6, 64).transpose(1, 2).contiguous().transpose(1, 2).reshape(2, 64, 384) + 1,
        [half(2, 64, 384)],
    ),
    "layer norm": (lambda x, w, b: F.layer_norm(x, (128,), w, b), [half(8, 128), half(128, seed=1), half(128, seed=2)]),
    "rms norm in float32": (
        lambda x: (x.float() * torch.rsqrt((x.float() * x.float()).mean(-1, keepdim=True) + 1e-6)).half(),
        [half(8, 128)],
    ),
    "transposed operand": (lambda a, b: a + b.t(), [half(100, 100), half(100, 100, seed=1)]),
    "cat inside a stick": (lambda a, b: torch.cat([a, b], -1) * 2, [half(4, 32), half(4, 32, seed=1)]),
    "slice scatter": (lambda x, s: torch.slice_scatter(x, s, 0, 16, 33), [half(48, 4, 128), half(17, 4, 128, seed=1)]),
    "masked mean": (
        lambda h, m: (h * m[:, :, None]).sum(1) / m.sum(1, keepdim=True),
        [half(4, 64, 128), torch.ones(4, 64).half()],
    ),
    "grouped heads": (
        lambda q, k: q @ k[:, :, None].expand(2, 2, 2, 64, 64).reshape(2, 4, 64, 64).transpose(-1, -2),
        [half(2, 4, 64, 64), half(2, 2, 64, 64, seed=1)],
    ),
    "matmul over merged heads": (
        lambda x, w: x.transpose(1, 2).reshape(2, 64, 384) @ w,
        [half(2, 6, 64, 64), half(384, 64, seed=1)],
    ),
    "where and comparison": (lambda x: torch.where(x > 0, x, x * 0.5), [half(8, 64)]),
    "largest values": (lambda x: torch.topk(x, 5)[0], [half(4, 128)]),
    "view with an offset": (lambda x: x[1:, 64:] * 2, [half(4, 256)]),
}


@pytest.mark.parametrize("name", CASES)
def test_values_equal_the_cpu_within_the_number_format(name):
    function, tensors = CASES[name]
    got = on_device(function, *tensors).cpu().float()
    want = function(*(t.float() for t in tensors))
    assert got.shape == want.shape
    assert torch.isfinite(got).all()
    assert (got - want).abs().max() <= 2**-7 * want.abs().max().clamp(min=1)
    assert not torch.spyre.fallback_counts()


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(64, 64)

    def forward(self, x):
        return torch.pow(self.inner(x), 3.0)


class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Block()

    def forward(self, x):
        return self.block(x) + 1


def test_a_refusal_names_op_rule_shapes_module_and_source_line():
    model = Outer().half().to("spyre")
    with pytest.raises(SpyreUnsupported) as caught, torch.no_grad():
        torch.compile(model, backend="inductor", dynamic=False)(half(4, 64).to("spyre"))
    refusal = caught.value
    assert (refusal.op, refusal.rule) == ("aten.pow.Tensor_Scalar", "pow-scalar-exponent")
    assert refusal.shapes == ((4, 64),)
    assert refusal.dtypes == ("float16",)
    assert "block" in refusal.module_path
    assert "torch.pow(self.inner(x), 3.0)" in refusal.source_line
    assert __file__ in refusal.source_line
    assert str(refusal).startswith("Spyre backend does not support: ")
    assert refusal.hint
    copy = pickle.loads(pickle.dumps(refusal))
    assert copy.fields() == refusal.fields()


def test_a_refusal_keeps_its_type_where_the_cache_is_off():
    with torch._inductor.config.patch(fx_graph_cache=False), pytest.raises(SpyreUnsupported):
        on_device(lambda a, b: a @ b, half(4, 65), half(65, 64))


def test_the_release_decides():
    function = lambda x: torch.pow(x, 3.0)  # noqa: E731
    with pytest.raises(SpyreUnsupported):
        on_device(function, half(4, 64))
    with capabilities.use("2026.09"):
        torch._dynamo.reset()
        got = on_device(function, half(4, 64))
    assert torch.allclose(got.cpu().float(), half(4, 64).float() ** 3, rtol=2**-7, atol=1e-3)


def test_host_operators_run_counted_and_break_the_bundle():
    torch.spyre.reset_launch_count()
    got = on_device(lambda x: torch.sin(x * 2) + 1, half(4, 64))
    assert torch.allclose(got.cpu().float(), torch.sin(half(4, 64).float() * 2) + 1, atol=2**-7)
    assert [category for _, category in torch.spyre.fallback_counts()] == ["compute"]
    assert torch.spyre.launch_count() == 2


def programs(function, *tensors):
    with stages.recording() as collected, torch._inductor.config.patch(fx_graph_cache=False):
        on_device(function, *tensors)
    return [Program.from_json(s.text) for s in collected if s.stage == "program"]


def test_programs_are_data_and_equal_ones_share_a_digest():
    (first,) = programs(attention, *(half(1, 2, 64, 64),) * 3)
    torch._dynamo.reset()
    (second,) = programs(attention, *(half(1, 2, 64, 64, seed=5),) * 3)
    assert Program.from_json(first.to_json()) == first
    assert first.digest == second.digest
    assert first.release == capabilities.current().release
    torch._dynamo.reset()
    (other,) = programs(attention, *(half(1, 4, 64, 64),) * 3)
    assert other.digest != first.digest


def test_every_operation_is_divided_over_the_cores():
    (program,) = programs(lambda x, w: F.gelu(F.linear(x, w)), half(64, 128), half(256, 128, seed=1))
    for op in program.ops:
        cores = 1
        for dim, pieces in zip(op.dims, op.split, strict=True):
            assert dim % pieces == 0
            cores *= pieces
        assert 1 < cores <= capabilities.current().limits.num_cores


def test_temporaries_stay_in_the_scratchpad_without_overlap():
    (program,) = programs(lambda x: (x.exp() * 2 + x).tanh(), half(64, 128))
    resident = [t for t in program.tensors if t.lx_address is not None]
    assert resident
    assert all(t.kind == "temp" for t in resident)
    limit = capabilities.current().limits.lx_usable_bytes
    assert all(0 <= t.lx_address < limit for t in resident)


def test_restickify_is_inserted_where_a_matmul_needs_another_stick():
    (program,) = programs(lambda a, b: a @ b.t(), half(64, 128), half(64, 128, seed=1))
    assert [op.name for op in program.ops] == ["ReStickifyOpHBM", "batchmatmul"]


def test_explain_shows_every_stage_in_order():
    model = torch.compile(lambda x: torch.softmax(x, -1), backend="inductor", dynamic=False)
    shown = [stage for stage, _ in compiler.explain_model(lambda x: model(x), {"x": half(4, 64).to("spyre")})]
    assert shown == list(stages.STAGES)


def test_other_devices_keep_pytorchs_own_lowerings():
    x = torch.randn(4, 64)
    with torch.no_grad():
        got = torch.compile(lambda t: torch.pow(F.layer_norm(t, (64,)), 3.0), backend="aot_eager")(x)
    assert torch.allclose(got, F.layer_norm(x, (64,)) ** 3, atol=1e-5)
