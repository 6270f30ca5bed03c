"""What the device made of one sample: "ok", "refused:RULE", "wrong" or "error", with a sentence.

A sample is a call: positional arguments and keyword arguments as PyTorch's OpInfo or ModuleInfo makes them on the CPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from spyre_backend.errors import SpyreUnsupported
from tests.conformance.probe import representable
from tests.opinfo.tolerance import UNIT, Allowed, allowed

NARROW = (torch.float16, torch.bfloat16)
Call = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """``kind`` is "ok", "refused:RULE", "wrong" or "error"."""

    kind: str
    detail: str = ""


def held(call: Call) -> Call:
    """The call with values that the device holds exactly, so that only its arithmetic is judged (D1.5).

    Numbers in a call with 16-bit tensors lose fraction bits too: the device keeps constants in its own format.
    """
    narrow = any(dtype in NARROW for dtype in _dtypes(call))

    def leaf(x: Any) -> Any:
        if isinstance(x, float) and narrow and math.isfinite(x):
            mantissa, exponent = math.frexp(x)
            return math.ldexp(round(mantissa * 1024) / 1024, exponent)
        if not isinstance(x, Tensor):
            return x
        if x.dtype not in NARROW or x.numel() == 0:
            return x.detach()
        values = representable(x.detach().float()).to(x.dtype)
        return values if values.stride() == x.stride() else torch.empty_like(x).copy_(values)

    mapped: Call = pytree.tree_map(leaf, call)
    return mapped


def _dtypes(call: Call) -> list[torch.dtype]:
    """Dtypes of the tensors, and those asked for."""
    leaves = pytree.tree_leaves(call)
    return [x.dtype if isinstance(x, Tensor) else x for x in leaves if isinstance(x, (Tensor, torch.dtype))]


def on_device(call: Call, device: str) -> Call:
    """Tensors and ``device`` arguments moved to the device; what makes a tensor from none is told to make it there."""

    def leaf(x: Any) -> Any:
        if isinstance(x, Tensor):
            return x.to(device)
        return torch.device(device) if isinstance(x, torch.device) or x == "cpu" else x

    args, kwargs = pytree.tree_map(leaf, call)
    if not any(isinstance(x, Tensor) for x in pytree.tree_leaves(call)):
        kwargs["device"] = torch.device(device)
    return args, kwargs


def widened(call: Call) -> Call:
    """Floating tensors and dtypes as float64."""

    def leaf(x: Any) -> Any:
        if isinstance(x, Tensor):
            return x.double() if x.is_floating_point() else x.clone()
        return torch.float64 if isinstance(x, torch.dtype) and x.is_floating_point else x

    mapped: Call = pytree.tree_map(leaf, call)
    return mapped


def judge(
    function: Callable[..., Any], call: Call, device: str, reference: Callable[..., Any] | None = None
) -> Outcome:
    """Call ``function`` on the device and compare with float64 on the CPU.

    Args:
        function: runs on the device; compiled or not.
        call: arguments on the CPU.
        device: device string.
        reference: the same on the CPU where ``function`` cannot run there.
    """
    call = held(call)
    host = reference or function
    with torch.no_grad():
        plain = pytree.tree_leaves(host(*call[0], **call[1]))
        try:
            args, kwargs = on_device(call, device)
            results = pytree.tree_leaves(function(*args, **kwargs))
            got = [x.cpu() if isinstance(x, Tensor) else x for x in results]
        except SpyreUnsupported as error:
            return Outcome(f"refused:{error.rule}", str(error).splitlines()[0])
        except Exception as error:
            return Outcome("error", f"{type(error).__name__}: {str(error).strip().splitlines()[:1]}")
    if away := [x.device for x in results if isinstance(x, Tensor) and x.device.type != torch.device(device).type]:
        return Outcome("wrong", f"result on {away[0]}")
    problem = _compare(got, plain, _expected(host, call, plain))
    return Outcome("wrong", problem) if problem else Outcome("ok")


def _expected(host: Callable[..., Any], call: Call, plain: list[Any]) -> list[Any]:
    wide = widened(call)
    return allowed(
        lambda: host(*wide[0], **wide[1]),
        [dtype for dtype in _dtypes(call) if dtype in UNIT],
        [x.dtype for x in plain if isinstance(x, Tensor)],
    )


def _compare(got: list[Any], plain: list[Any], expected: list[Any]) -> str:
    if len(got) != len(expected):
        return f"{len(got)} results instead of {len(expected)}"
    for mine, real, want in zip(got, plain, expected, strict=True):
        if not isinstance(want, Allowed):
            if not (mine in (want, real) or (mine != mine and want != want)):
                return f"{mine} instead of {want}"
            continue
        if mine.dtype != real.dtype:
            return f"{mine.dtype} instead of {real.dtype}"
        if problem := want.problem(mine, real):
            return problem
    return ""
