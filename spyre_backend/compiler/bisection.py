"""Which decision of the compiler makes a result wrong: found by running again with decisions declined."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields

import torch

from spyre_backend.compiler import decisions, settings
from spyre_backend.compiler.decisions import KINDS, Decision
from spyre_backend.compiler.settings import Settings
from spyre_backend.errors import SpyreUnsupported

_OFF = {
    "cores": 1,
    "matmul_split": "greedy",
    "k_fast": False,
    "follow": False,
    "lx_planning": False,
    "lx_in_place": False,
    "lx_input_clones": False,
    "lx_relayout": False,
    "hbm_pool": False,
}
"""Settings that leave an optimisation out."""

_WORDS = {
    "cores": "work is divided over the cores",
    "matmul_split": "matmuls are divided by cost",
    "k_fast": "cores that share an output are neighbours",
    "follow": "operations follow the division of their operands",
    "lx_planning": "temporaries stay in the scratchpads",
    "lx_in_place": "results take the place of their operands in the scratchpads",
    "lx_input_clones": "inputs are copied into the scratchpads",
    "lx_relayout": "residents move over the ring to another division",
    "hbm_pool": "temporaries in device memory share bytes",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Blamed:
    """What a bisection found.

    Attributes:
        decision: with the decisions before it declined, the result is right until this one is taken; None when no
            decision changes the result.
        runs: how often the program ran.
        among: decisions of the same kind that there were.
    """

    decision: Decision | None
    runs: int
    among: int = 0

    @property
    def most_runs(self) -> int:
        """Runs that finding it can take: one with everything, one for each kind down to its own, a binary search."""
        if self.decision is None:
            return 1 + len(KINDS)
        return 2 + KINDS.index(self.decision.kind) + (self.among - 1).bit_length()


def blame(wrong: Callable[[], bool]) -> Blamed:
    """Find the decision that makes a program wrong.

    A program that compiles nothing runs once. Kinds are tried in the order of `decisions.KINDS`. When the result is
    right with all decisions of a kind declined, a binary search finds the first one that makes it wrong.

    Args:
        wrong: compiles and runs the program; whether its result is wrong. A refusal of the device counts as neither:
            what cannot be compiled in another way is passed over.

    Raises:
        ValueError: the result is right.
    """
    bisection = _Bisection(wrong)
    if not bisection.wrong_without(()):
        raise ValueError("the result is right: there is nothing to look for")
    if not bisection.taken:
        return Blamed(decision=None, runs=bisection.runs)
    baseline = [*_passes(), *bisection.taken.values()]
    for kind in KINDS:
        candidates = [decision for decision in baseline if decision.kind == kind]
        if candidates and bisection.wrong_without(candidates) is False:
            return Blamed(decision=bisection.first(candidates), runs=bisection.runs, among=len(candidates))
    return Blamed(decision=None, runs=bisection.runs)


def _passes() -> list[Decision]:
    chosen = settings.current()
    names = [f.name for f in fields(Settings) if f.name in _OFF and getattr(chosen, f.name) != _OFF[f.name]]
    return [Decision("pass", name, f"{name}: {_WORDS[name]}") for name in names]


class _Bisection:
    def __init__(self, wrong: Callable[[], bool]) -> None:
        self.wrong, self.runs = wrong, 0
        self.taken: dict[str, Decision] = {}

    def wrong_without(self, declined: Sequence[Decision]) -> bool | None:
        """Whether the result is wrong with these declined; None when the device refuses the program then."""
        self.runs += 1
        changes = {d.key: _OFF[d.key] for d in declined if d.kind == "pass"}
        keys = frozenset(d.key for d in declined)
        torch._dynamo.reset()
        with ExitStack() as stack:
            stack.enter_context(torch._inductor.config.patch(force_disable_caches=True))
            stack.enter_context(settings.using(**changes))
            followed = stack.enter_context(decisions.following(keys))
            try:
                return self.wrong()
            except SpyreUnsupported:
                if not declined:
                    raise
                return None
            finally:
                torch._dynamo.reset()
                if not declined:
                    self.taken = followed.taken

    def first(self, candidates: Sequence[Decision]) -> Decision:
        """The first that makes the result wrong when it and those before it are taken, those after it declined."""
        right, bad = 0, len(candidates)
        while bad - right > 1:
            middle = (right + bad) // 2
            if self.wrong_without(candidates[middle:]) is False:
                right = middle
            else:
                bad = middle
        return candidates[bad - 1]


__all__ = ["Blamed", "blame"]
