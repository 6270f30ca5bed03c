"""Probes of eager mode: column E of D5 and the eager column of D6.9."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.conformance.probe import Probe, halves, integers

ROWS_BY_RELEASE = {"2026.07": "fallback", "2026.09": "ok"}
"""September's card looks rows up in eager mode, too (D5.4)."""


def _eager(
    name: str,
    fn: Callable[..., object],
    inputs: Callable[[], tuple[object, ...]],
    expect: str | Mapping[str, str],
    source: str,
    tolerance: float = 1e-2,
) -> Probe:
    return Probe(
        name=f"eager-{name}", fn=fn, inputs=inputs, expect=expect, source=source, eager=True, tolerance=tolerance
    )


def _store(out: Tensor, src: Tensor) -> Tensor:
    out[16:33] = src
    return out


def _write_column(page: Tensor, value: Tensor) -> Tensor:
    page.narrow(1, 37, 1).copy_(value)
    return page


def _copy_mid_stick(x: Tensor) -> Tensor:
    out = torch.zeros(64, 64, dtype=x.dtype, device=x.device)
    return out.copy_(x[:, 32:96])


PROBES: tuple[Probe, ...] = (
    _eager("add", torch.add, lambda: halves((7, 128), (7, 128)), "ok", "D5.2 E"),
    _eager("gelu", F.gelu, lambda: halves((7, 128)), "ok", "D5.2 E"),
    _eager("mm", torch.mm, lambda: halves((7, 128), (128, 64)), "ok", "D5.1 E", 5e-2),
    _eager("mm-out-one", torch.mm, lambda: halves((7, 128), (128, 1)), "unsupported:matmul-out-one", "D6.9"),
    _eager("mm-out-two", torch.mm, lambda: halves((7, 128), (128, 2)), "ok", "D6.9", 5e-2),
    _eager("softmax", lambda x: torch.softmax(x, -1), lambda: halves((7, 128)), "ok", "D5.3 E"),
    _eager("sum", lambda x: x.sum(-1), lambda: halves((7, 128)), "ok", "D5.3 E"),
    _eager("layer-norm", lambda x: F.layer_norm(x, (128,)), lambda: halves((7, 128)), "ok", "D5.3 E", 3e-2),
    _eager("sin", torch.sin, lambda: halves((7, 128)), "fallback", "D5.2 E"),
    _eager("argmax", lambda x: x.argmax(-1), lambda: halves((7, 128)), "fallback", "D5.3 E"),
    _eager("cumsum", lambda x: x.cumsum(0), lambda: halves((7, 128)), "fallback", "D5.3 E"),
    _eager("sort", lambda x: x.sort(-1).values, lambda: halves((7, 128)), "fallback", "D5.3 E"),
    _eager(
        "embedding",
        lambda w, i: F.embedding(i, w),
        lambda: (*halves((100, 128)), integers(2, 16, high=100)),
        ROWS_BY_RELEASE,
        "D5.4 E",
        0.0,
    ),
    _eager(
        "index-select",
        lambda x, i: x.index_select(0, i),
        lambda: (*halves((2048, 64)), integers(32, high=2048)),
        ROWS_BY_RELEASE,
        "D6.9 index_select rows",
        0.0,
    ),
    _eager(
        "gate",
        lambda x: F.silu(x[..., :4096]) * x[..., 4096:],
        lambda: halves((32, 8192)),
        "ok",
        "D6.9",
    ),
    _eager(
        "transpose-contiguous",
        lambda x: x.transpose(1, 2).contiguous()[:4],
        lambda: halves((8, 4, 32, 128)),
        "ok",
        "D6.9 exact",
        0.0,
    ),
    _eager(
        "store-rows", _store, lambda: halves((48, 32, 128), (17, 32, 128)), "ok", "D6.9 out[16:33] = src exact", 0.0
    ),
    _eager(
        "narrow-copy", _write_column, lambda: halves((2, 256, 64), (2, 1, 64)), "ok", "D6.9 narrow(1,37,1).copy_", 0.0
    ),
    _eager(
        "pad-32-to-64", lambda x: F.pad(x, (0, 32)), lambda: halves((4, 8, 32)), "unsupported:pad-mid-stick", "D6.9"
    ),
    _eager(
        "copy-mid-stick", _copy_mid_stick, lambda: halves((64, 128)), "unsupported:storage-offset", "D2.7 #3798, D6.11"
    ),
    _eager(
        "index-rows",
        lambda x, i: x[i],
        lambda: (*halves((32, 128)), torch.tensor([3, 1, 30, 7])),
        "unsupported:indirect-access",
        "D6.9 hs[idx] fails",
    ),
    _eager("boolean-mask", lambda x: x[x > 0], lambda: halves((4, 64)), "fallback", "D5.4 boolean indexing"),
    _eager(
        "index-add",
        lambda x, i, v: x.index_add_(0, i, v),
        lambda: (halves((3, 64))[0], integers(12, high=3), halves((12, 64))[0]),
        "unsupported:index-duplicate",
        "D6.9 index_add_ is unimplemented, #3507",
    ),
    _eager(
        "convolution",
        lambda x, w, b: F.conv2d(x, w, b, stride=2, padding=1),
        lambda: halves((2, 64, 8, 8), (32, 64, 3, 3), (32,)),
        "fallback",
        "D5.1 E: patches on the host, then a matmul",
        5e-2,
    ),
    _eager(
        "convolution-in-groups",
        lambda x, w: F.conv1d(x, w, groups=2, dilation=2),
        lambda: halves((2, 128, 20), (32, 64, 3)),
        "fallback",
        "D5.1 E",
        5e-2,
    ),
    _eager(
        "convolution-27",
        lambda x, w: F.conv2d(x, w),
        lambda: halves((1, 3, 8, 8), (32, 3, 3, 3)),
        "unsupported:matmul-k-stick",
        "D5.1 E, D6.11: 27 terms are no whole sticks",
    ),
    _eager(
        "convolution-transposed",
        lambda x, w: F.conv_transpose2d(x, w),
        lambda: halves((1, 64, 8, 8), (64, 64, 3, 3)),
        "unsupported:conv",
        "D5.1: transposed convolutions are unsupported",
    ),
    _eager("sum-of-a-number", lambda x: x.sum(), lambda: halves(()), "ok", "D5.3: its own reduction"),
    _eager("softmax-of-a-number", lambda x: torch.softmax(x, 0), lambda: halves(()), "ok", "D5.3"),
    _eager(
        "float64",
        lambda x: torch.zeros_like(x, dtype=torch.float64),
        lambda: halves((4,)),
        "unsupported:dtype-unsupported",
        "D1.6",
    ),
    _eager(
        "pow",
        lambda x: x**3,
        lambda: halves((7, 64)),
        {"2026.07": "unsupported:pow-scalar-exponent", "2026.09": "ok"},
        "D5.2 E",
    ),
    _eager(
        "gather",
        lambda x, i: x.gather(0, i),
        lambda: (*halves((32, 64)), integers(4, 64, high=32)),
        "fallback",
        "D5.4 E",
    ),
    _eager(
        "zero-rows", lambda x: x[:0] + 1, lambda: halves((4, 64)), "ok or fallback", "D6.3: newer builds return early"
    ),
)
