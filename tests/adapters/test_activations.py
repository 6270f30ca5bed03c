"""Accuracy of the activation formulas over their whole range."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from hf_adapters.adapters._activations import tanh_form, tanh_gelu


def exact(x: torch.Tensor) -> torch.Tensor:
    """The tanh form without cancellation: 1 + tanh(u) = 2 / (1 + exp(-2u))."""
    u = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    return x / (1 + torch.exp((-2 * u).clamp(max=700)))


def test_relative_accuracy_holds_in_the_negative_tail() -> None:
    x = torch.linspace(-9.9, 12, 5001, dtype=torch.float64)
    assert ((tanh_gelu(x) - exact(x)).abs() <= 1e-13 * exact(x).abs()).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_rounds_once(dtype: torch.dtype) -> None:
    x = torch.linspace(-200, 200, 20001).to(dtype)
    error = (tanh_gelu(x).double() - exact(x.double())).abs()
    assert (error <= torch.finfo(dtype).eps * exact(x.double()).abs() + 1e-7).all()


def test_far_values_stay_finite_and_exact() -> None:
    x = torch.tensor([-6e4, -3e3, -40.0, 0.0, 40.0, 3e3, 6e4])
    for dtype in (torch.float16, torch.float32, torch.float64):
        assert torch.allclose(tanh_gelu(x.to(dtype)), x.clamp(min=0).to(dtype), rtol=0, atol=1e-30)


def test_the_form_to_recognise_is_the_native_one() -> None:
    x = torch.linspace(-4, 12, 1001, dtype=torch.float64)
    assert torch.allclose(tanh_form(x), F.gelu(x, approximate="tanh"), rtol=1e-12, atol=1e-15)
