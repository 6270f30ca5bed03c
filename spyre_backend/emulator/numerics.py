"""DL16, the device's 16-bit float, and the blocked accumulation built on it (D1.5, D6.5).

DL16 has 1 sign bit, 6 exponent bits (bias 31) and 9 fraction bits.  There are no subnormals: exponent field 0 with a
non-zero fraction is a normal number and only fraction 0 is zero, so the smallest magnitude is (1+1/512)*2^-31.  Code
0x7FFF is the one merged NaN/Inf.  Values travel through the executors as float32 tensors that hold DL16 values exactly.

The functions named ``*_reference`` are plain torch and say what is meant; the C++ extension, which is what runs, is
compared with them by the tests.
"""

from __future__ import annotations

import torch
from torch import Tensor

from spyre_backend import _C

DL16_MAX = (1 + 510 / 512) * 2.0**32
DL16_MIN = (1 + 1 / 512) * 2.0**-31
NAN_CODE = 0x7FFF

_DROPPED_BITS = 23 - 9
_EXPONENT_SHIFT = (127 - 31) << 9
_OVERFLOW = (1 + 511 / 512) * 2.0**32


def dl16_round_reference(x: Tensor) -> Tensor:
    """Round float32 `x` to the nearest DL16 values, ties to even; overflow, infinities and NaN become NaN (D1.5).

    Args:
        x: float32, any shape and strides.

    Returns:
        A new float32 tensor of the same shape.
    """
    bits = x.contiguous().view(torch.int32)
    half = (1 << (_DROPPED_BITS - 1)) - 1
    kept = (bits + half + ((bits >> _DROPPED_BITS) & 1)) & -(1 << _DROPPED_BITS)
    rounded = kept.view(torch.float32)
    magnitude = x.abs()
    tiny = torch.where(magnitude > DL16_MIN / 2, DL16_MIN, 0.0).copysign(x)
    rounded = torch.where(magnitude < DL16_MIN, tiny, rounded)
    finite = rounded.abs() < _OVERFLOW
    return torch.where(finite & ~x.isnan(), rounded, torch.nan)


def dl16_encode_reference(x: Tensor) -> Tensor:
    """DL16 codes (int16) of float32 `x`, rounded to nearest even; every NaN and overflow gets code 0x7FFF (D1.5)."""
    rounded = dl16_round_reference(x)
    bits = rounded.view(torch.int32)
    sign = (bits >> 16) & 0x8000
    magnitude = ((bits & 0x7FFFFFFF) >> _DROPPED_BITS) - _EXPONENT_SHIFT
    code = torch.where(rounded == 0, sign, magnitude | sign)
    return torch.where(rounded.isnan(), NAN_CODE, code).to(torch.int16)


def dl16_decode_reference(codes: Tensor) -> Tensor:
    """Float32 values of the DL16 `codes` (int16); the merged code of either sign reads as NaN (D1.5)."""
    wide = codes.to(torch.int32)
    magnitude = wide & 0x7FFF
    bits = ((magnitude + _EXPONENT_SHIFT) << _DROPPED_BITS) & 0x7FFFFFFF
    value = torch.where(magnitude == 0, 0, bits).view(torch.float32)
    value = torch.where(magnitude == NAN_CODE, torch.nan, value)
    return torch.where(wide < 0, -value, value)


def block_accumulate_reference(partials: Tensor) -> Tensor:
    """Sum `partials` over dim 0 in order, every partial and every running sum rounded to DL16 (D6.5).

    Args:
        partials: float32 [blocks, ...], at least one block.

    Returns:
        Float32 [...] that holds DL16 values.
    """
    total = dl16_round_reference(partials[0])
    for partial in partials[1:]:
        total = dl16_round_reference(total + dl16_round_reference(partial))
    return total


def grouped_accumulate(partials: Tensor, group: int) -> Tensor:
    """:func:`block_accumulate` of groups of `group` partial sums, then of groups of their sums, until one is left.

    The sources' measurements end at 64 partial sums of 64 (D6.5).  Added one after another, equal terms would stop
    growing at 1024 partial sums, and a softmax over a vocabulary would be wrong without an error; so more of them than
    the setting `reduction_group` are added group by group.  0 adds all of them one after another.
    """
    while 0 < group < partials.shape[0]:
        partials = torch.stack([block_accumulate(part.contiguous()) for part in torch.split(partials, max(group, 2))])
    return block_accumulate(partials)


def dl16_round(x: Tensor) -> Tensor:
    """:func:`dl16_round_reference` in C++; never changes `x`."""
    result: Tensor = _C.dl16_round(x)
    return result


def dl16_round_(x: Tensor) -> Tensor:
    """:func:`dl16_round_reference` in C++ and in place; `x` must not overlap itself.  Returns `x`."""
    _C.dl16_round_(x)
    return x


def dl16_encode(x: Tensor) -> Tensor:
    """:func:`dl16_encode_reference` in C++."""
    result: Tensor = _C.dl16_encode(x)
    return result


def dl16_decode(codes: Tensor) -> Tensor:
    """:func:`dl16_decode_reference` in C++."""
    result: Tensor = _C.dl16_decode(codes)
    return result


def block_accumulate(partials: Tensor) -> Tensor:
    """:func:`block_accumulate_reference` in C++."""
    result: Tensor = _C.block_accumulate(partials)
    return result
