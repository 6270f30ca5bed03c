"""Generated graphs, compiled for the device: eager float64 with error bars, the fast executor and the exact one.

SPYRE_GRAPHS sets how many graphs are generated.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from spyre_backend.emulator import executor
from spyre_backend.errors import SpyreUnsupported
from tests.conformance.probe import representable
from tests.emulator import tracked
from tests.emulator.graphs import Graph, graphs
from tests.emulator.lockstep import lockstep
from tests.emulator.setups import Setup, setups

GRAPHS = int(os.environ.get("SPYRE_GRAPHS", "30"))
LARGEST = 2.0**14
"""Results beyond this are left out of the comparison with eager: float16 ends at 65504 on the host."""


def to_host(bar: tracked.Tracked) -> tuple[torch.Tensor, torch.Tensor]:
    """Value and error as the copy to the host leaves them: bf16 keeps 7 fraction bits, fp16 subnormals are halved."""
    lost = {"bfloat16": 2.0**-7, "float16": 2.0**-11}.get(bar.dtype, 0.0)
    flushed = 2.0**-14 if bar.dtype == "float16" else 0.0
    return bar.value, bar.error + lost * bar.value.abs() + flushed


def check(graph: Graph, setup: Setup = Setup()) -> None:  # noqa: B008
    """Compile and compare; a refusal by a rule is as good as a right result."""
    torch._dynamo.reset()
    graph.inputs = setup.host(graph.inputs)
    with torch.no_grad(), warnings.catch_warnings(), setup.in_force():
        warnings.simplefilter("ignore")
        _compare(graph, setup)


def _compare(graph: Graph, setup: Setup) -> None:
    try:
        inputs = setup.device(graph.inputs)
    except SpyreUnsupported as refusal:
        event(f"input refused: {refusal.rule}")
        return
    compiled = torch.compile(graph.function(), backend="inductor", dynamic=False)
    try:
        fast = compiled(*inputs)
    except SpyreUnsupported as refusal:
        event(f"refused: {refusal.rule}")
        return
    for one, other in zip(fast, compiled(*setup.device(graph.inputs)), strict=True):
        same = torch.equal(one.cpu().nan_to_num(), other.cpu().nan_to_num())
        assert same, "the same values at other addresses give another result"
    with executor("exact"), lockstep() as observer:
        exact = compiled(*inputs)
    event("executed" if observer.operations else "only views")
    for place, (bar, one, other) in enumerate(zip(graph.bars(), fast, exact, strict=True)):
        value, error = to_host(bar)
        small = value.abs() < LARGEST
        for name, got in (("fast", one), ("exact", other)):
            off = (got.cpu().double() - value).abs()
            good = ~small | (off <= error)
            assert bool(good.all()), f"{name} result {place} is off by {off[~good][0]}, at most {error[~good][0]}"


@pytest.mark.slow
@given(graphs(), setups())
@settings(max_examples=GRAPHS, deadline=None, suppress_health_check=list(HealthCheck))
def test_eager_fast_and_exact_agree(graph: Graph, setup: Setup) -> None:
    check(graph, setup)


@pytest.mark.slow
@given(st.sampled_from(("float16", "bfloat16")).flatmap(lambda dtype: graphs((dtype,))), setups())
@settings(max_examples=GRAPHS // 2, deadline=None, suppress_health_check=list(HealthCheck))
def test_sixteen_bit_graphs_agree(graph: Graph, setup: Setup) -> None:
    check(graph, setup)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: -x.abs().t(),
        lambda x: x.abs().t().sum(1, keepdim=True),
        lambda x: x.abs().reshape(64, 1) * 2,
    ],
)
def test_a_row_that_becomes_a_column_keeps_its_stick(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """The default layout of a column has one element in each stick, and only copies scatter (D2.4)."""
    x = representable(torch.linspace(-3, 3, 64)[None]).half()
    torch._dynamo.reset()
    compiled = torch.compile(function, dynamic=False)
    with executor("exact"), lockstep() as observer:
        assert torch.equal(compiled(x.to("spyre")).cpu(), function(x))
    assert observer.operations >= 2
