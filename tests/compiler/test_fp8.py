"""Products of 8-bit floats: both executors, the program's operations, and what is refused beyond the probes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from spyre_backend.emulator import executor
from spyre_backend.errors import SpyreUnsupported
from tests.conformance.probe import halves
from tests.emulator.lockstep import lockstep


def scaled(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Tensor) -> Tensor:
    return torch._scaled_mm(a, b.t(), scale_a, scale_b, bias=bias, out_dtype=torch.bfloat16)


def test_both_executors_multiply_and_the_bias_is_added() -> None:
    a, b = (x.to(torch.float8_e4m3fn) for x in halves((33, 256), (100, 256)))
    (bias,) = halves((100,), dtype=torch.bfloat16)
    scales = torch.tensor(0.5), torch.tensor(0.25)
    want = a.double() @ b.double().t() * 0.125 + bias.double()
    torch._dynamo.reset()
    compiled = torch.compile(scaled, dynamic=False)
    inputs = [x.to("spyre") for x in (a, b, *scales, bias)]
    torch.spyre.reset_fallback_counts()
    fast = compiled(*inputs)
    with executor("exact"), lockstep() as observer:
        exact = compiled(*inputs)
    assert not torch.spyre.fallback_counts()
    assert observer.operations >= 6
    for got in (fast, exact):
        assert float((got.cpu().double() - want).abs().max()) < 2.0**-7 * float(want.abs().max())


@pytest.mark.parametrize("kind", ["e5m2", "scale of the result"])
def test_what_the_sources_do_not_give_is_refused(kind: str) -> None:
    a, b = halves((8, 128), (64, 128))
    if kind == "e5m2":
        with pytest.raises(SpyreUnsupported) as caught:
            a.to(torch.float8_e5m2).to("spyre")
        assert caught.value.rule == "dtype-unsupported"
        return
    one = torch.ones(()).to("spyre")
    torch._dynamo.reset()
    function = torch.compile(
        lambda a, b: torch._scaled_mm(a, b.t(), one, one, scale_result=one, out_dtype=torch.float16), dynamic=False
    )
    with pytest.raises(SpyreUnsupported) as caught:
        function(*(x.to(torch.float8_e4m3fn).to("spyre") for x in (a, b)))
    assert caught.value.rule == "dtype-cast"
