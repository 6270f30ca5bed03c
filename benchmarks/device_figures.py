"""Figures that the sources publish for the card, each computed anew by compiling and timing the computation.

Nothing here runs on the emulator: a launch only hands over its program, which the clock times.  The published side is
typed in from the sources (D-numbers and issues), the emulated side never is.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import torch
from torch._inductor import config
from torch.nn import functional as F

from spyre_backend.compiler import division, settings
from spyre_backend.compiler.graph import Graph
from spyre_backend.emulator.clock import ProgramTime, launch_time, program_time
from spyre_backend.program import Program
from spyre_backend.runtime.launch import LoadedProgram

TOLERANCE = 0.10


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """One published figure beside ours.

    ``switch`` turns the optimisation off or on; ``limit`` says why the model cannot reproduce the figure and is empty
    where it must, within :data:`TOLERANCE`.  Only a row of D7.9 that does not say "yes" may have a limit.
    """

    what: str
    switch: str
    unit: str
    paper: float
    emulated: float
    source: str
    limit: str = ""

    @property
    def error(self) -> float:
        """Relative error of the emulated figure."""
        return self.emulated / self.paper - 1 if self.paper else 0.0

    @property
    def holds(self) -> bool:
        """Whether the figure is reproduced, or is not expected to be."""
        return bool(self.limit) or abs(self.error) <= TOLERANCE


def programs(function: Callable[..., Any], *shapes: tuple[int, ...], **switches: Any) -> list[Program]:
    """What `function` of float16 device tensors launches when compiled under these compiler settings."""
    launched: list[Program] = []
    torch._dynamo.reset()

    def take(loaded: LoadedProgram, *_: torch.Tensor) -> None:
        launched.append(loaded.program)

    tensors = [torch.empty(shape, dtype=torch.float16, device="spyre") for shape in shapes]
    with (
        mock.patch.object(LoadedProgram, "launch", take),
        config.patch(fx_graph_cache=False),
        settings.using(**switches),
        torch.no_grad(),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        torch.compile(function, dynamic=False)(*tensors)
    return launched


def timed(function: Callable[..., Any], *shapes: tuple[int, ...], **switches: Any) -> ProgramTime:
    """The time of the one program that `function` compiles to."""
    (program,) = programs(function, *shapes, **switches)
    return program_time(program)


@contextmanager
def first_divided(split: tuple[int, ...]) -> Iterator[None]:
    """Compile with this division of the first operation, as another planner than ours may choose it."""
    stock = division.divide

    def divide(graph: Graph) -> None:
        stock(graph)
        graph.ops[0] = replace(graph.ops[0], split=split, core_order=())

    with mock.patch.object(division, "divide", divide):
        yield


def matmul(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x @ w


def softmax_stages() -> Iterator[Figure]:
    """512 x 1024 over dim 0, through the stages of scratchpad planning."""
    stages: list[tuple[str, float, dict[str, bool]]] = [
        ("results in the scratchpads", 27.66, {"lx_in_place": False, "lx_input_clones": False, "lx_relayout": False}),
        ("+ reuse in place, relayout", 23.93, {"lx_input_clones": False}),
        ("+ clones of inputs", 23.67, {}),
    ]

    def run(**switches: Any) -> ProgramTime:
        return timed(lambda x: torch.softmax(x, 0), (512, 1024), **switches)

    off = run(lx_planning=False)
    base = 32.51
    for name, paper, switches in stages:
        yield Figure(
            what=f"softmax 512x1024, {name}, of the time without",
            switch=", ".join(switches) or "lx_planning",
            unit="ratio",
            paper=paper / base,
            emulated=run(**switches).us / off.us,
            source="D7.9 row 1",
        )
    yield Figure(
        what="softmax 512x1024 without scratchpads",
        switch="lx_planning",
        unit="us",
        paper=base,
        emulated=off.us,
        source="D7.9 row 1",
        limit="no, reproduce the ratios (D7.9 row 1): the byte model alone gives 56 us at 150 GB/s",
    )
    for stage, paper_mn, switches in (
        ("none", 8.0, {"lx_planning": False}),
        ("in place", 3.0, {"lx_input_clones": False}),
        ("all", 2.0, {}),
    ):
        found = run(cores=1, **switches)
        yield Figure(
            what=f"softmax on one core, traffic with scratchpads: {stage}",
            switch="lx_planning, lx_input_clones",
            unit="tensors",
            paper=paper_mn,
            emulated=found.touched_bytes / (512 * 1024 * 2),
            source="D7.9 row 1",
        )


def wide_matmuls() -> Iterator[Figure]:
    """[M, 4096] x [4096, N]: the bandwidth follows the cores that N can be divided over."""
    for rows, columns, paper, switch in (
        (1, 25600, 1762.0, "N of 400 sticks: 25 cores"),
        (8, 25600, 1377.0, "M=8: all cores"),
        (1, 26624, 1508.0, "N padded to 416 sticks: all cores"),
    ):
        yield Figure(
            what=f"[{rows},4096] x [4096,{columns}]",
            switch=switch,
            unit="us",
            paper=paper,
            emulated=timed(matmul, (rows, 4096), (4096, columns)).us,
            source="D7.9 row 9, #4032",
        )


def matmul_choices() -> Iterator[Figure]:
    """M=512, K=4096: the division that the cost model chooses, and layouts."""
    unmodelled = (
        "qualitatively (D7.9 row 3): operands that many cores read cost nothing in model (A), only in the score (B) "
        "that chooses"
    )
    for columns, speedup in ((4096, 2.59), (1024, 1.76), (12800, 2.07)):
        times = [timed(matmul, (512, 4096), (4096, columns), matmul_split=split).us for split in ("greedy", "cost")]
        yield Figure(
            what=f"[512,4096] x [4096,{columns}], cost model against greedy",
            switch="matmul_split",
            unit="times faster",
            paper=speedup,
            emulated=times[0] / times[1],
            source="D7.9 row 3, #2407",
            limit=unmodelled,
        )
    best = timed(matmul, (512, 4096), (4096, 4096)).us
    truncated = "no (D7.9 row 5): the source's table was found only in part"
    for batch, paper, name in ((1, -0.29, "least"), (8, -0.69, "most")):
        shape = (512, 4096) if batch == 1 else (batch, 512 // batch, 4096)
        worst = timed(matmul, shape, (4096, 4096), matmul_split="greedy").us
        yield Figure(
            what=f"matmul by tiling and layout, {name}: {batch}x{512 // batch} rows, greedy, against 512 rows, cost",
            switch="matmul_split, 3-D or 2-D input",
            unit="time",
            paper=paper,
            emulated=best / worst - 1,
            source="D7.9 row 5",
            limit=truncated,
        )
    linear, product = timed(F.linear, (1, 4096), (4096, 4096)), timed(matmul, (1, 4096), (4096, 4096))
    yield Figure(
        what="F.linear against x @ A, [1,4096] x [4096,4096]",
        switch="weight stored transposed",
        unit="times slower",
        paper=3.5,
        emulated=linear.us / product.us,
        source="D7.9 row 16, #3512",
    )


def fused_mlp() -> Iterator[Figure]:
    """[1, 512, 4096] through gate, up and down of 12800: the division of what stands between the matmuls."""

    def mlp(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
        return (F.silu(x @ gate) * (x @ up)) @ down

    shapes = ((512, 4096), (4096, 12800), (4096, 12800), (12800, 4096))
    before, after = (timed(mlp, *shapes, follow=follow) for follow in (False, True))
    greedy = timed(mlp, *shapes, matmul_split="greedy")
    limit = "partly (D7.9 row 6): the sustained rate of 1140 MAC/ns is 74 % of peak, 79 % is out of the model's reach"
    source = "D7.9 row 6, #2765"
    rows = [
        ("utilisation before", "follow off", 0.66, before.utilisation, ""),
        ("utilisation after", "follow on", 0.79, after.utilisation, limit),
        ("time", "follow", -0.17, after.us / before.us - 1, limit),
        ("all rows divided, M/32: utilisation", "matmul_split=greedy", 0.33, greedy.utilisation, limit),
    ]
    for name, switch, paper, emulated, why in rows:
        yield Figure(
            what=f"fused MLP [1,512,4096], {name}",
            switch=switch,
            unit="share",
            paper=paper,
            emulated=emulated,
            source=source,
            limit=why,
        )


def relayouts() -> Iterator[Figure]:
    """relu(neg(x)) on 8 x 256 x 512 and 8 cores, neg divided otherwise than relu (rows over 8 cores)."""

    def run(split: tuple[int, int, int], *, relayout: bool) -> ProgramTime:
        with first_divided(split):
            return timed(lambda x: torch.relu(torch.neg(x)), (8, 256, 512), cores=8, lx_relayout=relayout)

    off, on = run((1, 4, 2), relayout=False), run((1, 4, 2), relayout=True)
    source = "D7.9 row 7, #4024"
    yield Figure(
        what="relu(neg(x)) through device memory", switch="lx_relayout off", unit="us", paper=80.0, emulated=off.us,
        source=source,
    )  # fmt: skip
    yield Figure(
        what="relu(neg(x)) over the ring (two-way exchange)", switch="lx_relayout on", unit="us", paper=41.1,
        emulated=on.us, source=source,
    )  # fmt: skip
    yield Figure(
        what="its relayout", switch="lx_relayout on", unit="us", paper=1.1, emulated=on.relayout_us, source=source
    )
    for pattern, paper in (((2, 4, 1), 2.3), ((4, 2, 1), 8.72), ((8, 1, 1), 24.2)):
        cut = "x".join(str(pieces) for pieces in pattern)
        yield Figure(
            what=f"relayout of 2.1 MB, 8 cores, from a {cut} division",
            switch="lx_relayout",
            unit="us",
            paper=paper,
            emulated=run(pattern, relayout=True).relayout_us,
            source="D7.9 row 8, D7.6, #3844",
        )


def transports() -> Iterator[Figure]:
    """Data movement of D7.3 and the checks of D7.1, D7.2 and D7.4, as GB/s or us."""

    def rate(function: Callable[..., Any], *shapes: tuple[int, ...]) -> float:
        time = timed(function, *shapes)
        return (time.read_bytes + time.written_bytes) / time.us / 1000

    square = (4096, 4096)
    half = (2048, 4096)
    rows: list[tuple[str, str, float, float, str]] = [
        ("restickify 4096x4096", "GB/s", 116.0, rate(lambda x: x.t().contiguous(), square), "D7.3"),
        ("cat on dim 0, 2 x 2048x4096", "GB/s", 57.6, rate(lambda x, y: torch.cat([x, y], 0), half, half), "D7.3"),
        ("cat on dim 1, 2 x 4096x2048", "GB/s", 105.2,
         rate(lambda x, y: torch.cat([x, y], 1), (4096, 2048), (4096, 2048)), "D7.3"),
        ("outer transpose 64x64x512", "GB/s", 105.2,
         rate(lambda x: x.transpose(0, 1).contiguous(), (64, 64, 512)), "D7.3"),
        ("sum over an outer dim 4096x4096", "GB/s", 113.0, rate(lambda x: x.sum(0), square), "D7.4"),
        ("sum over the stick 4096x4096", "GB/s", 134.2, rate(lambda x: x.sum(-1), square), "D7.4"),
        ("three-stream add, 64x16384", "us", 52.0,
         timed(lambda x, y: x + y, (64, 16384), (64, 16384)).us, "D7.2"),
        ("add of a row, 64x16384", "us", 31.5, timed(lambda x, y: x + y, (64, 16384), (16384,)).us, "D7.2"),
        ("softmax 4096x2048: memory time", "us", 320.0, timed(lambda x: x.softmax(-1), (4096, 2048)).memory_us, "D7.1"),
        ("launch through a graph, with its 429.5 us of compute", "us", 5520.0, launch_time("graph") + 429.5, "D7.8"),
    ]  # fmt: skip
    for what, unit, paper, emulated, source in rows:
        yield Figure(what=what, switch="-", unit=unit, paper=paper, emulated=emulated, source=source)


def figures() -> list[Figure]:
    """Every figure, in the order of the table."""
    parts = (softmax_stages, matmul_choices, fused_mlp, relayouts, wide_matmuls, transports)
    return [figure for part in parts for figure in part()]
