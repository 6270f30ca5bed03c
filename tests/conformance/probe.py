"""What a conformance probe is, and how it is run.

A probe is a small function on device tensors with the outcome that the device notes promise. Outcomes:

    ok                      runs on the device, no CPU fallback, value within tolerance of the CPU in float32
    fallback                runs, right value, and `torch.spyre.fallback_counts()` is not empty
    unsupported:RULE|RULE   raises `SpyreUnsupported` with one of these rules
    A or B                  the sources leave both open

An expectation is one outcome for every release, or a table by release.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from spyre_backend import capabilities
from spyre_backend.errors import SpyreUnsupported

DEFAULT_RELEASE = "2026.07"
POINTWISE_TOLERANCE = 1e-2
"""Relative to the largest reference value; the plugin's own pointwise tolerance (D6.9)."""


@dataclass(frozen=True, kw_only=True)
class Probe:
    """One function, its inputs (made on the CPU, seeded) and what the device does with it."""

    name: str
    fn: Callable[..., Any]
    inputs: Callable[[], tuple[Any, ...]]
    expect: str | Mapping[str, str]
    source: str
    eager: bool = False
    dynamic: bool = False
    tolerance: float = POINTWISE_TOLERANCE
    on_device: Callable[[], tuple[Any, ...]] | None = None
    check: Callable[[Any], None] | None = None
    slow: bool = False

    def releases(self) -> tuple[str, ...]:
        """Releases for which the probe states an outcome: all of them, but the slow ones run on the default alone."""
        if not isinstance(self.expect, str):
            return tuple(self.expect)
        return (DEFAULT_RELEASE,) if self.slow else capabilities.available()

    def expected(self, release: str) -> str:
        """The stated outcome for `release`."""
        return self.expect if isinstance(self.expect, str) else self.expect[release]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What happened: `kind` is "ok", "fallback", "unsupported:RULE", "wrong" or "error"; `detail` explains it."""

    kind: str
    detail: str = ""
    fallbacks: Mapping[Any, int] = field(default_factory=dict)

    def satisfies(self, expected: str) -> bool:
        """Whether this is (one of) the expected outcome(s)."""
        for alternative in expected.split(" or "):
            head, _, rules = alternative.strip().partition(":")
            own_head, _, own_rule = self.kind.partition(":")
            if head == own_head and (not rules or own_rule in rules.split("|")):
                return True
        return False


def halves(*shapes: tuple[int, ...], scale: float = 1.0, dtype: torch.dtype = torch.float16) -> tuple[Tensor, ...]:
    """Seeded normal tensors, one of each shape, in `dtype`; the values are representable in DL16."""
    generator = torch.Generator().manual_seed(20260711)
    return tuple(representable(torch.randn(shape, generator=generator) * scale).to(dtype) for shape in shapes)


def representable(x: Tensor) -> Tensor:
    """Make float32 values that copy to the device and back exactly: nine fraction bits, no fp16 subnormals (D1.5)."""
    mantissa, exponent = torch.frexp(x)
    return torch.ldexp((mantissa * 1024).round() / 1024, exponent) * (x.abs() > 2.0**-13)


def integers(*shape: int, high: int, dtype: torch.dtype = torch.int64) -> Tensor:
    """Seeded integers in [0, high)."""
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(711)).to(dtype)


def run(probe: Probe, release: str) -> Outcome:
    """Run a probe under `release` and classify what happened."""
    cpu_inputs = probe.inputs()
    reference = None if probe.check else _reference(probe.fn, cpu_inputs)
    with capabilities.use(release), torch.no_grad():
        torch._dynamo.reset()
        device_inputs = probe.on_device() if probe.on_device else tuple(_to_device(x) for x in cpu_inputs)
        fn = probe.fn if probe.eager else torch.compile(probe.fn, backend="inductor", dynamic=probe.dynamic)
        torch.spyre.reset_fallback_counts()
        try:
            result = fn(*device_inputs)
            fallbacks = dict(torch.spyre.fallback_counts())
            result = _to_cpu(result)
        except SpyreUnsupported as error:
            return Outcome(kind=f"unsupported:{error.rule}", detail=str(error).splitlines()[0])
        except Exception as error:
            return Outcome(kind="error", detail=f"{type(error).__name__}: {_first_line(error)}")
    problem = _problem(probe, result, reference)
    if problem:
        return Outcome(kind="wrong", detail=problem, fallbacks=fallbacks)
    return Outcome(kind="fallback" if fallbacks else "ok", detail=str(fallbacks or ""), fallbacks=fallbacks)


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "")


def _to_device(x: Any) -> Any:
    return x.to("spyre") if isinstance(x, Tensor) else x


def _to_cpu(x: Any) -> Any:
    if isinstance(x, (tuple, list)):
        return tuple(_to_cpu(item) for item in x)
    return x.cpu() if isinstance(x, Tensor) else x


def _reference(fn: Callable[..., Any], inputs: tuple[Any, ...]) -> Any:
    """The function on the CPU with every floating-point input in float32; the result is compared as float32."""
    wide = (x.float() if isinstance(x, Tensor) and x.is_floating_point() else x for x in inputs)
    with torch.no_grad():
        return fn(*(x.clone() if isinstance(x, Tensor) else x for x in wide))


def _problem(probe: Probe, result: Any, reference: Any) -> str:
    """Empty when the result is right, otherwise a sentence saying how it is wrong."""
    if probe.check is not None:
        try:
            probe.check(result)
        except AssertionError as error:
            return re.sub(r"\s+", " ", str(error)) or "the check failed"
        return ""
    results, references = (x if isinstance(x, tuple) else (x,) for x in (result, reference))
    if len(results) != len(references):
        return f"{len(results)} results instead of {len(references)}"
    return next(filter(None, map(_difference, results, references, [probe.tolerance] * len(results))), "")


def _difference(got: Any, want: Any, tolerance: float) -> str:
    if not isinstance(want, Tensor):
        return "" if got == want else f"{got} instead of {want}"
    if got.shape != want.shape:
        return f"shape {tuple(got.shape)} instead of {tuple(want.shape)}"
    if not want.is_floating_point():
        return "" if torch.equal(got.to(want.dtype), want) else "integer or bool values differ"
    error = (got.float() - want.float()).abs()
    bound = tolerance * max(float(want.abs().max()) if want.numel() else 0.0, 1e-6)
    if not bool((error <= bound).all()):
        return f"largest error {float(error.max()):.4g}, allowed {bound:.4g}"
    return ""
