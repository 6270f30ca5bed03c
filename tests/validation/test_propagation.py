"""Rounding grows from layer to layer in a deep random model; a layer that computes something else stands out."""

from __future__ import annotations

from hf_adapters.validation.metrics import propagated
from hf_adapters.validation.types import Thresholds

LIMITS = Thresholds()


def verdicts(*errors):
    worst = {f"right/layers.{i}": error for i, error in enumerate(errors)}
    limits = propagated(worst, LIMITS.equivalence, LIMITS.equivalence_growth)
    return [worst[key] <= limit for key, limit in limits.items()]


def test_rounding_that_a_deep_model_amplifies_is_accepted():
    assert all(verdicts(*(4e-15 * 6**depth for depth in range(16))))


def test_a_layer_that_computes_something_else_is_rejected_where_it_stands():
    assert verdicts(4e-15, 2e-14, 1e-3, 4e-3) == [True, True, False, True]


def test_a_late_layer_may_not_hide_behind_the_rounding_of_earlier_ones():
    assert verdicts(1e-12, 1e-10, 5e-9, 1e-5)[-1] is False


def test_the_first_layer_has_no_allowance():
    assert verdicts(2e-9)[0] is False


def test_input_sets_are_judged_apart():
    worst = {"left/layers.0": 1e-15, "right/layers.0": 1e-10, "left/layers.1": 5e-9}
    limits = propagated(worst, LIMITS.equivalence, LIMITS.equivalence_growth)
    assert limits["left/layers.1"] == LIMITS.equivalence
