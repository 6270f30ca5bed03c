"""Every named silent bug is traced to the decision of the compiler that brings it out."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from spyre_backend import capabilities
from spyre_backend.compiler import silent_bugs
from spyre_backend.compiler.bisection import Blamed, blame
from tests.conformance.probe import halves
from tests.conformance.test_silent_bugs import BUGS, OUTSIDE_BUNDLES, Bug, _doubled, _error

TABLE = {
    "issue-3264": ("layout", "aten.clone.default", 3),
    "issue-4260": ("layout", "aten.add.Tensor", 3),
    "issue-1783": ("layout", "aten.mul.Tensor", 3),
    "issue-1781": ("layout", "aten.mul.Tensor", 7),
    "issue-2062": ("pass", "lx_planning", 5),
    "issue-1760": ("operation", "aten.cat.default", 4),
    "issue-3502": ("bundle", "aten.index_select", 6),
    "issue-1918": ("operation", "aten.mm.default", 3),
    "issue-3770": ("binding", "binds", 4),
    "issue-4411": ("operation", "aten.index_put", 4),
}
"""Bug setting -> kind of the decision named, a part of its text, runs needed."""


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
    kind, text, runs = TABLE[name]
    found = TRACED[name]()
    assert found.decision is not None
    assert (found.decision.kind, found.runs) == (kind, runs), str(found)
    assert text in found.decision.what


def test_the_table_has_every_bug_that_is_emulated() -> None:
    assert set(TABLE) == set(silent_bugs.EFFECTS) | OUTSIDE_BUNDLES
