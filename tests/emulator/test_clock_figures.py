"""The published figures of `make bench-device`."""

from __future__ import annotations

import pytest

from benchmarks import device_figures as bench


@pytest.mark.slow
def test_published_figures_are_reproduced_where_the_model_can() -> None:
    found = bench.figures()
    assert len(found) > 30
    assert [(f.what, round(f.error, 3)) for f in found if not f.holds] == []
    for figure in found:
        assert figure.source.startswith("D7")


def test_a_switch_that_does_nothing_is_noticed() -> None:
    """The two-way exchange: without relayout the temporary goes through device memory."""
    off, ring, *_ = bench.relayouts()
    assert off.emulated > 1.9 * ring.emulated


def test_figures_that_are_off_do_not_hold() -> None:
    sample = bench.Figure(what="x", switch="-", unit="us", paper=100.0, emulated=111.0, source="D7")
    assert not sample.holds
    assert sample.error == pytest.approx(0.11)
