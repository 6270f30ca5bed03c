"""Which division of a matmul is cheapest: the split score of D7.5 (B), in microseconds.

The model ranks divisions; it does not predict times (the emulator's clock does, by D7.5 (A)).  Its terms were read from
the sources in a compressed form.  Where that form left a reading open, the choice is stated here:

* The fan penalty of the memory term is applied to each operand by the number of cores that read the same bytes: n for
  A, m for B.  Applied to all bytes alike it would give [1,4096] x [4096,25600] 8 cores, where 25 were measured (#4032).
* Cores go to K only where the output dims leave them unused (D4.4: K last).
* "value split" is read as a divided N of a product of two activations (probabilities x values), "shared down" as a
  divided K of a weight that narrows (K > N).
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass

from spyre_backend.compiler.graph import operands
from spyre_backend.emulator.clock_constants import HBM_PEAK, PEAK_MACS
from spyre_backend.program import Op


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """A matmul as the model sees it.

    ``batch``, ``m``, ``n``, ``k`` are extents in elements, ``*_units`` what may be divided (N and K in sticks);
    ``volume`` are the bytes of A, B and the output on the device; ``shared`` says that all batches read the same B.
    ``least`` are the pieces that the span limit demands of (batch..., m, n).
    """

    batch: tuple[int, ...]
    m: int
    n: int
    k: int
    batch_units: tuple[int, ...]
    m_units: int
    n_units: int
    k_units: int
    volume: tuple[int, int, int]
    shared: bool
    least: tuple[int, ...]
    cores: int


@dataclass(frozen=True, slots=True)
class Split:
    """Pieces of each dim of a matmul."""

    batch: tuple[int, ...]
    m: int
    n: int
    k: int

    @property
    def used(self) -> int:
        """Cores that take part."""
        return math.prod(self.batch) * self.m * self.n * self.k


def choose(
    op: Op, counts: tuple[int, ...], least: tuple[int, ...], cores: int, volume: tuple[int, int, int]
) -> tuple[int, ...] | None:
    """The best split of a ``batchmatmul``, or None if its space is not (batch..., M, N, K).

    Args:
        op: the operation.
        counts: pieces that each dim may have at most.
        least: pieces that the span limit demands.
        cores: cores that may be used.
        volume: device bytes of A, B and the output.
    """
    if op.reduced != 1 or len(op.dims) < 3:
        return None
    outer = len(op.dims) - 3
    _, b = operands(op)
    best = _best(
        Problem(
            batch=op.dims[:outer],
            m=op.dims[-3],
            n=op.dims[-2],
            k=op.dims[-1],
            batch_units=counts[:outer],
            m_units=counts[-3],
            n_units=counts[-2],
            k_units=counts[-1],
            volume=volume,
            shared=not any(b.strides[:outer]),
            least=least[:-1],
            cores=cores,
        )
    )
    return None if best is None else (*best.batch, best.m, best.n, best.k)


@functools.lru_cache(maxsize=4096)
def _best(problem: Problem) -> Split | None:
    return min(candidates(problem), key=lambda split: (score(problem, split), -split.used), default=None)


def candidates(problem: Problem) -> list[Split]:
    """All divisions by divisors that use at most the cores given; K takes only what the output dims leave."""
    units = (*problem.batch_units, problem.m_units, problem.n_units)
    choices = [_divisors(n, problem.cores, least) for n, least in zip(units, problem.least, strict=True)]
    outputs = [pieces for pieces in itertools.product(*choices) if math.prod(pieces) <= problem.cores]
    left = problem.cores // max((math.prod(pieces) for pieces in outputs), default=1)
    return [
        Split(batch=pieces[:-2], m=pieces[-2], n=pieces[-1], k=k)
        for pieces in outputs
        for k in _divisors(problem.k_units, left, 1)
        if math.prod(pieces) * k <= problem.cores
    ]


def _divisors(extent: int, most: int, multiple_of: int) -> list[int]:
    return [d for d in range(1, min(extent, most) + 1) if extent % d == 0 and d % multiple_of == 0]


def score(problem: Problem, split: Split) -> float:
    """Microseconds plus preferences of one division; lower is better (D7.5 B)."""
    pieces = math.prod(split.batch)
    m_t, n_t = problem.m / split.m, problem.n / split.n
    macs = math.prod(problem.batch) * problem.m * problem.n * problem.k
    compute = _pt_inverse(m_t) * macs / split.used / (1000 * PEAK_MACS) * (2 if split.k > 1 else 1)
    a, b, c = problem.volume
    memory = (a * _fan(split.n) + b * (_fan(split.m) if problem.shared else 1) + c) / (1000 * HBM_PEAK)
    out_per_core = math.prod(problem.batch) * problem.m * problem.n / (pieces * split.m * split.n)
    sums = (split.k - 1) * out_per_core * (1e-3 if problem.shared else 1e-4)
    preferences = (
        10 * _log2(split.m)
        + 30 * _log2(16 / m_t)
        + 25 * _log2(n_t / 512)
        + 150 * _log2(problem.cores / split.used)
        + 10 * _log2(pieces)
    )
    if not problem.shared and split.n > 1:
        preferences += 20
    if problem.shared and problem.k > problem.n and split.k > 1:
        preferences += 10
    return compute + memory + sums + preferences


def _pt_inverse(rows: float) -> float:
    """Inverse efficiency of the PE array with ``rows`` rows on a core; 8 rows of PEs, five passes fill it (D7.5 B)."""
    if rows >= 40:
        return 1.0
    return float(5**0.25 if rows <= 8 else (40 / rows) ** 0.25)


def _fan(readers: int) -> float:
    """How much longer bytes take that this many cores read."""
    return float(max(1.0, (readers / 8) ** 0.75))


def _log2(x: float) -> float:
    return max(0.0, math.log2(x))
