"""Known-wrong patches of every family of the catalogue are rejected.

A wrong patch concerns a family when it changes what the stock model answers. Each family is judged with one of them,
the next family with the next; ``SPYRE_MUTATIONS=all`` (``make mutations``) takes all.
"""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor, nn

from hf_adapters import validate
from hf_adapters.validation.runners import Simulated
from tests.adapters import families
from tests.validation.mutations import NUMERIC, Mutation

ALL = os.environ.get("SPYRE_MUTATIONS") == "all"
CHANGED = 1e-6
"""A relative change, far above what another order of float32 additions makes."""
EVERYWHERE = {3, 4, 5, 6, 7, 8, 9, 10}
"""Numbers of those that have to change every family, or the suite would not say anything about it."""


@torch.no_grad()
def _states(model: nn.Module) -> Tensor:
    found: Tensor = model(**families.batch("right"))[0]
    return found


def _effect(name: str, mutation: Mutation) -> float:
    """Largest change of a state, relative to the largest state; 0 where the family has nothing to change, or does not
    run with it (a full mask where the forward makes its own)."""
    model = families.build(name, torch.float32)
    stock = _states(model)
    try:
        with mutation(model):
            changed = _states(model)
    except (ValueError, RuntimeError, IndexError, AssertionError):
        return 0.0
    return float((changed - stock).abs().max() / stock.abs().max())


@pytest.mark.slow
@pytest.mark.parametrize("name", families.ON_DEVICE)
def test_wrong_numbers_are_rejected(name: str) -> None:
    concerned = [mutation for mutation in NUMERIC if _effect(name, mutation) > CHANGED]
    assert {mutation.number for mutation in concerned} >= EVERYWHERE
    turn = families.NAMES.index(name)
    for mutation in concerned if ALL else [concerned[turn % len(concerned)]]:
        model = families.build(name, torch.float32)
        found = validate(model, reference="inline", runner=Simulated(), patch=mutation)
        assert found.verdict == "mismatch", f"{mutation.name}: {found.reason}"
        assert found.failed_checks, mutation.name
