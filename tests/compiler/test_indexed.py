"""Rows stored by an index: right at device position 0, refused anywhere else (D2.4, D5.4, D6.9)."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from spyre_backend.compiler import explain_model
from spyre_backend.emulator.executors import executor
from spyre_backend.errors import SpyreRuntimeError, SpyreUnsupported
from tests.compiler.graphs import Builder

PLACES = torch.tensor([5, 0, 3])


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()


def half(*size: int, seed: int = 0) -> Tensor:
    return (torch.randint(-256, 256, size, generator=torch.Generator().manual_seed(seed)) / 64).half()


def stored(cache, places, rows):
    return cache.index_copy(1, places, rows) * 2


def stored_in_place(cache, places, rows):
    cache.index_copy_(1, places, rows)
    return cache * 2


def stored_then_old_content(cache, places, rows):
    old = cache[:, :2]
    cache.index_copy_(1, places, rows)
    return cache + 1, old * 1


def computed_rows(cache, places, rows):
    cache.index_copy_(1, places, (rows * 2).transpose(0, 1).contiguous().transpose(0, 1))
    return cache.sum(-1)


FORMS = (stored, stored_in_place, stored_then_old_content, computed_rows)
SIZES = {"whole sticks": (3, 8, 128), "odd": (2, 7, 100), "rank 4": (2, 6, 3, 64), "one outer row": (1, 9, 64)}


@pytest.mark.parametrize("name", ["fast", "exact"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_rows_at_device_position_0(form, size, name):
    tensors = half(*size), PLACES, half(size[0], len(PLACES), *size[2:], seed=1)
    on_cpu, on_device = ([t.clone() for t in tensors], [t.to("spyre") for t in tensors])
    want = form(*on_cpu)
    torch.spyre.reset_fallback_counts()
    with executor(name), torch.no_grad():
        got = torch.compile(form, backend="inductor", dynamic=False)(*on_device)
    assert not torch.spyre.fallback_counts()
    pairs = zip((want,) if isinstance(want, Tensor) else want, (got,) if isinstance(got, Tensor) else got, strict=True)
    for w, g in (*pairs, (on_cpu[0], on_device[0])):
        assert torch.allclose(g.cpu().float(), w.float(), atol=2**-5, rtol=2**-8)


def operations(function, *tensors):
    """Names of the device operations that ``function`` compiles to."""
    compiled = torch.compile(function, dynamic=False)
    stages = explain_model(lambda **named: compiled(*named.values()), dict(enumerate_names(tensors)))
    lines = [line for stage, text in stages if stage == "work-division" for line in text.splitlines()[1:]]
    return [line.split("[")[0].split()[-1] for line in lines]


def enumerate_names(tensors):
    return ((f"x{position}", tensor) for position, tensor in enumerate(tensors))


def test_a_cache_written_in_place_is_not_copied():
    tensors = [t.to("spyre") for t in (half(3, 8, 128), PLACES, half(3, 3, 128, seed=1))]
    assert operations(stored_in_place, *tensors).count("identity") == 0
    assert operations(stored, *tensors).count("identity") == 1


REFUSED = {
    "outermost dim (#3705)": (lambda c, i, r: c.index_copy(0, i, r), (8, 4, 64), (3, 4, 64)),
    "stick": (lambda c, i, r: c.index_copy(2, i, r), (4, 4, 64), (4, 4, 3)),
    "matrix": (lambda c, i, r: c.index_copy(0, i, r), (8, 64), (3, 64)),
    "vector": (lambda c, i, r: c.index_copy(0, i, r), (64,), (3,)),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_other_dims_are_refused(case):
    function, size, rows = case
    tensors = [t.to("spyre") for t in (half(*size), PLACES, half(*rows))]
    with pytest.raises(SpyreUnsupported) as refusal, torch.no_grad():
        torch.compile(function, backend="inductor", dynamic=False)(*tensors)
    assert refusal.value.rule == "indirect-access"


@pytest.mark.parametrize("name", ["fast", "exact"])
def test_an_index_outside_is_an_error(name):
    tensors = [t.to("spyre") for t in (half(3, 8, 64), torch.tensor([0, 8, 1]), half(3, 3, 64))]
    with executor(name), torch.no_grad(), pytest.raises(SpyreRuntimeError, match="index 8"):
        torch.compile(stored, backend="inductor", dynamic=False)(*tensors).cpu()


def gathered(rows: int) -> Builder:
    """Two rows of a table [rows, 64, 8, 128] by an int32 index."""
    builder = Builder()
    table, index = builder.input(rows, 64, 8, 128), builder.input(2, dtype="int32")
    builder.op(
        "gather", (2, 64, 8, 128), builder.read(table, (None, 1, 2, 3)), builder.read(index, (0, None, None, None))
    )
    attrs = {"index_stride": 64 * 8 * 128, "index_extent": rows}
    builder.graph.ops[-1] = replace(builder.graph.ops[-1], attrs=attrs)
    return builder


def test_a_gather_from_a_gigabyte_is_refused():
    """D6.9: a cache of 8192 blocks is rejected, 7168 are the ceiling."""
    assert len(gathered(7168).divided()) == 1
    with pytest.raises(SpyreUnsupported) as refusal:
        gathered(8192).divided()
    assert refusal.value.rule == "span-limit"
