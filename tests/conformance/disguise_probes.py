"""The same rules reached by other spellings: a rule that only knows one way of writing an operation is no rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.conformance.probe import Probe, halves, integers

ROPE = "unsupported:rope-half-stick"
SPLIT = "unsupported:view-stick-split"
BAD_K = "unsupported:matmul-k-stick"
ROOT = "unsupported:pow-scalar-exponent"
POW = {"2026.07": ROOT, "2026.09": "ok"}
DOUBLE = "unsupported:double-broadcast|pointwise-stick"
DOUBLE_PRECISION = "unsupported:dtype-unsupported"
UNSUPPORTED = "unsupported:op-unsupported"


def _probe(
    name: str,
    fn: Callable[..., object],
    shapes: tuple[tuple[int, ...], ...],
    expect: str | Mapping[str, str],
    source: str,
) -> Probe:
    return Probe(
        name=f"disguised-{name}", fn=fn, inputs=lambda: halves(*shapes), expect=expect, source=source, tolerance=2e-2
    )


def _rotate_by_chunk(x: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


def _rotate_by_narrow(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return torch.cat((-x.narrow(-1, half, half), x.narrow(-1, 0, half)), dim=-1)


def _rotate_by_flip(x: Tensor) -> Tensor:
    return x.view(*x.shape[:-1], 2, x.shape[-1] // 2).flip(-2).reshape(x.shape)


def _zero_every_other_row(x: Tensor) -> Tensor:
    out = x.clone()
    out[::2] = 0.0
    return out


def _outer_mask(x: Tensor) -> Tensor:
    keep = x > 0
    return keep[:, None, :, None] & keep[:, None, None, :]


HEADS = ((1, 2, 64, 64),)

PROBES: tuple[Probe, ...] = (
    _probe("rope-chunk", _rotate_by_chunk, HEADS, ROPE, "D6.2 a"),
    _probe("rope-narrow", _rotate_by_narrow, HEADS, ROPE, "D6.2 a"),
    _probe("rope-flip", _rotate_by_flip, HEADS, f"{ROPE}|view-stick-split|indirect-access", "D6.2 a, D2.5"),
    _probe("rope-chunk-128", _rotate_by_chunk, ((1, 2, 64, 128),), "ok", "D6.2 a: halves are whole sticks"),
    _probe("heads-unflatten", lambda x: x.unflatten(-1, (12, 32)).transpose(1, 2) + 1, ((2, 64, 384),), SPLIT, "D6.11"),
    _probe("heads-as-strided", lambda x: x.as_strided((7, 2, 32), (64, 32, 1)) * 2, ((7, 64),), SPLIT, "D6.11 view"),
    _probe(
        "heads-unflatten-64", lambda x: x.unflatten(-1, (6, 64)).transpose(1, 2) + 1, ((2, 64, 384),), "ok", "D6.11"
    ),
    _probe("k-einsum", lambda a, b: torch.einsum("bik,bjk->bij", a, b), ((2, 8, 32), (2, 8, 32)), BAD_K, "D6.11"),
    _probe("k-baddbmm", torch.baddbmm, ((2, 8, 64), (2, 8, 32), (2, 32, 64)), BAD_K, "D6.11 matmul"),
    _probe("k-slice", lambda a, b: a[:, :32] @ b[:32], ((8, 64), (64, 64)), BAD_K, "D6.11 matmul"),
    _probe("square", torch.square, ((7, 64),), POW, "D5.2 pow"),
    _probe("power-operator", lambda x: x**2, ((7, 64),), POW, "D5.2 pow"),
    _probe("vector-norm", lambda x: x.norm(dim=-1), ((7, 64),), ROOT, "D5.2 pow: taken apart into pow and sum"),
    _probe("normalize", lambda x: F.normalize(x, dim=-1), ((7, 64),), ROOT, "D5.2 pow: taken apart into pow and sum"),
    _probe("norm-by-products", lambda x: x / (x * x).sum(-1, keepdim=True).sqrt(), ((7, 64),), "ok", "D5.2, D6.1"),
    _probe("element-by-narrow", lambda x: x.narrow(0, 3, 1).squeeze(0) * 2, ((64,),), "unsupported", "D6.11 select"),
    _probe("element-from-the-end", lambda x: x[-1] * 2, ((64,),), "unsupported:select-1d", "D6.11 select"),
    _probe("element-unbind", lambda x: sum(x.unbind(0)), ((4,),), "unsupported:select-1d", "D6.11 select"),
    _probe("count-by-compare", lambda x: (x > 0).sum(-1), ((7, 64),), "unsupported:bool-sum", "D5.3 bool.sum"),
    _probe("outer-mask", _outer_mask, ((2, 64),), DOUBLE, "D5.2: no stick scatter"),
    _probe("outer-product", lambda x: x[:, :, None] * x[:, None, :], ((2, 64),), DOUBLE, "D5.2: no stick scatter"),
    _probe("strided-store", _zero_every_other_row, ((8, 64),), "unsupported:slice-scatter-step", "D2.7"),
    _probe("instance-norm", F.instance_norm, ((2, 4, 64),), "unsupported or fallback", "D5.3: welford"),
    _probe("floor-division", lambda x: x // 2, ((7, 64),), UNSUPPORTED, "D5.2 names true division only"),
    _probe("pow-tensor", lambda x, y: torch.pow(x.abs() + 0.5, y), ((7, 64), (7, 64)), UNSUPPORTED, "D5.2 pow"),
    _probe("random", lambda x: x + torch.rand_like(x), ((7, 64),), "unsupported:dropout", "D5.2 bernoulli"),
    _probe(
        "float64", lambda x: (x.double() * 2).half(), ((7, 64),), "unsupported:dtype-unsupported|dtype-cast", "D1.6"
    ),
    _probe(
        "patch-convolution",
        lambda x, w: F.conv2d(x, w, stride=16),
        ((1, 3, 32, 32), (64, 3, 16, 16)),
        "unsupported:conv",
        "D5.1",
    ),
    _probe("softplus-threshold", lambda x: F.softplus(x, 2, 1), ((7, 64),), "ok", "D5.2 softplus, #1882"),
    _probe(
        "constant-float64", lambda x: torch.zeros_like(x, dtype=torch.float64), ((7, 64),), DOUBLE_PRECISION, "D1.6"
    ),
    _probe("sum-of-a-number", lambda x: x.sum() + x.amax(), ((),), "ok", "D5.3: a number is its own reduction"),
    _probe("reflect-padding", lambda x: F.pad(x, (2, 2), mode="reflect"), ((1, 7, 64),), "unsupported", "D5.4 index"),
    Probe(
        name="disguised-one-hot",
        fn=lambda index: F.one_hot(index, 64),
        inputs=lambda: (integers(7, high=64),),
        expect="unsupported",
        source="D5.2, D5.4: int64 comparison and scatter",
    ),
    Probe(
        name="disguised-take-along-dim",
        fn=lambda x, index: torch.take_along_dim(x, index, 0),
        inputs=lambda: (*halves((32, 64)), integers(4, 64, high=32)),
        expect="unsupported",
        source="D5.4 gather",
    ),
)
