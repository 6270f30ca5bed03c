"""The benchmark's structures and figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from hf_adapters.agents.bench import measure as bench
from hf_adapters.agents.bench.structures import build, drawn, kept
from hf_adapters.agents.bounds import Bounds
from hf_adapters.agents.sandbox.run import Sandbox
from hf_adapters.catalogue import catalogue
from tests.agents import doubles, drafts
from tests.agents.doubles import Scripted


def test_the_structures_can_be_built_and_name_adapters() -> None:
    known = {adapter.name for adapter in catalogue()}
    subjects = [*kept("2026.07"), *drawn("2026.07", 5, 10)]
    assert len(subjects) == 30
    assert len({s.key for s in subjects}) == 30
    assert len({name for s in kept("2026.07") for name in s.without}) >= 9
    for subject in subjects:
        assert set(subject.without) <= known
        assert subject.without
        assert next(build(**subject.arguments).parameters()).dtype.is_floating_point


def test_the_same_seed_draws_the_same_structures() -> None:
    assert drawn("2026.07", 7, 6) == drawn("2026.07", 7, 6)
    assert drawn("2026.07", 7, 6) != drawn("2026.07", 8, 6)


def test_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    doubles.fake_emulator(monkeypatch)
    verdicts = iter([True, False])
    monkeypatch.setattr(bench, "examine", lambda *_, **__: doubles.outcome(next(verdicts)))
    monkeypatch.setattr(bench, "hand_written", lambda subject, sandbox: 5.0)
    subjects = [doubles.tiny(), doubles.tiny("relu2")]
    results = bench.measure(Scripted([drafts.CUBE]), subjects, tmp_path, bounds=Bounds(attempts=2), sandbox=Sandbox())
    assert [r.state for r in results] == ["waiting", "waiting"]
    found = bench.summary(results)
    assert (found["solved@1"], found["solved@k"], found["false accepts"]) == (2, 2, 1)
    assert found["simulated time / hand-written"] == 2.0
    assert found["rediscovered"] == ["small_powers"]
    nothing = bench.measure(Scripted([]), subjects[:1], tmp_path, bounds=Bounds(), sandbox=Sandbox())
    assert bench.summary(nothing)["solved@k"] == 0
