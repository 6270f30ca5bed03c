"""Activation formulas made of operations that the device has, and the search for modules that compute the same."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from hf_adapters.adapters import _probe
from hf_adapters.adapters._sticks import HALF_DTYPES

_SATURATED = 10.0
"""tanh(sqrt(2/pi) * (x + 0.044715 x^3)) is exactly +-1 in float64 from here on, so the cube can stay in range."""


ROOT = math.sqrt(2.0 / math.pi)
SHORT_ROOT = 0.7978845608
SHORTER_ROOT = 0.79788456
"""The same constant as some models round it."""


def tanh_form(x: Tensor, root: float = ROOT) -> Tensor:
    """The tanh form of gelu as models write it, to recognise it by: ``x / 2 * (1 + tanh(u))``."""
    return 0.5 * x * (1.0 + torch.tanh(_argument(x, root)))


def tanh_gelu(x: Tensor, root: float = ROOT) -> Tensor:
    """The same function as ``x * sigmoid(2 u)``, without pow; any shape, any floating dtype.

    ``1 + tanh(u)`` cancels for negative ``x``, and tanh has a 16-bit kernel only, sigmoid a float32 one (D1.6).
    """
    work = x.to(torch.float32) if x.dtype in HALF_DTYPES else x
    return (work * torch.sigmoid(2.0 * _argument(work, root))).to(x.dtype)


def _argument(x: Tensor, root: float) -> Tensor:
    """``root * (x + 0.044715 x^3)``, bounded where the function has long reached its limits."""
    bounded = torch.clamp(x, -_SATURATED, _SATURATED)
    return root * (bounded + 0.044715 * (bounded * bounded * bounded))


def squared_relu(x: Tensor) -> Tensor:
    """relu(x)^2 as a product."""
    positive = nn.functional.relu(x)
    return positive * positive


def quick_gelu(x: Tensor) -> Tensor:
    """``x * sigmoid(1.702 x)``, in float32 for 16-bit inputs."""
    work = x.to(torch.float32) if x.dtype in HALF_DTYPES else x
    return (work * torch.sigmoid(1.702 * work)).to(x.dtype)


def mish(x: Tensor) -> Tensor:
    """``x * tanh(log(1 + e^x))`` as ``x * n / (n + 2)`` with ``n = e^x (e^x + 2)``.

    Tanh and softplus have 16-bit kernels only (D1.6). The exponent is bounded where the quotient is exactly 1 in
    float64 and before a float32 exp saturates (22, D1.5).
    """
    work = x.to(torch.float32) if x.dtype in HALF_DTYPES else x
    power = torch.exp(torch.clamp(work, max=20.0))
    part = power * (power + 2.0)
    return (work * (part / (part + 2.0))).to(x.dtype)


def erf_gelu(x: Tensor) -> Tensor:
    """The native gelu, which is the exact one."""
    return nn.functional.gelu(x)


class TanhGelu(nn.Module):
    """Mixin: :func:`tanh_gelu` in place of a module that computes the same in another way.

    Attributes:
        root: the constant sqrt(2 / pi) as the stock module has it.
    """

    root: float = ROOT

    def forward(self, input: Tensor) -> Tensor:
        """Elementwise; shape and dtype are kept."""
        return tanh_gelu(input, self.root)


class ErfGelu(nn.Module):
    """Mixin: the native gelu in place of a formula that calls erf, which has no kernel (D5.2)."""

    def forward(self, input: Tensor) -> Tensor:
        """Elementwise; shape and dtype are kept."""
        return nn.functional.gelu(input)


class SquaredRelu(nn.Module):
    """Mixin: :func:`squared_relu` in place of a formula that squares with pow."""

    def forward(self, input: Tensor) -> Tensor:
        """Elementwise; shape and dtype are kept."""
        return squared_relu(input)


class QuickGelu(nn.Module):
    """Mixin: :func:`quick_gelu`."""

    def forward(self, input: Tensor) -> Tensor:
        """Elementwise; shape and dtype are kept."""
        return quick_gelu(input)


class Mish(nn.Module):
    """Mixin: :func:`mish`."""

    def forward(self, input: Tensor) -> Tensor:
        """Elementwise; shape and dtype are kept."""
        return mish(input)


MIXINS = (TanhGelu, ErfGelu, SquaredRelu, QuickGelu, Mish)


def activations(model: nn.Module) -> Iterator[tuple[str, nn.Module, frozenset[str]]]:
    """Stateless leaf modules of one tensor that no adapter took yet: (path, module, names in its bytecode)."""
    for path, module in _probe.leaves(model):
        if module._parameters or module._buffers or isinstance(module, (nn.modules.dropout._DropoutNd, *MIXINS)):
            continue
        if len(_probe.required_arguments(module)) == 1:
            yield path, module, _names(module)


def _names(module: nn.Module) -> frozenset[str]:
    names = _probe.code_names(type(module).forward)
    act = getattr(module, "act", None)
    return names | _probe.code_names(act) if callable(act) else names


def functions(model: nn.Module) -> Iterator[tuple[str, str, Callable[..., Any]]]:
    """Functions that forwards call by a global name and whose code has an erf: (path of module, name, function)."""
    for path, module in model.named_modules():
        for name, value in _probe.global_names(type(module).forward).items():
            if isinstance(value, FunctionType) and "erf" in _probe.code_names(value):
                yield path, name, value


def computes(module: Callable[[Tensor], Tensor], formula: Callable[[Tensor], Tensor]) -> bool:
    """The module agrees with the formula in float64, element by element, far into both tails."""
    grid = torch.cat([torch.linspace(-12, 12, 193), torch.tensor([-300.0, 300.0])]).double()[:, None]
    return _probe.same(_probe.run(module, grid), formula(grid))


def tails() -> dict[str, Tensor]:
    """Example input: random values, zeros, tiny and huge ones; float64 ``[330]``."""
    generator = torch.Generator().manual_seed(3)
    body = torch.randn(64, 5, generator=generator, dtype=torch.float64) * 3
    ends = torch.tensor([0.0, -0.0, 1e-7, -1e-7, 40.0, -40.0, 3000.0, -3000.0, 9.9, -9.9], dtype=torch.float64)
    return {"input": torch.cat([body.flatten(), ends])}


def activation(name: str) -> nn.Module:
    """Example module: a transformers activation by name, float64."""
    from transformers.activations import ACT2FN

    return nn.Sequential(ACT2FN[name]).double().eval()
