"""Runs every probe against the compiled device and compares the outcome with what the device notes promise."""

from __future__ import annotations

import pytest

from spyre_backend import capabilities
from tests.conformance import (
    cache_probes,
    disguise_probes,
    eager_probes,
    fp8_probes,
    layout_probes,
    limit_probes,
    matmul_probes,
    pointwise_probes,
    reduction_probes,
)
from tests.conformance.probe import Outcome, Probe, run

MODULES = (
    matmul_probes,
    layout_probes,
    pointwise_probes,
    reduction_probes,
    limit_probes,
    eager_probes,
    fp8_probes,
    disguise_probes,
    cache_probes,
)
PROBES: tuple[Probe, ...] = tuple(probe for module in MODULES for probe in module.PROBES)
CASES = [
    pytest.param(probe, release, id=f"{probe.name}-{release}", marks=[pytest.mark.slow] if probe.slow else [])
    for probe in PROBES
    for release in probe.releases()
]


@pytest.mark.parametrize(("probe", "release"), CASES)
def test_probe(probe: Probe, release: str) -> None:
    outcome = run(probe, release)
    expected = probe.expected(release)
    assert outcome.satisfies(expected), f"{probe.source}: expected {expected}, got {outcome.kind} ({outcome.detail})"


def test_probes_are_distinct_and_many() -> None:
    names = [probe.name for probe in PROBES]
    assert len(names) == len(set(names))
    assert len(names) >= 120


def test_expected_rules_exist() -> None:
    for probe in PROBES:
        for release in probe.releases():
            for alternative in probe.expected(release).split(" or "):
                _, _, rules = alternative.partition(":")
                for rule in filter(None, rules.split("|")):
                    assert capabilities.load(release).rule(rule), probe.name


def test_outcomes_are_told_apart() -> None:
    refused = Outcome(kind="unsupported:matmul-k-stick")
    assert refused.satisfies("unsupported:conv|matmul-k-stick")
    assert refused.satisfies("ok or unsupported")
    assert not refused.satisfies("unsupported:conv")
    assert not refused.satisfies("ok or fallback")
    assert not Outcome(kind="wrong").satisfies("ok")
