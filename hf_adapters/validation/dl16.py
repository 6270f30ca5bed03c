"""The device's 16-bit number format on plain CPU float32 tensors.

A float32 tensor whose every value is a DL16 number stands for a device tensor: DL16 has 1 sign, 6 exponent and 9
fraction bits (D1.5), so float32 holds each of its values exactly. The validator has its own implementation, so that a
fault in the emulator's rounding is seen as a difference and not copied into the noise floor;
`tests/validation/test_dl16.py` compares the two.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from spyre_backend.capabilities import Numerics, current


def _native_round() -> Callable[[Tensor], Tensor] | None:
    """The extension module's rounding, which is quicker; None when it is not built."""
    try:
        from spyre_backend import _C
    except ImportError:
        return None
    rounding: Callable[[Tensor], Tensor] = _C.dl16_round_
    return rounding


_NATIVE_ROUND = _native_round()

FRACTION_BITS_DROPPED = 23 - 9
"""Fraction bits of float32 that DL16 does not have (D1.5)."""

ROUNDING_UNIT = 2.0**-10
"""Largest relative error of one rounding to nearest with 9 fraction bits."""

FP16_SMALLEST_NORMAL = 2.0**-14
FP16_LARGEST_DL16 = 65472.0
"""What 65504 becomes on the device: the carry out of the fp16 range saturates (D1.5)."""


def numerics() -> Numerics:
    """Numeric settings of the release in force."""
    return current().numerics


def round_(x: Tensor, settings: Numerics | None = None) -> Tensor:
    """Round a float32 tensor to DL16 in place: to nearest even, NaN beyond the largest number, the nearer of zero and
    the smallest number below it (D1.5).

    Args:
        x: float32, any shape; its storage is written.
        settings: range of the format; the release in force when None.

    Returns:
        `x`.
    """
    limits = settings or numerics()
    if _NATIVE_ROUND is not None and x.is_contiguous():
        _NATIVE_ROUND(x)
        return x
    return round_in_torch_(x, limits)


def round_in_torch_(x: Tensor, limits: Numerics) -> Tensor:
    """`round_` by integer arithmetic on the bits; what the native rounding is tested against."""
    bits = x.view(torch.int32)
    odd = (bits >> FRACTION_BITS_DROPPED).bitwise_and_(1)
    bits.add_(odd).add_((1 << (FRACTION_BITS_DROPPED - 1)) - 1).bitwise_and_(-(1 << FRACTION_BITS_DROPPED))
    if x.numel():
        low, high = (float(v) for v in torch.aminmax(x))
        if not (low >= -limits.dl16_max and high <= limits.dl16_max):
            x.masked_fill_(~(x.abs() <= limits.dl16_max), float("nan"))
    smallest = limits.dl16_min
    magnitude = x.abs()
    if bool(((magnitude < smallest) & (magnitude > 0)).any()):
        to_smallest = (magnitude > smallest / 2) & (magnitude < smallest)
        x.masked_fill_(magnitude <= smallest / 2, 0.0)
        x.copy_(torch.where(to_smallest, torch.full_like(x, smallest).copysign(x), x))
    return x


def rounded(x: Tensor, settings: Numerics | None = None) -> Tensor:
    """`round_` on a contiguous copy of `x`; see there."""
    return round_(x.to(torch.float32, copy=True, memory_format=torch.contiguous_format), settings)


def constant(x: Tensor, settings: Numerics | None = None) -> Tensor:
    """`rounded` for what a program is given as a number: -inf becomes the largest negative code, as in a copy from the
    host.

    A compiler encodes it as NaN (D1.5), which would leave no floor at all to models that mask with it. A candidate that
    still holds such a number fails on the device.
    """
    limits = settings or numerics()
    minus_inf = x == float("-inf")
    held = rounded(torch.where(minus_inf, torch.zeros_like(x), x), limits)
    return torch.where(minus_inf, torch.full_like(held, limits.minus_inf_value), held)


