"""How a candidate's run behaved, apart from its numbers: fallbacks, use of the device, weights."""

from __future__ import annotations

from collections.abc import Mapping

from hf_adapters.validation.recording import Recording, batches
from hf_adapters.validation.runners import Execution
from hf_adapters.validation.types import Check
from hf_adapters.validation.work import LEAST_SHARE

ALLOWED_FALLBACKS = ("lookup", "integer")
"""Embedding look-ups and the preparation of integer inputs may run on the CPU; computation may not (design:
verdicts)."""

FALLBACK = "no computation on the CPU"
ON_DEVICE = "computed on the device"
WEIGHTS = "weights unchanged"


def checks(
    execution: Execution, *, calls: int, weights_before: str, weights_after: str, weights_reference: str
) -> list[Check]:
    """Judge the run itself.

    Args:
        execution: what the runner reports.
        calls: how many times the model was called.
        weights_before: digest of the weights before patching.
        weights_after: the same after the run.
        weights_reference: the same in the process that rebuilt the stock model.
    """
    computed = {op: count for (op, category), count in execution.fallbacks.items() if category not in ALLOWED_FALLBACKS}
    out = [
        Check(
            name=FALLBACK,
            passed=not computed,
            where="candidate",
            value=float(sum(computed.values())),
            limit=0.0,
            detail=", ".join(f"{op} x{count}" for op, count in sorted(computed.items())),
        ),
        Check(
            name=WEIGHTS,
            passed=weights_before == weights_after == weights_reference,
            where="candidate",
            value=None,
            limit=None,
            detail=""
            if weights_before == weights_after == weights_reference
            else "the state dict is not the stock one",
        ),
    ]
    elsewhere = ", ".join(f"{what} x{count}" for what, count in sorted(execution.computed_elsewhere.items()))
    out.append(
        Check(
            name=ON_DEVICE,
            passed=not elsewhere,
            where="candidate",
            value=float(len(execution.computed_elsewhere)),
            limit=0.0,
            detail=elsewhere,
        )
    )
    if execution.launches is not None:
        least = max(1, execution.layers) * calls
        out.append(
            Check(
                name=ON_DEVICE,
                passed=execution.launches >= least,
                where="launches",
                value=float(execution.launches),
                limit=float(least),
                detail="at least one program for each layer and call",
            ),
        )
    return out


def stock_work(products: Mapping[frozenset[int], int], reference: Recording, candidate: Recording) -> float:
    """Multiplications of the stock model for as many positions as the candidate's layers had.

    Padding to buckets multiplies more, but only where a product runs over the tokens: the projection of a table of
    relative positions stays as it is. A product runs over the tokens when one of its sizes is the length of a batch,
    or its rows times its length.

    Args:
        products: multiplications of the stock run by the operands' sizes.
        reference: what the stock run recorded.
        candidate: what the candidate's run recorded.
    """
    stock = batches(reference)
    lengths = {size for rows, length in stock for size in (length, rows * length)}
    padded = sum(r * n for r, n in batches(candidate)) / max(1, sum(r * n for r, n in stock))
    growth = max(1.0, padded)
    return sum(count * (growth if sizes & lengths else 1.0) for sizes, count in products.items())


def work_checks(done: int | None, stock: float) -> list[Check]:
    """Whether the device multiplied about as much as the stock model does; none when the runner cannot tell."""
    if done is None:
        return []
    least = LEAST_SHARE * stock
    detail = "multiplications of matrix products; fewer mean skipped work, or work done off the device"
    return [Check(name=ON_DEVICE, passed=done >= least, where="work", value=float(done), limit=least, detail=detail)]
