"""Numerical proof, at patch time, that a module is what its replacement assumes.

Adapters find their sites by what a module computes, not by what its class is called: a copy of the module is run in
float64 on a few chosen values and compared with the candidate formulas.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from hf_adapters._classes import split_class

SAME = 1e-12
"""Largest relative difference in float64 between two ways of computing the same function on probe values."""


def leaves(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Modules without children, with their dotted paths, each module once."""
    for path, module in model.named_modules():
        if next(module.children(), None) is None:
            yield path, module


def required_arguments(module: nn.Module) -> list[str]:
    """Names of the forward arguments without a default, ``self`` left out."""
    parameters = inspect.signature(type(module).forward).parameters.values()
    wanted = (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.KEYWORD_ONLY,
    )
    return [p.name for p in parameters if p.name != "self" and p.kind in wanted and p.default is p.empty]


def bound_arguments(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments of one call by name, as the stock forward of a patched module would take them."""
    stock = split_class(type(module))[0]
    given = inspect.signature(stock.forward).bind(module, *args, **kwargs)  # type: ignore[attr-defined]
    named = dict(list(given.arguments.items())[1:])
    extra = next((p.name for p in given.signature.parameters.values() if p.kind is p.VAR_KEYWORD), None)
    named.update(named.pop(extra, {}) if extra is not None else {})
    return named


def global_names(function: Callable[..., Any]) -> dict[str, Any]:
    """Global names that a function, or a function its decorators wrap, refers to, with their values."""
    plain = inspect.unwrap(function)
    code = getattr(plain, "__code__", None)
    if code is None:
        return {}
    return {name: plain.__globals__[name] for name in code.co_names if name in plain.__globals__}


def code_names(function: Callable[..., Any]) -> frozenset[str]:
    """Every global, attribute and method name in a function's bytecode, decorators unwrapped."""
    plain = inspect.unwrap(function)
    pending = [plain.__code__] if hasattr(plain, "__code__") else []
    found: set[str] = set()
    while pending:
        code = pending.pop()
        found.update(code.co_names)
        pending.extend(const for const in code.co_consts if inspect.iscode(const))
    return frozenset(found)


def double_copy(module: nn.Module, seed: int = 0) -> nn.Module:
    """A float64 CPU copy of a small module with seeded random parameters and without hooks."""
    twin = copy.deepcopy(module)
    twin._forward_hooks.clear()
    twin._forward_pre_hooks.clear()
    twin = twin.to(device="cpu", dtype=torch.float64).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.copy_(torch.rand(parameter.shape, generator=generator, dtype=torch.float64) + 0.5)
    return twin


def run(module: Callable[..., Any], *args: Any) -> Tensor | None:
    """Output of one call, or None when the module does not accept the probe or does not return a tensor."""
    try:
        with torch.no_grad():
            result = module(*args)
    except Exception:  # a module that rejects the probe is simply not a site
        return None
    return result if isinstance(result, Tensor) else None


def same(left: Tensor | None, right: Tensor | None, tolerance: float = SAME) -> bool:
    """True when two float64 tensors have one shape and agree relative to the largest magnitude of each row."""
    if left is None or right is None or left.shape != right.shape or left.dtype != right.dtype:
        return False
    scale = right.abs().amax(dim=-1, keepdim=True).clamp(min=torch.finfo(right.dtype).tiny)
    return bool(((left - right).abs() / scale).amax() <= tolerance)
