"""Probes of the matmul family: D5.1 and the matmul lines of D6.2, D6.9 and D6.11."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.conformance.probe import Probe, halves

BAD_K = "unsupported:matmul-k-stick"
TOLERANCE = 5e-2
"""The plugin's own relative tolerance for matmul (D6.9)."""


def _k(k: int, expect: str) -> Probe:
    return Probe(
        name=f"mm-k-{k}",
        fn=torch.mm,
        inputs=lambda: halves((8, k), (k, 64)),
        expect=expect,
        source="D6.11 matmul: K % 64 == 0",
        tolerance=TOLERANCE,
    )


def _n(n: int, expect: str) -> Probe:
    return Probe(
        name=f"mm-n-{n}",
        fn=torch.mm,
        inputs=lambda: halves((7, 128), (128, n)),
        expect=expect,
        source="D6.9 matmul out=1 [7,128]x[128,1] fails, out>=2 passes",
        tolerance=TOLERANCE,
    )


def _m(m: int) -> Probe:
    return Probe(
        name=f"mm-m-{m}",
        fn=torch.mm,
        inputs=lambda: halves((m, 128), (128, 64)),
        expect="ok",
        source="D6.11 puts no condition on M",
        tolerance=TOLERANCE,
    )


def _linear(k: int, n: int, expect: str, *, bias: bool = True) -> Probe:
    shapes = ((2, 16, k), (n, k), (n,)) if bias else ((2, 16, k), (n, k))
    return Probe(
        name=f"linear-{k}-{n}" + ("" if bias else "-no-bias"),
        fn=F.linear,
        inputs=lambda: halves(*shapes),
        expect=expect,
        source="D5.1 linear, D6.2 c",
        tolerance=TOLERANCE,
    )


def _dtype(name: str, dtype: torch.dtype, expect: str) -> Probe:
    return Probe(
        name=f"mm-{name}",
        fn=torch.mm,
        inputs=lambda: halves((8, 64), (64, 64), dtype=dtype),
        expect=expect,
        source="D1.6 matmul is DL16 or fp8 only; D6.11 fp32 operands -> Unsupported",
        tolerance=TOLERANCE,
    )


def _scores(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.transpose(-1, -2)


def _attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def _causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def _grouped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)


