"""Values with error bars: what eager float64 computes, and how far a device that rounds may be from it.

Each operation adds the rounding of its own result, relative ``u`` (DL16: 2^-10, D1.5; fp32: 2^-24, doubled for
functions that are not rounded perfectly), to what the errors of its operands become.  A comparison of values whose bars
meet may come out either way: bools carry 0 or 1 as their bar.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

UNIT = {"float16": 2.0**-10, "bfloat16": 2.0**-10, "float32": 2.0**-23, "int32": 0.0, "bool": 0.0}
TINY = {"float16": 2.0**-31, "bfloat16": 2.0**-31, "float32": 2.0**-126, "int32": 0.0, "bool": 0.0}


@dataclass(frozen=True, slots=True)
class Tracked:
    """Float64 ``value`` and ``error`` of the same shape; ``dtype`` is the program's."""

    value: Tensor
    error: Tensor
    dtype: str

    def rounded(self) -> Tracked:
        """With the rounding of a device result added."""
        return Tracked(
            self.value, self.error + UNIT[self.dtype] * (self.value.abs() + self.error) + TINY[self.dtype], self.dtype
        )

    def moved(self, function: Callable[[Tensor], Tensor]) -> Tracked:
        """The same elements elsewhere."""
        return Tracked(function(self.value), function(self.error), self.dtype)


def exactly(x: Tensor) -> Tracked:
    """A tensor that the device holds as it is."""
    return Tracked(x.double(), torch.zeros_like(x, dtype=torch.float64), str(x.dtype).removeprefix("torch."))


def lipschitz(function: Callable[[Tensor], Tensor], slope: float) -> Callable[[Tracked], Tracked]:
    """A function of one argument whose slope is nowhere larger."""
    return lambda x: Tracked(function(x.value), slope * x.error, x.dtype).rounded()


def exp_of_negative(x: Tracked) -> Tracked:
    """exp(-|x|): slope at most 1; in 16 bits nothing comes out below 2^-24 (#4517)."""
    floor = 2.0**-24 if UNIT[x.dtype] == UNIT["float16"] else 0.0
    value = torch.exp(-x.value.abs())
    return Tracked(value, x.error + 2 * x.error * UNIT[x.dtype] + floor, x.dtype).rounded()


def add(a: Tracked, b: Tracked) -> Tracked:
    return Tracked(a.value + b.value, a.error + b.error, a.dtype).rounded()


def sub(a: Tracked, b: Tracked) -> Tracked:
    return Tracked(a.value - b.value, a.error + b.error, a.dtype).rounded()


def mul(a: Tracked, b: Tracked) -> Tracked:
    error = a.value.abs() * b.error + b.value.abs() * a.error + a.error * b.error
    return Tracked(a.value * b.value, error, a.dtype).rounded()


def maximum(a: Tracked, b: Tracked) -> Tracked:
    return Tracked(torch.maximum(a.value, b.value), torch.maximum(a.error, b.error), a.dtype)


def greater(a: Tracked, b: Tracked) -> Tracked:
    value = (a.value > b.value).double()
    doubtful = (a.value - b.value).abs() <= a.error + b.error
    known = (a.error == 0) & (b.error == 0)
    return Tracked(value, (doubtful & ~known).double(), "bool")


def both(a: Tracked, b: Tracked) -> Tracked:
    sure_no = ((a.value == 0) & (a.error == 0)) | ((b.value == 0) & (b.error == 0))
    return Tracked(a.value * b.value, torch.where(sure_no, 0.0, torch.maximum(a.error, b.error)), "bool")


def select(condition: Tracked, a: Tracked, b: Tracked) -> Tracked:
    value = torch.where(condition.value > 0, a.value, b.value)
    error = torch.where(condition.value > 0, a.error, b.error)
    other = torch.where(condition.value > 0, b.value, a.value)
    doubt = (value - other).abs() + torch.maximum(*torch.broadcast_tensors(a.error, b.error))
    return Tracked(value, torch.where(condition.error > 0, doubt, error), a.dtype)


def total(x: Tracked, dims: list[int], keep: bool) -> Tracked:
    """A sum: blocks of 64 rounded, and each running sum of blocks (D6.5)."""
    count = math.prod(x.value.shape[d] for d in dims)
    roundings = 2 * count + 2 if UNIT[x.dtype] < 2.0**-12 else 2 * _blocks(x, dims) + 2
    size = (x.value.abs() + x.error).sum(dims, keepdim=keep)
    error = x.error.sum(dims, keepdim=keep) + (roundings * UNIT[x.dtype] * 1.1 + 2.0**-18) * size
    return Tracked(x.value.sum(dims, keepdim=keep), error, x.dtype).rounded()


def _blocks(x: Tracked, dims: list[int]) -> int:
    """Blocks at most: every stick of the innermost reduced dim may begin one."""
    inner = x.value.shape[max(dims)]
    return math.prod(x.value.shape[d] for d in dims) // inner * (inner // 64 + 1) + 1


def mean(x: Tracked, dims: list[int], keep: bool) -> Tracked:
    count = math.prod(x.value.shape[d] for d in dims)
    summed = total(x, dims, keep)
    scale = Tracked(torch.tensor(1.0 / count).double(), torch.tensor(UNIT[x.dtype] / count).double(), x.dtype)
    return mul(summed, scale)


def amax(x: Tracked, dims: list[int], keep: bool) -> Tracked:
    return Tracked(x.value.amax(dims, keepdim=keep), x.error.amax(dims, keepdim=keep), x.dtype)


def matmul(a: Tracked, b: Tracked) -> Tracked:
    """Blocks of 64 of K, perhaps on several cores: three roundings for each at most (D6.5)."""
    size = (a.value.abs() + a.error) @ (b.value.abs() + b.error)
    carried = a.value.abs() @ b.error + a.error @ b.value.abs() + a.error @ b.error
    roundings = 3 * (a.value.shape[-1] // 64 + 1) + 2
    error = carried + (roundings * UNIT[a.dtype] * 1.1 + 2.0**-18) * size
    return Tracked(a.value @ b.value, error, a.dtype).rounded()


def divide(a: Tracked, b: Tracked) -> Tracked:
    """For divisors that are surely at least one half."""
    below = (b.value.abs() - b.error).clamp(min=0.5)
    value = a.value / b.value
    return Tracked(value, (a.error + value.abs() * b.error) / below, a.dtype).rounded()


def softmax(x: Tracked) -> Tracked:
    """amax, sub, exp, sum, div: the terms' sum is at least 1."""
    power = exp_of_negative(sub(x, amax(x, [x.value.dim() - 1], True)))
    return divide(power, total(power, [x.value.dim() - 1], True))


def cast(x: Tracked, dtype: str) -> Tracked:
    return Tracked(x.value, x.error, dtype).rounded()
