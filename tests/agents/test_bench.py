"""The benchmark's structures and figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hf_adapters.agents.bench import measure as bench
from hf_adapters.agents.bench.__main__ import main
from hf_adapters.agents.bench.structures import build, drawn, kept
from hf_adapters.agents.bounds import Bounds
from hf_adapters.agents.sandbox.run import Answer, Sandbox
from hf_adapters.catalogue import catalogue
from hf_adapters.validation.types import Precision
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


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Quick stand-ins; the stricter judge takes the first draft and no other."""
    doubles.fake_emulator(monkeypatch)
    verdicts = iter([True, False])
    monkeypatch.setattr(bench, "examine", lambda *_, **__: doubles.outcome(next(verdicts)))
    monkeypatch.setattr(bench, "hand_written", lambda subject, sandbox: 5.0)


def measured(database: Path, drafter: Any, *subjects: Any, **options: Any) -> list[bench.Result]:
    return bench.measure(drafter, subjects, database, bounds=Bounds(attempts=2), sandbox=Sandbox(), **options)


@pytest.mark.usefixtures("judged")
def test_figures(tmp_path: Path) -> None:
    subjects = [doubles.tiny(), doubles.tiny("relu2")]
    results = measured(tmp_path / "a.db", Scripted([drafts.CUBE]), *subjects)
    assert [r.state for r in results] == ["waiting", "waiting"]
    found = bench.summary(results)
    assert (found["solved@1"], found["solved@k"], found["false accepts"]) == (2, 2, 1)
    assert found["simulated time / hand-written"] == 2.0
    assert found["rediscovered"] == ["small_powers"]
    nothing = measured(tmp_path / "b.db", Scripted([]), subjects[0])
    assert bench.summary(nothing)["solved@k"] == 0


@pytest.mark.usefixtures("judged")
def test_the_database_gives_the_same_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    database = tmp_path / "kept" / "a.db"
    results = measured(database, Scripted([drafts.CUBE]), doubles.tiny(), doubles.tiny("relu2"))
    assert bench.drafters(database) == ["scripted"]
    assert bench.read(database, "scripted") == results
    assert main(["--figures", str(database)]) == 1
    assert "false accepts: 1" in capsys.readouterr().out
    assert main(["--figures", str(tmp_path / "none.db")]) == 2
    # Figures of two runs must not mix.
    assert main(["--database", str(database)]) == 2


@pytest.mark.usefixtures("judged")
def test_a_structure_without_a_hand_written_time_stays_in_the_totals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(subject: Any, sandbox: Any) -> float:
        raise bench.NotRun("time at device: 120 s")

    monkeypatch.setattr(bench, "hand_written", slow)
    results = measured(tmp_path / "a.db", Scripted([drafts.CUBE]), doubles.tiny())
    found = bench.summary(results)
    assert (found["structures"], found["solved@1"], found["no hand-written time"]) == (1, 1, ["tiny gelu_new"])
    assert results[0].unknown == ("hand_written_us: NotRun: time at device: 120 s",)


def test_what_does_not_run_has_no_hand_written_time(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(Sandbox):
        def run(self, job: Any) -> Any:
            return Answer(
                kind="time", stage="device", reason="too long", data={}, tensors={}, sandboxed=True, seconds=1.0
            )

    monkeypatch.setattr(bench, "choose", lambda *_: Precision(dtype="float16", forced=True, reason="r"))
    with pytest.raises(bench.NotRun, match="time at device: too long"):
        bench.hand_written(doubles.tiny(), Slow())


@pytest.mark.usefixtures("judged")
def test_a_structure_that_breaks_the_drafter_hides_no_other(tmp_path: Path) -> None:
    class Breaking(Scripted):
        def draft(self, task: Any) -> Any:
            if "relu2" in task.subject.label:
                raise RuntimeError("out of memory")
            return super().draft(task)

    subjects = [doubles.tiny("relu2"), doubles.tiny()]
    results = measured(tmp_path / "a.db", Breaking([drafts.CUBE]), *subjects)
    assert [(r.structure, r.state) for r in results] == [("tiny relu2", "failed"), ("tiny gelu_new", "waiting")]
    assert results[0].reason == "RuntimeError: out of memory"
    assert bench.summary(results)["structures"] == 2
    assert measured(tmp_path / "b.db", Scripted([drafts.CUBE]), *subjects, minutes=0.0) == []
