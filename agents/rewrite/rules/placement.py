"""Integers prepared outside of the compiled graph: positions and masks of ids are no work for the matrix units."""

from __future__ import annotations

from torch import Tensor, fx

from hf_adapters.agents.rewrite.candidate import Candidate
from hf_adapters.agents.rewrite.forms import kind, value

_INTEGER_WORK = frozenset(
    {"eq", "ne", "lt", "le", "gt", "ge", "cumsum", "arange", "remainder", "floor_divide", "and_", "or_", "argmax"}
)


def integers_outside(candidate: Candidate, node: fx.Node) -> str | None:
    """The module op by op, its children compiled by themselves; integer operations then are input preparation."""
    if candidate.eager or kind(node) not in _INTEGER_WORK or not candidate.untouched:
        return None
    if any(isinstance(value(n), Tensor) and value(n).is_floating_point() for n in node.all_input_nodes):
        return None
    candidate.eager = True
    return "integers are prepared op by op, outside of the compiled graphs"


RULES = (integers_outside,)
