"""Probes of pointwise operators and of dtypes: D5.2 and D1.6."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.conformance.probe import Probe, halves, integers

UNSUPPORTED = "unsupported:op-unsupported"
BOTH = ("2026.07", "2026.09")


def _unary(
    name: str, fn: Callable[[Tensor], Tensor], expect: str = "ok", *, positive: bool = False, source: str = "D5.2"
) -> Probe:
    def inputs() -> tuple[Tensor, ...]:
        (x,) = halves((7, 128))
        return (x.abs() + 0.25,) if positive else (x,)

    return Probe(name=name, fn=fn, inputs=inputs, expect=expect, source=source)


def _binary(name: str, fn: Callable[[Tensor, Tensor], Tensor], expect: str = "ok") -> Probe:
    return Probe(name=name, fn=fn, inputs=lambda: halves((7, 128), (7, 128)), expect=expect, source="D5.2")


def _power(exponent: float, july: str, september: str) -> Probe:
    def inputs() -> tuple[Tensor, ...]:
        (x,) = halves((7, 128), scale=0.5)
        return (x.abs() + 0.25,)

    return Probe(
        name=f"pow-{exponent}",
        fn=lambda x: torch.pow(x, exponent),
        inputs=inputs,
        expect={"2026.07": july, "2026.09": september},
        source="D5.2 pow, D6.1",
        tolerance=2e-2,
    )


def _fp32(name: str, fn: Callable[[Tensor], Tensor], expect: str = "ok") -> Probe:
    def inputs() -> tuple[Tensor, ...]:
        (x,) = halves((7, 64), dtype=torch.float32)
        return (x.abs() + 0.25,)

    return Probe(name=f"fp32-{name}", fn=fn, inputs=inputs, expect=expect, source="D1.6 SPYRE_FP32_OPS")


def _ints(name: str, fn: Callable[..., Tensor], dtype: torch.dtype, expect: str, source: str = "D1.6") -> Probe:
    return Probe(
        name=name,
        fn=fn,
        inputs=lambda: (integers(7, 64, high=50, dtype=dtype), integers(7, 64, high=9, dtype=dtype) + 1),
        expect=expect,
        source=source,
    )


def _cast(source: torch.dtype, target: torch.dtype, expect: str, note: str = "D1.6 casts") -> Probe:
    def inputs() -> tuple[Tensor, ...]:
        if source == torch.bool:
            return (integers(7, 64, high=2, dtype=torch.bool),)
        if source.is_floating_point:
            return halves((7, 64), dtype=source)
        return (integers(7, 64, high=50, dtype=source),)

    short = f"{source}-to-{target}".replace("torch.", "")
    return Probe(name=f"cast-{short}", fn=lambda x: x.to(target), inputs=inputs, expect=expect, source=note)


POW_REFUSED = "unsupported:pow-scalar-exponent"

POINTWISE = (
    _unary("abs", torch.abs),
    _unary("neg", torch.neg),
    _unary("exp", torch.exp),
    _unary("log", torch.log, positive=True),
    _unary("sqrt", torch.sqrt, positive=True),
    _unary("rsqrt", torch.rsqrt, positive=True),
    _unary("reciprocal", torch.reciprocal, positive=True),
    _unary("tanh", torch.tanh),
    _unary("floor", torch.floor),
    _unary("ceil", torch.ceil),
    _unary("sign", torch.sign),
    _unary("sigmoid", torch.sigmoid),
    _unary("relu", torch.relu),
    _unary("silu", F.silu),
    _unary("softplus", F.softplus),
    _unary("softplus-beta", lambda x: F.softplus(x, beta=2.0), source="D1.5 #1882: fixed by scaling"),
    _unary("gelu", F.gelu),
    _unary("gelu-tanh", lambda x: F.gelu(x, approximate="tanh"), source="D5.2: approximate is ignored"),
    _unary("clamp", lambda x: x.clamp(-0.5, 0.75)),
    _unary("clamp-min", lambda x: x.clamp(min=0.1)),
    _unary("clamp-max", lambda x: x.clamp_max(0.1)),
    _unary("leaky-relu", lambda x: F.leaky_relu(x, 0.1), source="D5.2: taken apart into gt, mul and where"),
    _unary("quick-gelu", lambda x: x * torch.sigmoid(1.702 * x)),
    _unary("add-scalar", lambda x: 2.0 - x * 0.5),
    _binary("add-alpha", lambda x, y: torch.add(x, y, alpha=2)),
    _binary("sub-alpha", lambda x, y: torch.sub(x, y, alpha=3)),
    _binary("mul", torch.mul),
    _binary("div", lambda x, y: x / (y.abs() + 0.5)),
    _binary("maximum", torch.maximum),
    _binary("minimum", torch.minimum),
    *(_binary(name, getattr(torch, name)) for name in ("eq", "ne", "gt", "ge", "lt", "le")),
    _binary("where-tensors", lambda x, y: torch.where(x > y, x, y)),
    _unary("where-scalars", lambda x: torch.where(x > 0, 1.0, x)),
    _unary("masked-fill", lambda x: x.masked_fill(x > 0, -5.0)),
    _binary("bitwise-and", lambda x, y: (x > 0) & (y > 0)),
    _unary("bitwise-not", lambda x: ~(x > 0)),
    _unary("logical-not", lambda x: torch.logical_not(x > 0)),
    _binary("bitwise-or", lambda x, y: (x > 0) | (y > 0), "fallback"),
    _binary("bitwise-xor", lambda x, y: (x > 0) ^ (y > 0), "fallback"),
    _unary("erf", torch.erf, UNSUPPORTED),
    _unary("gelu-by-erf", lambda x: x * 0.5 * (1 + torch.erf(x * 0.70710678)), UNSUPPORTED),
    _unary("isnan", torch.isnan, UNSUPPORTED),
    _unary("isinf", torch.isinf, UNSUPPORTED),
    _unary("remainder", lambda x: torch.remainder(x, 2.0), UNSUPPORTED),
    _unary("fmod", lambda x: torch.fmod(x, 2.0), UNSUPPORTED),
    _unary("atan", torch.atan, UNSUPPORTED, source="not named in D5: refused"),
    _unary("expm1", torch.expm1, UNSUPPORTED, source="not named in D5: refused"),
    _unary("sin", torch.sin, "fallback"),
    _unary("cos", torch.cos, "fallback"),
    _unary("dropout-eval", lambda x: F.dropout(x, 0.1, training=False) * 2),
    _unary("dropout-train", lambda x: F.dropout(x, 0.1, training=True), "unsupported:dropout"),
    _unary("tril", lambda x: torch.tril(x), "fallback"),
    _unary("triu", lambda x: torch.triu(x, 1), "fallback"),
    _unary("arange", lambda x: x + torch.arange(128, device=x.device, dtype=x.dtype), "fallback"),
    _unary("zeros", lambda x: x + torch.zeros(128, device=x.device, dtype=x.dtype)),
    _unary("full", lambda x: x * torch.full((7, 1), 0.5, device=x.device, dtype=x.dtype)),
    _unary("ones-like", lambda x: x + torch.ones_like(x)),
    _power(2, POW_REFUSED, "ok"),
    _power(3, POW_REFUSED, "ok"),
    _power(4, POW_REFUSED, "ok"),
    _power(0.5, POW_REFUSED, POW_REFUSED),
    _power(2.5, POW_REFUSED, POW_REFUSED),
    _power(-1, POW_REFUSED, POW_REFUSED),
    Probe(
        name="gelu-new",
        fn=lambda x: 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * torch.pow(x, 3.0)))),
        inputs=lambda: halves((7, 128)),
        expect={"2026.07": POW_REFUSED, "2026.09": "ok"},
        source="D5.2 pow",
        tolerance=2e-2,
    ),
    Probe(
        name="cube-by-products",
        fn=lambda x: x * x * x,
        inputs=lambda: halves((7, 128)),
        expect=dict.fromkeys(BOTH, "ok"),
        source="D6.1 workaround",
        tolerance=2e-2,
    ),
)

DTYPES = (
    _fp32("add", lambda x: x + 1.5),
    _fp32("mul", lambda x: x * x),
    _fp32("div", lambda x: 1.0 / x),
    _fp32("exp", torch.exp),
    _fp32("sqrt", torch.sqrt),
    _fp32("rsqrt", torch.rsqrt),
    _fp32("sigmoid", torch.sigmoid),
    _fp32("silu", F.silu),
    _fp32("relu", torch.relu),
    _fp32("clamp", lambda x: x.clamp(0.3, 0.9)),
    _fp32("maximum", lambda x: torch.maximum(x, x * 0.5)),
    _fp32("where", lambda x: torch.where(x > 0.5, x, x * 2)),
    _fp32(
        "where-scalar",
        lambda x: torch.where(x > 0.5, x, 0.0),
        "unsupported:dtype-fp32-op|dtype-unsupported",
    ),
    _fp32("sum", lambda x: x.sum(-1)),
    _fp32("mean", lambda x: x.mean(0)),
    _fp32("amax", lambda x: x.amax(-1)),
    _fp32("tanh", torch.tanh, "unsupported:dtype-fp32-op"),
    _fp32("log", torch.log, "unsupported:dtype-fp32-op"),
    _fp32("gelu", F.gelu, "unsupported:dtype-fp32-op"),
    _fp32("softplus", F.softplus, "unsupported:dtype-fp32-op"),
    _ints("int32-add", torch.add, torch.int32, "ok"),
    _ints("int32-mul", torch.mul, torch.int32, "ok"),
    _ints("int32-sub", torch.sub, torch.int32, "unsupported:dtype-unsupported", "D1.6: native add and mul only"),
    _ints("int32-lt", torch.lt, torch.int32, "unsupported:dtype-unsupported", "D5.2: int32 lt cannot produce bool"),
    _ints("int64-add", torch.add, torch.int64, "ok"),
    _ints("int64-sub", torch.sub, torch.int64, "ok"),
    _ints("int64-mul", torch.mul, torch.int64, "ok"),
    _ints("int64-max", torch.maximum, torch.int64, "ok"),
    _ints("int64-clamp", lambda x, y: x.clamp(max=7), torch.int64, "unsupported:dtype-unsupported"),
    _ints("int64-div", torch.div, torch.int64, "unsupported:dtype-unsupported|dtype-cast or fallback"),
    _ints("int64-ge-int", lambda x, y: x >= 7, torch.int64, "unsupported:int64-compare-scalar", "D5.2"),
    _ints("int64-ne-int", lambda x, y: x != 1, torch.int64, "unsupported:int64-compare-scalar", "D5.2"),
    _ints("int64-eq-int", lambda x, y: x == 0, torch.int64, "unsupported:int64-compare-scalar", "D5.2"),
    Probe(
        name="bool-sum",
        fn=lambda m: m.sum(-1),
        inputs=lambda: (integers(7, 64, high=2, dtype=torch.bool),),
        expect="unsupported:bool-sum",
        source="D5.3 bool.sum",
    ),
    Probe(
        name="bool-any",
        fn=lambda m: m.any(-1),
        inputs=lambda: (integers(7, 64, high=2, dtype=torch.bool),),
        expect="ok",
        source="D5.3 any",
    ),
    _cast(torch.float16, torch.bfloat16, "ok"),
    _cast(torch.bfloat16, torch.float16, "ok"),
    _cast(torch.float16, torch.float32, "ok"),
    _cast(torch.bfloat16, torch.float32, "ok"),
    _cast(torch.float32, torch.float16, "ok"),
    _cast(torch.float32, torch.bfloat16, "ok"),
    _cast(torch.float16, torch.bool, "ok"),
    _cast(torch.float16, torch.float64, "unsupported:dtype-unsupported|dtype-cast"),
    _cast(torch.bool, torch.int32, "fallback or unsupported:dtype-cast", "D1.6, D6.10: bool -> int32 rejected"),
    _cast(torch.bool, torch.float32, "fallback or unsupported:dtype-cast", "D1.6: bool to fp32 goes to the CPU"),
    _cast(torch.bool, torch.float16, "fallback or unsupported:dtype-cast", "D1.6: not in the table"),
    _cast(torch.int64, torch.float16, "fallback or unsupported:dtype-cast", "D1.6: not in the table"),
    _cast(torch.float16, torch.int64, "fallback or unsupported:dtype-cast", "D1.6: not in the table"),
)

PROBES: tuple[Probe, ...] = (*POINTWISE, *DTYPES)
