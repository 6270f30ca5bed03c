"""Activation formulas made of operations that the device has, and the search for modules that compute the same."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from hf_adapters.adapters import _probe

_SATURATED = 10.0
"""tanh(sqrt(2/pi) * (x + 0.044715 x^3)) is exactly +-1 in float64 from here on, so the cube can stay in range."""


def tanh_gelu(x: Tensor) -> Tensor:
    """The tanh form of gelu without pow; any shape, any floating dtype.

    The cube of a value beyond 2047 leaves the range of the device format (8.57e9, D1.5), hence the bound.
    """
    bounded = torch.clamp(x, -_SATURATED, _SATURATED)
    cube = bounded * bounded * bounded
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (bounded + 0.044715 * cube)))


def squared_relu(x: Tensor) -> Tensor:
    """relu(x)^2 as a product."""
    positive = nn.functional.relu(x)
    return positive * positive


class TanhGelu(nn.Module):
    """Mixin: :func:`tanh_gelu` in place of a module that computes the same with pow or with ``approximate``."""

    def forward(self, input: Tensor) -> Tensor:
        """Elementwise; shape and dtype are kept."""
        return tanh_gelu(input)


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


MIXINS = (TanhGelu, ErfGelu, SquaredRelu)


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


def computes(module: nn.Module, formula: Callable[[Tensor], Tensor]) -> bool:
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