def _masked(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def _dropping(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, dropout_p=0.1)


def _sdpa(name: str, fn: object, shape: tuple[int, ...], expect: str, *, kv: tuple[int, ...] | None = None) -> Probe:
    return Probe(
        name=f"sdpa-{name}",
        fn=fn,  # type: ignore[arg-type]
        inputs=lambda: halves(shape, kv or shape, kv or shape),
        expect=expect,
        source="D5.1 sdpa",
        tolerance=TOLERANCE,
    )


def _additive_mask() -> tuple[Tensor, ...]:
    mask = torch.zeros(2, 1, 64, 64, dtype=torch.float16)
    mask[1, :, :, 48:] = torch.finfo(torch.float16).min / 2
    return (*halves((2, 4, 64, 64), (2, 4, 64, 64), (2, 4, 64, 64)), mask)


PROBES: tuple[Probe, ...] = (
    *(_k(k, "ok") for k in (64, 128, 192, 320)),
    *(_k(k, BAD_K) for k in (32, 65, 80, 96, 312)),
    _n(1, "unsupported:matmul-out-one"),
    *(_n(n, "ok") for n in (2, 33, 64, 100)),
    *(_m(m) for m in (1, 7, 65)),
    _dtype("bf16", torch.bfloat16, "ok"),
    _dtype("fp32", torch.float32, "unsupported:matmul-dtype"),
    _linear(128, 128, "ok"),
    _linear(128, 128, "ok", bias=False),
    _linear(64, 100, "ok"),
    _linear(384, 1536, "ok"),
    _linear(312, 64, BAD_K),
    _linear(64, 1, "unsupported:matmul-out-one"),
    _linear(32, 64, BAD_K, bias=False),
    Probe(
        name="mlp-inner-312",
        fn=lambda x, a, b: F.linear(F.gelu(F.linear(x, a)), b),
        inputs=lambda: halves((4, 64), (312, 64), (64, 312)),
        expect=BAD_K,
        source="D6.2 c: intermediate size % 64 != 0",
    ),
    Probe(
        name="mlp-inner-320",
        fn=lambda x, a, b: F.linear(F.gelu(F.linear(x, a)), b),
        inputs=lambda: halves((4, 64), (320, 64), (64, 320), scale=0.25),
        expect="ok",
        source="D6.2 c: intermediate size % 64 == 0",
        tolerance=TOLERANCE,
    ),
    Probe(
        name="addmm",
        fn=lambda b, x, y: torch.addmm(b, x, y, beta=0.5, alpha=2),
        inputs=lambda: halves((64,), (8, 128), (128, 64)),
        expect="ok",
        source="D5.1 addmm",
        tolerance=TOLERANCE,
    ),
    Probe(
        name="baddbmm",
        fn=torch.baddbmm,
        inputs=lambda: halves((2, 8, 64), (2, 8, 128), (2, 128, 64)),
        expect="ok",
        source="D5.1 baddbmm",
        tolerance=TOLERANCE,
    ),
    Probe(
        name="einsum",
        fn=lambda x, y: torch.einsum("bik,bkj->bij", x, y),
        inputs=lambda: halves((2, 8, 64), (2, 64, 64)),
        expect="ok",
        source="D5.1 einsum",
        tolerance=TOLERANCE,
    ),
    Probe(
        name="bmm",
        fn=torch.bmm,
        inputs=lambda: halves((3, 8, 64), (3, 64, 128)),
        expect="ok",
        source="D5.1 bmm 3D x 3D",
        tolerance=TOLERANCE,
    ),
    Probe(
        name="bmm-k-96",
        fn=torch.bmm,
        inputs=lambda: halves((3, 8, 96), (3, 96, 128)),
        expect=BAD_K,
        source="D6.11 matmul",
    ),
    Probe(
        name="matmul-3d-2d",
        fn=torch.matmul,
        inputs=lambda: halves((3, 8, 64), (64, 128)),
        expect="ok",
        source="D5.1 bmm 3D x 2D",
        tolerance=TOLERANCE,
    ),
    Probe(
        name="matmul-4d-4d",
        fn=torch.matmul,
        inputs=lambda: halves((2, 3, 8, 64), (2, 3, 64, 128)),
        expect="ok",
        source="D5.1 bmm 4D x 4D",
        tolerance=TOLERANCE,
    ),
    Probe(
        name="mm-both-transposed",
        fn=lambda a, b: a.t() @ b.t(),
        inputs=lambda: halves((64, 128), (128, 64)),
        expect="ok",
        source="D2.4, D2.6: both operands are restickified",
        tolerance=TOLERANCE,
    ),
    Probe(
        name="scores-d64",
        fn=_scores,
        inputs=lambda: halves((2, 4, 64, 64), (2, 4, 64, 64)),
        expect="ok",
        source="D6.11 matmul, K = head_dim",
        tolerance=TOLERANCE,
    ),
    Probe(
        name="scores-d32",
        fn=_scores,
        inputs=lambda: halves((2, 4, 64, 32), (2, 4, 64, 32)),
        expect=BAD_K,
        source="D6.11 matmul, K = head_dim",
    ),
    Probe(
        name="context-s64",
        fn=torch.matmul,
        inputs=lambda: halves((2, 4, 64, 64), (2, 4, 64, 64)),
        expect="ok",
        source="D6.2 i, K = key length",
        tolerance=TOLERANCE,
    ),
    Probe(
        name="context-s65",
        fn=torch.matmul,
        inputs=lambda: halves((2, 4, 65, 65), (2, 4, 65, 64)),
        expect=BAD_K,
        source="D6.2 i, K = key length",
    ),
    _sdpa("plain", _attention, (2, 4, 64, 64), "ok"),
    _sdpa("d32", _attention, (2, 4, 64, 32), BAD_K),
    _sdpa("s65", _attention, (2, 4, 65, 64), BAD_K),
    _sdpa("grouped", _grouped, (1, 8, 64, 64), "ok", kv=(1, 2, 64, 64)),
    _sdpa("causal", _causal, (1, 4, 64, 64), "ok or fallback"),
    _sdpa("dropout", _dropping, (1, 4, 64, 64), "unsupported:dropout"),
    Probe(
        name="sdpa-additive-mask",
        fn=_masked,
        inputs=_additive_mask,
        expect="ok",
        source="D6.4 c: finfo.min / 2 is the fill that works",
        tolerance=TOLERANCE,
    ),
    Probe(
        name="conv1d",
        fn=F.conv1d,
        inputs=lambda: halves((1, 64, 64), (64, 64, 3)),
        expect="unsupported:conv",
        source="D5.1: aten.convolution does not lower inside block graphs",
    ),
    Probe(
        name="conv2d",
        fn=F.conv2d,
        inputs=lambda: halves((1, 64, 16, 16), (64, 64, 3, 3)),
        expect="unsupported:conv",
        source="D5.1, D4.8: SPYRE_CONV2D_DIRECT is off",
    ),
    Probe(
        name="conv-transpose2d",
        fn=F.conv_transpose2d,
        inputs=lambda: halves((1, 64, 8, 8), (64, 64, 3, 3)),
        expect="unsupported:conv",
        source="D5.1 conv transpose",
    ),
)
