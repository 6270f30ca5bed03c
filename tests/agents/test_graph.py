"""The workflow: gates in order, rejections that come back, review, landing, bounds."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hf_adapters.agents import review
from hf_adapters.agents.bounds import Bounds
from hf_adapters.agents.checkpoints import open_checkpointer
from hf_adapters.agents.graph import STEPS, mermaid
from hf_adapters.agents.portfolio import ListPortfolio
from hf_adapters.agents.run import advance, start
from hf_adapters.agents.workshop import Workshop
from hf_adapters.store import Store
from hf_adapters.store.agent_records import StoredCase
from tests.agents import doubles, drafts
from tests.agents.doubles import Scripted

EVIL = next(h.source for h in drafts.REFUSED_BY_THE_SCREEN if h.name == "reads a file")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "cases.db") as opened:
        opened.upgrade()
        yield opened


def work(workshop: Workshop, case_id: int) -> StoredCase:
    """Advance with a checkpointer that is opened anew, as another process would."""
    with open_checkpointer(workshop.agents.store.where) as checkpointer:
        return advance(workshop, checkpointer, case_id)


def begin(workshop: Workshop, wanted: str | None = None) -> tuple[int, StoredCase]:
    case_id = start(workshop, release=doubles.RELEASE, wanted=wanted)
    return case_id, work(workshop, case_id)


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_what_fails_elsewhere_is_drafted_next(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    doubles.fake_emulator(monkeypatch, elsewhere=doubles.ELSEWHERE)
    drafter = Scripted([EVIL, drafts.CUBE, drafts.SQUARE, drafts.CUBE + "#\n", drafts.SQUARE + "#\n"])
    workshop = doubles.workshop(store, drafter, repository=doubles.make_repository(tmp_path / "repository"))
    case_id, case = begin(workshop)
    assert (case.state, case.module_path) == ("waiting", doubles.DIAGNOSIS.module_path.partition(" ")[0])
    rows = workshop.agents.attempts(case_id)
    assert [(a.outcome, a.stage) for a in rows[1:]] == [("accepted", "validate"), ("drafting", "generalise")]
    second = drafter.tasks[2]
    assert second.failure.path == "encoder.layer.1.intermediate.intermediate_act_fn"
    assert (dict(second.earlier), second.rejections) == ({"gelu_cube": drafts.CUBE}, ())
    assert [p["adapter"] for p in review.show(workshop.agents, case_id)["parts"]] == ["gelu_cube"]

    # Both are one proposal: rejected, the case starts again where it failed first.
    review.reject(workshop.agents, case_id, reviewer="ann", text="name the constant")
    assert work(workshop, case_id).state == "waiting"
    rows = workshop.agents.attempts(case_id)
    assert [a.outcome for a in rows] == ["rejected", "rejected", "rejected", "accepted", "drafting"]
    assert "name the constant" in rows[1].reason
    assert drafter.tasks[3].failure.diagnosis == doubles.DIAGNOSIS
    assert not drafter.tasks[3].earlier

    review.approve(workshop.agents, case_id, reviewer="ann")
    done = work(workshop, case_id)
    assert done.state == "landed"
    files = git(tmp_path / "repository", "show", "--format=%B", "--name-only", str(done.branch))
    for part in (
        "adapters/gelu_cube.py",
        "adapters/test_relu_square.py",
        "Adapter gelu_cube, attempt 4: right for its",
    ):
        assert part in files
    assert {a.name for a in store.adapters()} == {"gelu_cube", "relu_square"}


def test_what_was_solved_before_is_told(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    doubles.fake_emulator(monkeypatch, elsewhere=doubles.ELSEWHERE)
    _, case = begin(doubles.workshop(store, Scripted([drafts.CUBE])))
    assert case.state == "given-up"
    assert case.reason.startswith("scripted: the script has ended; gelu_cube solved what failed before encoder.layer.1")


def test_places_are_bounded(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[object] = []

    def examine(*_: Any, causes: Any, **__: Any) -> Any:
        given.append(causes)
        return doubles.outcome(False, verdict="uncovered", reason="fails elsewhere")

    doubles.fake_emulator(monkeypatch)
    monkeypatch.setattr("hf_adapters.agents.steps.proving.examine", examine)
    workshop = doubles.workshop(store, Scripted([drafts.CUBE]), bounds=Bounds(attempts=1, places=1))
    assert begin(workshop)[1].state == "given-up"
    assert given == [()]


def test_a_case_from_failure_to_branch(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    doubles.fake_emulator(monkeypatch)
    repository = doubles.make_repository(tmp_path / "repository")
    workshop = doubles.workshop(store, Scripted([EVIL, drafts.CUBE]), repository=repository)
    case_id, case = begin(workshop)
    assert (case.state, case.rule) == ("waiting", "pow-scalar-exponent")
    first, second = workshop.agents.attempts(case_id)
    assert (first.outcome, first.stage) == ("rejected", "screen")
    assert "open" in first.reason
    assert (second.stage, second.outcome, second.adapter_name) == ("generalise", "drafting", "gelu_cube")
    assert second.diff.startswith("--- before")
    assert second.metrics["validate"]["figures"]["simulated_us"] == 10.0
    assert (second.tokens_in, second.tokens_out, second.usd) == (100, 20, 0.01)
    assert work(workshop, case_id).state == "waiting"

    before = git(repository, "status", "--porcelain"), git(repository, "rev-parse", "main")
    review.comment(workshop.agents, case_id, reviewer="ann", text="looks right")
    review.approve(workshop.agents, case_id, reviewer="ann", text="yes")
    done = work(workshop, case_id)
    assert (done.state, done.branch) == ("landed", f"agents/gelu_cube-{case_id}")
    assert git(repository, "show", f"{done.branch}:hf_adapters/adapters/gelu_cube.py") == drafts.CUBE.strip()
    assert "ADAPTER.examples()" in git(repository, "show", f"{done.branch}:tests/adapters/test_gelu_cube.py")
    text = git(repository, "log", "-1", "--format=%B", str(done.branch))
    for part in ("pow-scalar-exponent", "tiny gelu_new", "simulated microseconds 10", "Approve by ann: yes", "Case: "):
        assert part in text
    assert (git(repository, "status", "--porcelain"), git(repository, "rev-parse", "main")) == before
    (registered,) = store.adapters()
    assert (registered.name, registered.drafter, registered.trust) == ("gelu_cube", "scripted", "reviewed")
    with pytest.raises(review.NotWaiting):
        review.reject(workshop.agents, case_id, reviewer="bob", text="no")


def test_a_rejection_is_told_to_the_next_attempt(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    doubles.fake_emulator(monkeypatch)
    other = drafts.CUBE.replace("inner + inner", "2.0 * inner")
    drafter = Scripted([drafts.CUBE, other])
    workshop = doubles.workshop(store, drafter, bounds=Bounds(attempts=1))
    case_id, _ = begin(workshop)
    with pytest.raises(ValueError, match="reason"):
        review.reject(workshop.agents, case_id, reviewer="ann", text=" ")
    review.reject(workshop.agents, case_id, reviewer="ann", text="name the constant")
    assert work(workshop, case_id).state == "waiting"
    (told,) = drafter.tasks[1].rejections
    assert (told.stage, told.source) == ("review", drafts.CUBE)
    assert "name the constant" in told.reason


def test_the_same_draft_again_is_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    doubles.fake_emulator(monkeypatch, lambda subject: doubles.outcome(False, reason="wrong numbers"))
    workshop = doubles.workshop(store, Scripted([drafts.CUBE] * 2), bounds=Bounds(attempts=2))
    case_id, case = begin(workshop)
    assert case.state == "given-up"
    assert [a.stage for a in workshop.agents.attempts(case_id)] == ["validate", "screen"]
    assert "same text as attempt 1" in workshop.agents.attempts(case_id)[1].reason


@pytest.mark.parametrize(
    ("bounds", "reason"),
    [
        (Bounds(attempts=2), "2 attempts were rejected"),
        (Bounds(tokens=100), "tokens are used"),
        (Bounds(usd=0.005), "are spent"),
        (Bounds(seconds=1e-9), "seconds are used"),
    ],
)
def test_a_case_is_bounded(store: Store, monkeypatch: pytest.MonkeyPatch, bounds: Bounds, reason: str) -> None:
    doubles.fake_emulator(monkeypatch)
    workshop = doubles.workshop(store, Scripted([EVIL, EVIL + "#\n", EVIL + "##\n"]), bounds=bounds)
    _, case = begin(workshop)
    assert case.state == "given-up"
    assert reason in case.reason


def test_a_drafter_without_ideas_ends_the_case(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    doubles.fake_emulator(monkeypatch)
    _, case = begin(doubles.workshop(store, Scripted([])))
    assert (case.state, case.reason) == ("given-up", "scripted: the script has ended")


CLAIMS = {
    "another rule": (('rules=("pow-scalar-exponent",)', 'rules=("conv",)'), "breaks pow-scalar-exponent"),
    "an unknown rule": (('rules=("pow-scalar-exponent",)', 'rules=("pow-scalar-exponent", "x")'), "has no rule x"),
    "another release": (('("2026.07",)', '("2026.09",)'), "does not need it"),
    "a name that is taken": (('"gelu_cube"', '"layer_norm"'), "exists already"),
    "a name that is left out": (('"gelu_cube"', '"small_powers"'), "exists already"),
}


@pytest.mark.parametrize(("change", "reason"), CLAIMS.values(), ids=CLAIMS)
def test_wrong_claims_are_refused(
    store: Store, monkeypatch: pytest.MonkeyPatch, change: tuple[str, str], reason: str
) -> None:
    doubles.fake_emulator(monkeypatch)
    source = drafts.CUBE.replace(*change)
    assert source != drafts.CUBE
    workshop = doubles.workshop(store, Scripted([source]), bounds=Bounds(attempts=1))
    case_id, _ = begin(workshop)
    (attempt,) = workshop.agents.attempts(case_id)
    assert (attempt.outcome, attempt.stage) == ("rejected", "screen")
    assert reason in attempt.reason


def test_siblings_and_what_passed_before_decide(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    subject, sibling, passing = doubles.tiny(), doubles.tiny("relu2"), doubles.tiny("gelu")
    answers: dict[str, Any] = {subject.label: doubles.outcome(), passing.label: doubles.outcome()}
    answers[sibling.label] = doubles.outcome(False, verdict="uncovered", reason="another operation")
    seen = doubles.fake_emulator(monkeypatch, lambda s: answers[s.label])
    portfolio = ListPortfolio(subjects=(subject,), related=(sibling,), regression=(passing,))
    workshop = doubles.workshop(store, Scripted([drafts.CUBE]), portfolio=portfolio, bounds=Bounds(attempts=1))
    case_id, case = begin(workshop)
    assert case.state == "waiting"
    assert seen == [subject.label, sibling.label, passing.label]
    found = workshop.agents.attempts(case_id)[0].metrics["generalise"]
    assert (found["unsolved"], found["kept"]) == ({sibling.label: "another operation"}, [passing.label])
    for broken in (sibling, passing):
        before = answers[broken.label]
        answers[broken.label] = doubles.outcome(False, reason="wrong numbers")
        _, case = begin(workshop, wanted=subject.key)
        assert case.state == "given-up"
        answers[broken.label] = before


def test_the_highest_impact_is_picked_and_nothing_twice(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    doubles.fake_emulator(monkeypatch)
    small, large = doubles.tiny("relu2", downloads=10), doubles.tiny(downloads=1000)
    workshop = doubles.workshop(store, Scripted([drafts.CUBE]), small, large)
    assert [begin(workshop)[1].label for _ in range(3)] == [large.label, small.label, ""]


def test_the_graph_is_drawn() -> None:
    drawn = mermaid()
    assert all(name in drawn for name in STEPS)