def from_host(x: Tensor, settings: Numerics | None = None) -> Tensor:
    """What a host fp16 or bf16 tensor holds after the copy to the device: float32 with DL16 values.

    Of fp16 one fraction bit is rounded away, subnormals are halved, -inf becomes the largest negative code of the
    saturating branch, 65504 becomes 65472. bf16 keeps its fraction bits; what is beyond the range of DL16 becomes its
    largest number, infinities become NaN (D1.5).
    """
    limits = settings or numerics()
    wide = x.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
    if not wide.numel():
        return wide
    lowest, highest = (float(v) for v in torch.aminmax(wide))
    ordinary = lowest >= -FP16_LARGEST_DL16 and highest <= FP16_LARGEST_DL16
    if limits.halve_subnormals and x.dtype != torch.bfloat16:
        normal = torch.nn.functional.hardshrink(wide, FP16_SMALLEST_NORMAL * (1 - 2.0**-20))
        wide = wide.lerp_(normal, 0.5) if ordinary else torch.where(normal == wide, wide, wide * 0.5)
    if ordinary:
        return round_(wide, limits)
    return _from_host_at_the_ends(wide, x.dtype, limits)


def _from_host_at_the_ends(wide: Tensor, dtype: torch.dtype, limits: Numerics) -> Tensor:
    if dtype == torch.bfloat16:
        inside = wide.clamp(-limits.dl16_max, limits.dl16_max)
        return round_(torch.where(wide.isfinite(), inside, torch.full_like(wide, float("nan"))), limits)
    minus_inf = wide == float("-inf")
    finite = wide.isfinite()
    out = rounded(torch.where(minus_inf, torch.zeros_like(wide), wide), limits)
    if dtype == torch.float16 and limits.saturate_fp16_carry:
        out = torch.where(finite, out.clamp(-FP16_LARGEST_DL16, FP16_LARGEST_DL16), out)
    return torch.where(minus_inf, torch.full_like(out, limits.minus_inf_value), out)


def accumulate(partials: Tensor, settings: Numerics | None = None) -> Tensor:
    """Sum DL16 partial sums one after the other, rounding after each addition (D6.5).

    Args:
        partials: float32 `[blocks, ...]`; written to.

    Returns:
        float32 `[...]` with DL16 values.
    """
    round_(partials, settings)
    total = partials[0].clone()
    for block in partials[1:]:
        round_(total.add_(block), settings)
    return total


def sum_last(x: Tensor, settings: Numerics | None = None) -> Tensor:
    """Sum over the last dimension in blocks (64 wide by default), each rounded, added in DL16 (D6.5), in groups where
    there are more than 64 of them. `[..., n]` -> `[...]`, float32."""
    limits = settings or numerics()
    if limits.reduction_accumulation == "fp32":
        return rounded(x.sum(-1), limits)
    width = limits.reduction_block if limits.reduction_accumulation == "blocked" else 1
    blocks = -(-x.shape[-1] // width)
    if blocks <= 1:
        return rounded(x.sum(-1), limits)
    padded = torch.nn.functional.pad(x, (0, blocks * width - x.shape[-1]))
    partials = padded.view(*x.shape[:-1], blocks, width).sum(-1)
    partials = partials.movedim(-1, 0).contiguous()
    group = limits.reduction_group if limits.reduction_accumulation == "blocked" else 0
    while 0 < group < len(partials):
        partials = torch.stack([accumulate(part, limits) for part in torch.split(partials, max(group, 2))])
    return accumulate(partials, limits)


def matmul(a: Tensor, b: Tensor, settings: Numerics | None = None) -> Tensor:
    """`a @ b` with the contraction cut in blocks whose partial sums are DL16 numbers, added in DL16 (D6.5).

    Args:
        a: float32 `[..., m, k]`. b: float32 `[..., k, n]`, same leading dimensions.

    Returns:
        float32 `[..., m, n]` with DL16 values.
    """
    limits = settings or numerics()
    k = a.shape[-1]
    width = {"blocked": limits.matmul_block, "sequential": 1, "fp32": k}[limits.matmul_accumulation] or 1
    total = round_(torch.matmul(a[..., :width], b[..., :width, :]), limits)
    for start in range(width, k, width):
        partial = torch.matmul(a[..., start : start + width], b[..., start : start + width, :])
        round_(total.add_(round_(partial, limits)), limits)
    return total
