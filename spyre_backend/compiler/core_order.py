"""Numbering of the cores along the ring (D1.1, D4.4): who should be neighbours.

A bidirectional ring joins cores of consecutive numbers.  Partial sums of a divided K travel from core to core, so the
slices of K get consecutive numbers (``SPYRE_CORE_ID_K_FAST_EMISSION``, D4.8).  Otherwise the last dim varies fastest:
the cores of one row of a matmul's output, which read the same rows of A, are neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence

from spyre_backend.program import Op


def number(op: Op, split: Sequence[int], *, k_fast: bool) -> tuple[int, ...]:
    """``Op.core_order`` of ``op`` under ``split``: the dims from the fastest digit of the core number to the slowest.

    Undivided dims are left out, as their digit is always 0.  Without ``k_fast`` a divided K gets the slowest digit.
    """
    kept = len(op.dims) - op.reduced
    outer = [d for d in reversed(range(kept)) if split[d] > 1]
    inner = [d for d in reversed(range(kept, len(op.dims))) if split[d] > 1]
    return tuple(inner + outer if k_fast else outer + inner)
