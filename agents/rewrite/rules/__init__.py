"""The rule book: equalities by kind, one kind per file.

A rule looks at one node of a candidate's graph and changes the graph there when it fits. It need not be right: every
candidate is compared with the stock form in float64 before anything is compiled. No rule knows a model class.
"""

from __future__ import annotations

from hf_adapters.agents.rewrite.candidate import Equivalence, Rule
from hf_adapters.agents.rewrite.rules import (
    angles,
    convolutions,
    dtypes,
    features,
    functions,
    linear_maps,
    lookups,
    masks,
    parts,
    placement,
    powers,
    sticks,
    sums,
)

RULES: tuple[Rule, ...] = (
    *functions.RULES,
    *powers.RULES,
    *parts.RULES,
    *linear_maps.RULES,
    *sticks.RULES,
    *features.RULES,
    *sums.RULES,
    *convolutions.RULES,
    *masks.RULES,
    *lookups.RULES,
    *angles.RULES,
    *placement.RULES,
    *dtypes.RULES,
)
"""Tried at the refused operation and around it, in this order."""

IMPROVEMENTS: tuple[Rule, ...] = (*functions.RULES[:1], *sticks.IMPROVEMENTS)
"""Tried on forms that lower, for cheaper ones."""

_CLAIMS: dict[Rule, Equivalence] = {
    features.whole_features: "padded",
    sticks.padded_pieces: "padded",
    sums.whole_sums: "padded",
    placement.integers_outside: "exact",
    lookups.only_row: "exact",
    lookups.scalar_as_row: "exact",
}


def weaker(rule: Rule) -> Equivalence:
    """What an adapter made with a rule may claim at most."""
    return _CLAIMS.get(rule, "reassociated")
