"""Probes of hard limits and of numbers: D1.4, D1.5, D6.4 to D6.6.

The numeric probes state what the device computes, not what the CPU would: their `check` holds the expected value.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.conformance.probe import Probe, halves

HALF = torch.float16


def _weight(rows: int, width: int) -> Callable[[], tuple[Tensor, ...]]:
    """Device tensors that nobody fills: a refused program never reads them, and untouched pages cost no memory."""

    def make() -> tuple[Tensor, ...]:
        weight = torch.empty(rows, width, dtype=HALF, device="spyre")
        return torch.zeros(1, width, dtype=HALF).to("spyre"), weight

    return make


def _span(rows: int, width: int, expect: str, *, slow: bool = False) -> Probe:
    def check(result: Tensor) -> None:
        assert result.shape == (1, rows)

    return Probe(
        name=f"span-{rows}x{width}",
        fn=F.linear,
        inputs=tuple,
        on_device=_weight(rows, width),
        check=check,
        expect=expect,
        source="D6.6: largest prime factor of the stick count decides",
        slow=slow,
    )


def _rows(rows: int, expect: str) -> Probe:
    return Probe(
        name=f"trip-count-{rows}",
        fn=torch.relu,
        inputs=lambda: (torch.ones(rows, 64, dtype=HALF),),
        expect=expect,
        source="D1.4, D4.4, D6.11: a prime row count stays on one core",
    )


def _exactly(*values: float) -> Callable[[Tensor], None]:
    """The result, flattened, is exactly these values (NaN equals NaN)."""

    def check(result: Tensor) -> None:
        got, want = result.double().flatten(), torch.tensor(values, dtype=torch.float64)
        assert got.shape == want.shape
        assert torch.allclose(got, want, rtol=0, atol=0, equal_nan=True), f"{got.tolist()} instead of {want.tolist()}"

    return check


def _number(
    name: str,
    fn: Callable[..., object],
    values: list[float],
    check: Callable[[Tensor], None],
    source: str,
    *,
    expect: str = "ok",
) -> Probe:
    def inputs() -> tuple[Tensor, ...]:
        return (torch.tensor(values, dtype=HALF),)

    return Probe(name=name, fn=fn, inputs=inputs, check=check, expect=expect, source=source)


def _blocked_sum(values: Tensor, block: int = 64) -> float:
    """Sum as D6.5 models it: 64-wide partial sums rounded to DL16, then added one by one in DL16."""
    total = 0.0
    for partial in values.double().reshape(-1, block).sum(-1):
        total = _round_dl16(total + _round_dl16(float(partial)))
    return total


def _round_dl16(value: float) -> float:
    """Round half to even to nine fraction bits; enough for the normal range used here."""
    if value == 0.0:
        return 0.0
    mantissa, exponent = torch.frexp(torch.tensor(value, dtype=torch.float64))
    return float(torch.ldexp((mantissa * 1024).round() / 1024, exponent))


def _summands() -> Tensor:
    return halves((1, 4096))[0] * 0 + 0.1


def _check_sum(result: Tensor) -> None:
    held = _round_dl16(float(torch.tensor(0.1, dtype=HALF)))
    want = _blocked_sum(torch.full((4096,), held))
    exact = 4096 * held
    assert abs(want - exact) > 1.0, "the example must tell blocked DL16 from exact accumulation"
    assert abs(float(result) - want) <= abs(want) * 2**-9, f"{float(result)} instead of {want} (exact {exact})"


def _vocabulary(width: int) -> Probe:
    """A softmax over a vocabulary, where the exact sum is known: one token of e^0, all others of e^-4."""

    def check(result: Tensor) -> None:
        rest = torch.tensor(-4.0).exp()
        want = torch.full((width,), float(rest / (1 + (width - 1) * rest)))
        want[7] = 1 / (1 + (width - 1) * rest)
        assert torch.allclose(result[0], want, rtol=0.02, atol=0), f"{result[0, :9]} instead of {want[:9]}"

    def logits() -> tuple[Tensor]:
        x = torch.full((1, width), -4.0, dtype=torch.bfloat16)
        x[0, 7] = 0.0
        return (x,)

    return Probe(
        name=f"softmax-{width}",
        fn=lambda x: torch.softmax(x, -1).float(),
        inputs=logits,
        check=check,
        expect="ok",
        source="D5.3 softmax, D6.5: sums do not stop growing",
    )


def _near_constant_rows() -> tuple[Tensor, ...]:
    centre = torch.linspace(60, 200, 64)[:, None]
    return ((centre + 0.06 * halves((64, 128))[0]).to(HALF),)


def _check_norm_breaks(result: Tensor) -> None:
    assert not bool(torch.isfinite(result).all(dim=-1).all()), "no row became NaN"


def _masked_softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1).float()


def _check_leak(result: Tensor) -> None:
    row = result.float().flatten()
    assert bool((row[2:] > 0).all()), f"masked positions are exactly zero: {row.tolist()}"
    assert float(row[2:].max()) < 1e-4


def _check_same(result: Tensor) -> None:
    assert torch.equal(result[0], result[1]), "gelu depends on approximate"


LIMITS = (
    _span(151936, 2048, "unsupported:span-limit"),
    _span(64 * 2377, 2048, "unsupported:span-limit"),
    _span(64 * 1601, 1344, "unsupported:span-limit"),
    _span(64 * 1600, 1344, "ok", slow=True),
    _span(152064, 2048, "ok", slow=True),
    _rows(65537, "unsupported:trip-count"),
    _rows(65521, "ok"),
    _rows(65536, "ok"),
)

NUMBERS = (
    _number(
        "overflow-survives", lambda x: (x * 4) / 8, [60000.0, 2.0] * 32, _exactly(*[30016.0, 1.0] * 32), "D1.5, D6.4 a"
    ),
    _number(
        "overflow-on-the-host",
        lambda x: x * 4,
        [60000.0, 2.0] * 32,
        _exactly(*[float("inf"), 8.0] * 32),
        "D1.5, D6.4 a",
    ),
    _number(
        "overflow-fp32",
        lambda x: (x * 4).float(),
        [60000.0, 2.0] * 32,
        _exactly(*[240128.0, 8.0] * 32),
        "D1.5: 60000 is held as 60032",
    ),
    _number(
        "exp-floor",
        lambda x: x.exp().float(),
        [-20.0, -60.0, 0.0, 0.0] * 16,
        _exactly(*[2**-24, 2**-24, 1.0, 1.0] * 16),
        "D1.5 exp, #4517",
    ),
    _number(
        "exp-minus-inf",
        lambda x: x.exp().float(),
        [float("-inf"), 0.0] * 32,
        _exactly(*[2**-24, 1.0] * 32),
        "D1.5 exp, #4517",
    ),
    _number(
        "minus-inf-is-finite",
        lambda x: x.abs().amax(-1, keepdim=True).float(),
        [float("-inf"), 1.0] * 32,
        _exactly(33_521_664.0),
        "D1.5 (2): -inf is 0xEFFF; D6.4 c",
    ),
    _number(
        "minus-inf-returns",
        lambda x: x * 1,
        [float("-inf"), 1.0] * 32,
        _exactly(*[float("-inf"), 1.0] * 32),
        "D1.5 (2)",
    ),
    _number("silu-minus-inf", F.silu, [float("-inf"), 0.0] * 32, _exactly(*[0.0, 0.0] * 32), "D1.5 #1831"),
    _number(
        "constant-inf",
        lambda x: torch.where(x > 0, x, float("-inf")),
        [-1.0, 2.0] * 32,
        _exactly(*[float("nan"), 2.0] * 32),
        "D1.5 (3), #4234: constants +-inf are NaN",
        expect="ok or unsupported:inf-constant",
    ),
    _number("softmax-leak", _masked_softmax, [1.0, 2.0] + [-32752.0] * 62, _check_leak, "D1.5, D6.4 e"),
    _number(
        "fp16-subnormal-halved-twice",
        lambda x: x * 1,
        [2**-15, 2**-14, 1.0, 0.0] * 16,
        _exactly(*[2**-17, 2**-14, 1.0, 0.0] * 16),
        "D1.5 #4689: halved in each direction",
    ),
    _number(
        "one-ulp-rounding",
        lambda x: x * 1,
        [1 + 2**-10, 1 + 3 * 2**-10] * 32,
        _exactly(*[1.0, 1 + 2**-8] * 32),
        "D1.5 RNE",
    ),
    Probe(
        name="bf16-minus-inf-sum",
        fn=lambda m: (m + m).float(),
        inputs=lambda: (torch.tensor([float("-inf"), 1.0] * 32, dtype=torch.bfloat16),),
        check=_exactly(*[float("nan"), 2.0] * 32),
        expect="ok",
        source="D6.4 b: bf16 -inf + -inf is NaN",
    ),
    Probe(
        name="blocked-sum",
        fn=lambda x: x.sum(-1),
        inputs=lambda: (_summands(),),
        check=_check_sum,
        expect="ok",
        source="D6.5 blocked accumulation",
    ),
    *(_vocabulary(width) for width in (151_936, 262_144)),
    Probe(
        name="layer-norm-near-constant",
        fn=lambda x: F.layer_norm(x, (128,)),
        inputs=_near_constant_rows,
        check=_check_norm_breaks,
        expect="ok",
        source="D6.5: E[x^2] - mean^2 goes negative",
    ),
    Probe(
        name="gelu-ignores-approximate",
        fn=lambda x: torch.stack((F.gelu(x), F.gelu(x, approximate="tanh"))),
        inputs=lambda: halves((7, 64)),
        check=_check_same,
        expect="ok",
        source="D5.2 gelu",
    ),
    Probe(
        name="int64-through-fp32",
        fn=torch.add,
        inputs=lambda: (torch.full((64,), 2**24 + 1), torch.ones(64, dtype=torch.int64)),
        check=_exactly(*[float(2**24)] * 64),
        expect="ok",
        source="D1.6: exact only below 2^24",
    ),
    Probe(
        name="sdpa-two-batches-fill",
        fn=lambda s, m: torch.softmax(s + m, -1).sum(-1),
        inputs=lambda: (*halves((2, 64, 64)), torch.full((2, 1, 64), torch.finfo(HALF).min / 2, dtype=HALF)),
        expect="ok",
        source="D6.4 c: finfo.min / 2 stays finite, a fully masked row is uniform",
    ),
)

PROBES: tuple[Probe, ...] = (*LIMITS, *NUMBERS)
