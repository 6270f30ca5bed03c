"""Every named silent bug is traced to the decision of the compiler that brings it out.

`python -m tests.conformance.test_bisection` prints the table with the runs that each takes today.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from spyre_backend import capabilities
from spyre_backend.compiler import bisection, decisions, silent_bugs
from spyre_backend.compiler.bisection import Blamed, blame
from spyre_backend.compiler.decisions import Decision
from tests.conformance.probe import halves
from tests.conformance.test_silent_bugs import BUGS, OUTSIDE_BUNDLES, Bug, _doubled, _error

TABLE = {
    "issue-3264": ("layout", "aten.clone.default"),
    "issue-4260": ("layout", "aten.add.Tensor"),
    "issue-1783": ("layout", "aten.mul.Tensor"),
    "issue-1781": ("layout", "aten.mul.Tensor"),
    "issue-2062": ("pass", "lx_planning"),
    "issue-1760": ("operation", "aten.cat.default"),
    "issue-3502": ("bundle", "aten.index_select"),
    "issue-1918": ("operation", "aten.mm.default"),
    "issue-3770": ("binding", "binds"),
    "issue-4411": ("operation", "aten.index_put"),
}
"""Bug setting -> kind of the decision named, a part of its text. The number of runs follows from that of the decisions,
`Blamed.most_runs`: it changes with every decision that the compiler learns to take."""


def traced(bug: Bug) -> Blamed:
    with capabilities.use(bug.release), capabilities.silent_bugs(bug.name):
        return blame(lambda: _error(bug) > 0.1)


def _wrong_offsets() -> bool:
    base = halves((3, 4, 64))[0]
    return not torch.equal(torch.stack(_doubled(base.to("spyre"))), base * 2)


def _trace_offsets() -> Blamed:
    with capabilities.silent_bugs("issue-3770"):
        return blame(_wrong_offsets)


TRACED: dict[str, Callable[[], Blamed]] = {bug.name: lambda bug=bug: traced(bug) for bug in BUGS}  # type: ignore[misc]
TRACED["issue-3770"] = _trace_offsets


@pytest.mark.parametrize("name", TABLE)
def test_a_bug_is_traced_to_one_decision(name: str) -> None:
    kind, text = TABLE[name]
    found = TRACED[name]()
    assert found.decision is not None
    assert found.decision.kind == kind, str(found)
    assert text in found.decision.what
    assert 2 < found.runs <= found.most_runs, str(found)


def _search(count: int, guilty: int, monkeypatch: pytest.MonkeyPatch) -> Blamed:
    """Bisect over `count` decisions of which one makes the result wrong; nothing is compiled."""
    made = [Decision("operation", f"operation/0/{index}", str(index)) for index in range(count)]
    answers = iter([made])

    def wrong() -> bool:
        followed = decisions.active()
        assert followed is not None
        followed.taken.update({d.key: d for d in next(answers, [])})
        return made[guilty].key not in followed.declined

    monkeypatch.setattr(bisection, "_passes", list)
    return blame(wrong)


def test_runs_grow_with_the_logarithm_of_the_decisions(monkeypatch: pytest.MonkeyPatch) -> None:
    for count in range(1, 18):
        found = [_search(count, guilty, monkeypatch) for guilty in range(count)]
        assert [f.decision and f.decision.what for f in found] == [str(guilty) for guilty in range(count)]
        assert {f.among for f in found} == {count}
        # Kinds without decisions cost no run.
        assert max(f.runs for f in found) == 2 + math.ceil(math.log2(count))
        assert all(f.runs <= f.most_runs for f in found)


def test_the_table_has_every_bug_that_is_emulated() -> None:
    assert set(TABLE) == set(silent_bugs.EFFECTS) | OUTSIDE_BUNDLES


if __name__ == "__main__":
    for name in TABLE:
        found = TRACED[name]()
        print(f"{name:12} {found.runs} runs of at most {found.most_runs}, among {found.among}: {found.decision}")
