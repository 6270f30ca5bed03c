"""Probes of reductions, normalisation and indexing: D5.3, D5.4, D2.4 and the matching lines of D6.9 and D6.11."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.conformance.probe import Probe, halves, integers

UNSUPPORTED = "unsupported:op-unsupported"
INDIRECT = "unsupported:indirect-access"
NORM_SHAPE = "unsupported:layer-norm-shape"


def _reduce(
    name: str,
    fn: Callable[..., object],
    expect: str = "ok",
    *,
    shape: tuple[int, ...] = (4, 64, 128),
    source: str = "D5.3",
) -> Probe:
    return Probe(name=name, fn=fn, inputs=lambda: halves(shape), expect=expect, source=source, tolerance=2e-2)


def _topk(k: int, expect: str, *, largest: bool = True) -> Probe:
    def inputs() -> tuple[Tensor, ...]:
        values = torch.randperm(512, generator=torch.Generator().manual_seed(3))[:256].float()
        return (values.expand(4, 256).contiguous().half(),)

    return Probe(
        name=f"topk-{k}" + ("" if largest else "-smallest"),
        fn=lambda x: torch.topk(x, k, largest=largest).values,
        inputs=inputs,
        expect=expect,
        source="D1.4, D6.11 topk",
    )


def _norm(name: str, fn: Callable[..., Tensor], shapes: tuple[tuple[int, ...], ...], expect: str = "ok") -> Probe:
    return Probe(
        name=name, fn=fn, inputs=lambda: halves(*shapes), expect=expect, source="D5.3, D6.11 layer_norm", tolerance=3e-2
    )


def _norm_in_fp32(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    wide = x.float()
    centred = wide - wide.mean(-1, keepdim=True)
    variance = (centred * centred).mean(-1, keepdim=True)
    return (centred * torch.rsqrt(variance + 1e-5)).to(x.dtype) * weight + bias


REDUCTIONS = (
    *(
        _reduce(f"{name}-{where}", lambda x, fn=fn, dim=dim: fn(x, dim))
        for name, fn in (("sum", torch.sum), ("mean", torch.mean), ("amax", torch.amax), ("amin", torch.amin))
        for where, dim in (("stick", -1), ("rows", 1), ("batch", 0))
    ),
    _reduce("sum-keepdim", lambda x: x.sum(-1, keepdim=True)),
    _reduce("mean-then-sub", lambda x: x - x.mean(-1, keepdim=True)),
    _reduce("sum-two-rows", lambda x: x.sum((0, 1))),
    _reduce("max-all", lambda x: x.amax()),
    _reduce(
        "max-dim-values", lambda x: x.max(1).values, "ok or fallback", source="D5.3 max(dim): amax, indices on the CPU"
    ),
    _reduce("max-dim-indices", lambda x: x.max(1).indices, "fallback"),
    _reduce("argmax", lambda x: x.argmax(-1), "fallback"),
    _reduce("argmin", lambda x: x.argmin(-1), "fallback"),
    _reduce("cumsum", lambda x: x.cumsum(1), "fallback"),
    _reduce("sort", lambda x: x.sort(-1).values, "fallback"),
    _reduce("var", lambda x: x.var(-1), UNSUPPORTED),
    _reduce("std", lambda x: x.std(-1), UNSUPPORTED),
    _reduce("variance-by-squares", lambda x: (x * x).mean(-1) - x.mean(-1) * x.mean(-1)),
    Probe(
        name="prod-stick",
        fn=lambda x: x.prod(-1),
        inputs=lambda: halves((4, 8), dtype=torch.float32),
        expect="unsupported:reduction-stick",
        source="D2.4 prod",
    ),
    Probe(
        name="prod-rows",
        fn=lambda x: x.prod(0),
        inputs=lambda: halves((4, 64), dtype=torch.float32),
        expect="ok",
        source="D5.3 prod: fp32 unrolled",
    ),
    _reduce("softmax", lambda x: torch.softmax(x, -1)),
    _reduce("softmax-rows", lambda x: torch.softmax(x, 1)),
    _reduce("softmax-in-fp32", lambda x: torch.softmax(x, -1, dtype=torch.float32).to(x.dtype)),
    _reduce("log-softmax", lambda x: torch.log_softmax(x, -1)),
    _topk(8, "ok"),
    _topk(128, "ok"),
    _topk(129, "unsupported:topk-limit"),
    _topk(4, "unsupported:topk-limit", largest=False),
    _reduce("topk-rows", lambda x: x.topk(2, dim=0).values, "unsupported:topk-limit", source="D2.4: along the stick"),
)

NORMS = (
    _norm("layer-norm", lambda x, w, b: F.layer_norm(x, (128,), w, b), ((4, 8, 128), (128,), (128,))),
    _norm("layer-norm-plain", lambda x: F.layer_norm(x, (128,)), ((4, 8, 128),)),
    _norm("layer-norm-100", lambda x: F.layer_norm(x, (100,)), ((4, 100),)),
    _norm(
        "layer-norm-2d", lambda x, w, b: F.layer_norm(x, (8, 128), w, b), ((4, 8, 128), (8, 128), (8, 128)), NORM_SHAPE
    ),
    _norm("rms-norm", lambda x, w: F.rms_norm(x, (128,), w, 1e-5), ((4, 8, 128), (128,))),
    _norm("rms-norm-2d", lambda x, w: F.rms_norm(x, (8, 128), w, 1e-5), ((4, 8, 128), (8, 128)), NORM_SHAPE),
    _norm(
        "rms-norm-by-hand",
        lambda x, w: x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * w,
        ((4, 8, 128), (128,)),
    ),
    _norm("norm-in-fp32", _norm_in_fp32, ((4, 8, 128), (128,), (128,))),
    _norm("group-norm", lambda x: F.group_norm(x, 2), ((2, 64, 64),), "unsupported or fallback"),
)


def _embedding(rows: int) -> tuple[Tensor, ...]:
    return (*halves((rows, 128)), integers(2, 16, high=rows))


def _look_up(table: Tensor, index: Tensor) -> Tensor:
    return F.embedding(index, table) * 2


def _row_table() -> tuple[Tensor, ...]:
    return (*halves((32, 128)), torch.tensor([3, 1, 30, 7]))


INDEXING = (
    Probe(
        name="embedding",
        fn=_look_up,
        inputs=lambda: _embedding(100),
        expect={"2026.07": "fallback", "2026.09": "ok"},
        source="D5.4 embedding",
    ),
    Probe(
        name="embedding-one-row",
        fn=_look_up,
        inputs=lambda: _embedding(1),
        expect={"2026.07": "fallback", "2026.09": INDIRECT},
        source="D5.4: a 1-row table asks for two incompatible sticks",
    ),
    Probe(
        name="index-select-rows",
        fn=lambda x, i: x.index_select(0, i),
        inputs=lambda: (*halves((2048, 64)), integers(32, high=2048)),
        expect={"2026.07": "fallback", "2026.09": "ok"},
        source="D6.9 index_select rows",
        tolerance=0.0,
    ),
    Probe(
        name="index-select-columns",
        fn=lambda x, i: x.index_select(1, i),
        inputs=lambda: (*halves((64, 128)), integers(64, high=128)),
        expect={"2026.07": "fallback", "2026.09": INDIRECT},
        source="D2.4, D6.11: the indexed dim must be outermost",
    ),
    Probe(
        name="index-select-one-row-4d",
        fn=lambda x, i: x.index_select(0, i),
        inputs=lambda: (*halves((2048, 2, 2, 64)), torch.tensor([77])),
        expect={"2026.07": "fallback", "2026.09": "ok"},
        source="D6.9, #3418",
        tolerance=0.0,
    ),
    Probe(name="index-rows", fn=lambda x, i: x[i], inputs=_row_table, expect=INDIRECT, source="D5.4 index: hs[idx]"),
    Probe(
        name="index-one-int32",
        fn=lambda x, i: x[i] * 2,
        inputs=lambda: (*halves((32, 128)), torch.tensor([7], dtype=torch.int32)),
        expect="ok",
        source="D5.4 index: a one-element int32 row compiles",
    ),
    Probe(
        name="index-0d",
        fn=lambda x, i: torch.ops.aten.index.Tensor(x, [i]) * 2,
        inputs=lambda: (*halves((32, 128)), torch.tensor(7, dtype=torch.int32)),
        expect=INDIRECT,
        source="D5.4 index: a 0-dim index is silently wrong, so it is refused",
    ),
    Probe(
        name="gather",
        fn=lambda x, i: x.gather(0, i),
        inputs=lambda: (*halves((32, 64)), integers(4, 64, high=32)),
        expect=INDIRECT,
        source="D5.4 gather, #4321",
    ),
    Probe(
        name="scatter",
        fn=lambda x, i, v: x.scatter(0, i, v),
        inputs=lambda: (halves((32, 64))[0], integers(4, 64, high=32), halves((4, 64))[0]),
        expect=INDIRECT,
        source="D5.4 scatter, #4399",
    ),
    Probe(
        name="scatter-add",
        fn=lambda x, i, v: x.scatter_add(0, i, v),
        inputs=lambda: (halves((32, 64))[0], integers(4, 64, high=32), halves((4, 64))[0]),
        expect=INDIRECT,
        source="D5.4 scatter_add, #4409",
    ),
    Probe(
        name="index-add",
        fn=lambda x, i, v: x.index_add(0, i, v),
        inputs=lambda: (halves((3, 64))[0], integers(12, high=3), halves((12, 64))[0]),
        expect="unsupported:index-duplicate",
        source="D5.4 index_add, #4411",
    ),
    Probe(
        name="index-put-accumulate",
        fn=lambda x, i, v: torch.index_put(x, (i,), v, accumulate=True),
        inputs=lambda: (halves((3, 64))[0], integers(12, high=3), halves((12, 64))[0]),
        expect="unsupported:index-duplicate",
        source="D5.4 index_put, #4411",
    ),
    Probe(
        name="index-copy-default-layout",
        fn=lambda x, i, v: x.index_copy(0, i, v),
        inputs=lambda: (halves((64, 8, 128))[0], torch.tensor([5]), halves((1, 8, 128))[0]),
        expect=f"{INDIRECT}|index-duplicate",
        source="D5.4, #3705: the indexed dim must be device dim 0",
    ),
    Probe(
        name="masked-scatter",
        fn=lambda x, m, v: x.masked_scatter(m, v),
        inputs=lambda: (halves((8, 64))[0], integers(8, 64, high=2, dtype=torch.bool), halves((8, 64))[0]),
        expect="unsupported",
        source="D5.4 masked_scatter: row-broadcast mask only",
    ),
    Probe(
        name="nonzero",
        fn=lambda x: torch.nonzero(x > 0),
        inputs=lambda: halves((4, 8)),
        expect="fallback or unsupported:dynamic-shape",
        source="D5.4 boolean indexing, nonzero",
    ),
    Probe(
        name="isin",
        fn=lambda x, y: torch.isin(x, y),
        inputs=lambda: (integers(4, 64, high=9), torch.tensor([1, 5])),
        expect="fallback",
        source="D5.4 isin",
    ),
    Probe(
        name="unfold",
        fn=lambda x: x.unfold(1, 64, 64) * 2,
        inputs=lambda: halves((4, 128)),
        expect=UNSUPPORTED,
        source="D5.4 unfold",
    ),
)

PROBES: tuple[Probe, ...] = (*REDUCTIONS, *NORMS, *INDEXING)
