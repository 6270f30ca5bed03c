"""Pointwise device operations: each takes operands of the iteration space's shape and returns one of that shape.

Results are unrounded float32 (or bool/int); the executor rounds them once to the output's format.  Operations of
several internal steps say where they round in between.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from spyre_backend.emulator.context import Context, ExecutionError, Primitive

_Binary = Callable[[Tensor, Tensor], Tensor]
_Unary = Callable[[Tensor], Tensor]


def as_float(x: Tensor) -> Tensor:
    """Integers and bools as float32 values, floats unchanged: bool arithmetic is float arithmetic (D5.2)."""
    return x if x.dtype is torch.float32 else x.to(torch.float32)


def arithmetic(function: _Binary) -> Primitive:
    """A binary operation on floats; int32 wraps natively, int64 goes through fp32 and back (exact below 2^24, D1.6)."""

    def run(context: Context, a: Tensor, b: Tensor) -> Tensor:
        if a.is_floating_point() or b.is_floating_point():
            return function(as_float(a), as_float(b))
        wide = torch.int64 in (a.dtype, b.dtype)
        boolean = torch.bool in (a.dtype, b.dtype)
        if boolean or (wide and context.numerics.int64_arithmetic == "fp32"):
            return function(as_float(a), as_float(b))
        return function(a, b)

    return run


def comparison(function: _Binary) -> Primitive:
    """A comparison, bool result; mixed operands compare as float32."""

    def run(context: Context, a: Tensor, b: Tensor) -> Tensor:
        if a.dtype != b.dtype:
            a, b = as_float(a), as_float(b)
        return function(a, b)

    return run


def on_floats(function: _Unary) -> Primitive:
    """A unary operation of the special-function unit, computed in float32."""

    def run(context: Context, x: Tensor) -> Tensor:
        return function(as_float(x))

    return run


def on_numbers(function: _Unary) -> Primitive:
    """A unary operation that integers keep their type through."""

    def run(context: Context, x: Tensor) -> Tensor:
        return function(as_float(x) if x.dtype is torch.bool else x)

    return run


def on_bools(function: Callable[..., Tensor]) -> Primitive:
    """A logical operation; numbers count as true unless zero."""

    def run(context: Context, *inputs: Tensor) -> Tensor:
        return function(*(as_bool(x) for x in inputs))

    return run


def as_bool(x: Tensor) -> Tensor:
    """True where `x` is not zero."""
    return x if x.dtype is torch.bool else x != 0


def exp(context: Context, x: Tensor) -> Tensor:
    """exp; in 16 bits nothing below 2^-24 comes out (#4517), in fp32 the input saturates near 22 (#612)."""
    x = as_float(x)
    if not context.dl16:
        limit = context.numerics.exp_fp32_saturation
        return torch.exp(x.clamp(max=limit) if limit else x)
    result = torch.exp(x)
    floor = context.numerics.exp_floor
    return result.clamp_(min=floor) if floor else result


def realdiv(context: Context, a: Tensor, b: Tensor) -> Tensor:
    """True division; integers divide as float32."""
    return torch.div(as_float(a), as_float(b))


def silu(context: Context, x: Tensor) -> Tensor:
    """x * sigmoid(x), with silu(-inf) = 0 where the CPU gives NaN (#1831, D1.5)."""
    x = as_float(x)
    result = F.silu(x)
    if context.dl16:
        return result
    return torch.where(x == -math.inf, context.numerics.silu_minus_inf, result)


def gelu(context: Context, x: Tensor) -> Tensor:
    """GELU in the one form that the device has; the `approximate` argument never reaches it (D5.2)."""
    return F.gelu(as_float(x), approximate="none" if context.numerics.gelu_formula == "erf" else "tanh")


def softplus(context: Context, x: Tensor) -> Tensor:
    """log(1 + exp(beta*x)) / beta with attrs `beta` (default 1) and `threshold` (default 20)."""
    return F.softplus(as_float(x), beta=context.number("beta", 1.0), threshold=context.number("threshold", 20.0))


def clip(context: Context, x: Tensor) -> Tensor:
    """Clamp to attrs `min` and `max`, either may be missing; an infinite bound is a NaN constant and spoils all."""
    bounds = {name: context.attrs.get(name) for name in ("min", "max")}
    low, high = (None if bound is None else context.number(name) for name, bound in bounds.items())
    if low is None and high is None:
        raise ExecutionError("needs attribute 'min' or 'max'")
    if x.dtype is torch.bool:
        x = as_float(x)
    if not x.is_floating_point():
        return torch.clamp(x, None if low is None else int(low), None if high is None else int(high))
    return torch.clamp(x, low, high)


def where3(context: Context, condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """`a` where `condition` is not zero, else `b`."""
    if a.dtype != b.dtype:
        a, b = as_float(a), as_float(b)
    return torch.where(as_bool(condition), a, b)


def identity(context: Context, x: Tensor) -> Tensor:
    """The operand itself; the executor copies, rounds and casts (so it is every cast, and `fill`, too)."""
    return x


def stored(context: Context, values: Tensor, index: Tensor) -> Tensor:
    """What a scatter stores; the executor finds the places."""
    return values


def powi(context: Context, x: Tensor) -> Tensor:
    """x to the integer attribute `exponent` by squaring, every product rounded; negative exponents divide last."""
    x = as_float(x)
    exponent = context.integer("exponent")
    remaining, base, result = abs(exponent), x, None
    while remaining:
        if remaining & 1:
            result = base if result is None else context.round(result * base)
        remaining >>= 1
        if remaining:
            base = context.round(base * base)
    if result is None:
        return torch.ones_like(x)
    return torch.reciprocal(result) if exponent < 0 else result


def square(context: Context, x: Tensor) -> Tensor:
    """x * x."""
    return multiply(context, x, x)


def layernormscale(context: Context, mean: Tensor, mean_square: Tensor) -> Tensor:
    """rsqrt(mean_square - mean^2 + eps), each step rounded: cancellation can go negative and give NaN (D6.5).

    Attribute `eps`: below half of 4.7e-10 it vanishes in DL16 (D1.5).  A release whose variance is "centred" cannot go
    negative.
    """
    variance = context.round(mean_square - context.round(mean * mean))
    if context.numerics.layer_norm_variance == "centred":
        variance = variance.clamp_(min=0.0)
    return torch.rsqrt(context.round(variance + context.number("eps")))


def layernormnorm(
    context: Context, x: Tensor, mean: Tensor, scale: Tensor, weight: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    """(x - mean) * scale * weight + bias in one pass, rounded once; weight and bias may be missing (D5.3)."""
    result = (x - mean).mul_(scale)
    if weight is not None:
        result.mul_(weight)
    return result if bias is None else result.add_(bias)


multiply = arithmetic(torch.mul)

POINTWISE: dict[str, Primitive] = {
    "add": arithmetic(torch.add),
    "sub": arithmetic(torch.sub),
    "mul": multiply,
    "realdiv": realdiv,
    "maximum": arithmetic(torch.maximum),
    "minimum": arithmetic(torch.minimum),
    "abs": on_numbers(torch.abs),
    "neg": on_numbers(torch.neg),
    "exp": exp,
    "log": on_floats(torch.log),
    "sqrt": on_floats(torch.sqrt),
    "rsqrt": on_floats(torch.rsqrt),
    "reciprocal": on_floats(torch.reciprocal),
    "tanh": on_floats(torch.tanh),
    "sigmoid": on_floats(torch.sigmoid),
    "relufwd": on_numbers(torch.relu),
    "silu": silu,
    "gelu": gelu,
    "softplus": softplus,
    "floor": on_numbers(torch.floor),
    "ceil": on_numbers(torch.ceil),
    "sign": on_numbers(torch.sign),
    "clip": clip,
    "where3": where3,
    "equal": comparison(torch.eq),
    "notequal": comparison(torch.ne),
    "greaterthan": comparison(torch.gt),
    "greaterequal": comparison(torch.ge),
    "lesserthan": comparison(torch.lt),
    "lesserequal": comparison(torch.le),
    "logical_and": on_bools(torch.logical_and),
    "logical_or": on_bools(torch.logical_or),
    "logical_not": on_bools(torch.logical_not),
    "identity": identity,
    "to_dtype": identity,
    "dl16tofp32": identity,
    "fp32todl16": identity,
    "fp8todl16": identity,
    "fill": identity,
    "ReStickifyOpHBM": identity,
    "scatter": stored,
    "LxRelayout": identity,
    "powi": powi,
    "square": square,
    "layernormscale": layernormscale,
    "layernormnorm": layernormnorm,
}

COPIES = frozenset(
    {"identity", "to_dtype", "dl16tofp32", "fp32todl16", "fp8todl16", "fill", "ReStickifyOpHBM", "LxRelayout"}
)
"""Operations that only move, cast and round their operand."""

_SELECTIONS = {"abs", "neg", "sign", "floor", "ceil", "relufwd", "clip", "maximum", "minimum", "max", "min", "where3"}
EXACT = COPIES | _SELECTIONS | {"gather", "scatter", "topkvalue"}
"""Operations whose result is a DL16 value whenever their operands are: the executor need not round it again."""
