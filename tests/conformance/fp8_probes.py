"""Probes of 8-bit floats: the fp8 lines of D1.6, D5.1 and D6.2, in every release the same."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tests.conformance.probe import POINTWISE_TOLERANCE, Probe, halves

FP8 = torch.float8_e4m3fn


def _sides(rows: int, inner: int, columns: int) -> tuple[Tensor, Tensor]:
    a, b = halves((rows, inner), (columns, inner))
    return a.to(FP8), b.to(FP8)


def _scales(rows: int, columns: int) -> tuple[Tensor, Tensor]:
    return torch.linspace(0.5, 1.0, rows)[:, None], torch.linspace(0.25, 2.0, columns)[None]


def _product(
    name: str, shape: tuple[int, int, int], expect: str, *, out: torch.dtype = torch.float16, eager: bool = False
) -> Probe:
    rows, _, columns = shape
    scale_a, scale_b = _scales(rows, columns)

    def check(result: Tensor) -> None:
        a, b = _sides(*shape)
        want = a.double() @ b.double().t() * scale_a * scale_b
        assert result.dtype == out
        error, most = (result.double() - want).abs().max(), want.abs().max()
        assert error <= POINTWISE_TOLERANCE * most, f"off by {error} of {most}"

    return Probe(
        name=f"scaled-mm-{name}",
        fn=lambda a, b, sa, sb: torch._scaled_mm(a, b.t(), sa, sb, out_dtype=out),
        inputs=lambda: (*_sides(*shape), scale_a, scale_b),
        check=check,
        expect=expect,
        eager=eager,
        source="D5.1 _scaled_mm, D6.2 f (#4308): K % 128 aborts",
    )


def _on_fp8(name: str, fn: Callable[[Tensor], Tensor], expect: str) -> Probe:
    def check(result: Tensor) -> None:
        assert torch.equal(result.float(), fn(_sides(7, 128, 2)[0]).float())

    return Probe(
        name=f"fp8-{name}",
        fn=fn,
        inputs=lambda: _sides(7, 128, 2)[:1],
        check=check,
        expect=expect,
        source="D1.6: fp8todl16 is the only cast, and fp8 has no pointwise operations",
    )


PROBES: tuple[Probe, ...] = (
    _product("k-128", (8, 128, 64), "ok"),
    _product("k-384-odd", (7, 384, 33), "ok", out=torch.bfloat16),
    _product("fp32", (8, 128, 64), "ok", out=torch.float32),
    _product("k-64", (8, 64, 64), "unsupported:matmul-k-stick"),
    _product("k-192", (8, 192, 64), "unsupported:matmul-k-stick"),
    _product("n-1", (8, 128, 1), "unsupported:matmul-out-one"),
    _product("to-fp8", (8, 128, 64), "unsupported:dtype-cast", out=FP8),
    _product("eager", (8, 64, 64), "fallback", eager=True),
    _on_fp8("to-fp16", lambda x: x.to(torch.float16), "ok"),
    _on_fp8("to-fp32", lambda x: x.to(torch.float32), "fallback"),
    _on_fp8("clone-transposed", lambda x: x.t().contiguous(), "ok"),
    _on_fp8("relu", torch.relu, "unsupported:dtype-unsupported"),
)
