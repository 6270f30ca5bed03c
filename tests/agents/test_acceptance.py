"""Acceptance on the emulator: the honest draft goes all the way, wrong ones are stopped for what is wrong with them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hf_adapters.agents import review
from hf_adapters.agents.acceptance import candidate, claims
from hf_adapters.agents.acceptance.candidate import Outcome, examine, secret_seed
from hf_adapters.agents.acceptance.duplicates import NEAR, nearest, sources
from hf_adapters.agents.checkpoints import open_checkpointer
from hf_adapters.agents.portfolio import ListPortfolio
from hf_adapters.agents.run import advance, start
from hf_adapters.agents.sandbox.run import Answer, Job, Sandbox
from hf_adapters.agents.screening.declared import Declared
from hf_adapters.agents.screening.policy import screen
from hf_adapters.agents.subject import Subject
from hf_adapters.catalogue import catalogue
from hf_adapters.diagnose import Diagnosis
from hf_adapters.store import Store
from hf_adapters.validation.functions import NAME
from hf_adapters.validation.inputs import standard_sets
from tests.agents import doubles, drafts
from tests.agents.doubles import Scripted
from tests.agents.test_sandbox import needs_sandbox


@pytest.fixture
def few_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two batches of one bucket: one compilation instead of three."""
    monkeypatch.setattr(candidate, "standard_sets", lambda spec, seed: standard_sets(spec, seed)[::3])


def judge(source: str, subject: Subject | None = None) -> Outcome:
    """Examine a draft on the tiny model, whatever the screen says of it."""
    adapter = screen(drafts.CUBE).adapter
    assert adapter is not None
    equivalence = "exact" if '"exact"' in source else adapter.equivalence
    claimed = Declared(
        name=adapter.name,
        summary=adapter.summary,
        rules=adapter.rules,
        equivalence=equivalence,
        releases=adapter.releases,
        order=adapter.order,
    )
    return examine(source, claimed, subject or doubles.tiny(), Sandbox(), seed=secret_seed())


@needs_sandbox
@pytest.mark.slow
@pytest.mark.usefixtures("few_inputs")
@pytest.mark.parametrize(("source", "reason"), drafts.WRONG.values(), ids=drafts.WRONG)
def test_a_wrong_draft_is_rejected_for_what_is_wrong(source: str, reason: str) -> None:
    assert source != drafts.CUBE
    found = judge(source)
    assert not found.accepted
    assert re.search(reason, found.reason), found.reason


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "cases.db") as opened:
        opened.upgrade()
        yield opened


@needs_sandbox
@pytest.mark.slow
@pytest.mark.usefixtures("few_inputs")
def test_the_whole_way_on_the_emulator(store: Store, tmp_path: Path) -> None:
    subject = doubles.two_places()
    untouched = doubles.tiny("gelu", without=())
    portfolio = ListPortfolio(subjects=(subject,), regression=(untouched,))
    workshop = doubles.workshop(
        store,
        Scripted([drafts.CUBE, drafts.SQUARE]),
        portfolio=portfolio,
        repository=doubles.make_repository(tmp_path / "repository"),
        folder=tmp_path / "reproducers",
    )
    case_id = start(workshop, release=doubles.RELEASE)
    with open_checkpointer(store.where) as checkpointer:
        case = advance(workshop, checkpointer, case_id)
        assert case.state == "waiting", [a.reason for a in workshop.agents.attempts(case_id)]
        review.approve(workshop.agents, case_id, reviewer="ann")
        assert advance(workshop, checkpointer, case_id).state == "landed"
    assert (case.rule, case.module_path) == ("pow-scalar-exponent", "first")
    assert case.failure["module"] == "transformers.activations:NewGELUActivation"
    assert "torch.pow" in case.failure["source"]
    assert [o["dtype"] for o in case.failure["operands"]] == ["torch.float32"]
    first, attempt = workshop.agents.attempts(case_id)
    assert (first.outcome, first.stage) == ("accepted", "validate")
    assert "in second (ReLUSquaredActivation)" in first.reason
    assert first.adapter_hash not in (None, "h", attempt.adapter_hash)
    assert attempt.sandboxed
    figures = attempt.metrics["validate"]["figures"]
    assert figures["multiple"] < 2.5
    assert figures["equivalence_error"] <= 1e-9
    assert attempt.metrics["generalise"]["untouched"] == 1
    assert attempt.adapter_hash not in (None, "h")
    script = Path(case.failure["reproducer"])
    assert "hf_adapters.compile" in script.read_text(encoding="utf-8")


def test_a_copy_of_an_adapter_is_a_near_duplicate() -> None:
    existing = sources(catalogue())
    assert set(existing) == {adapter.name for adapter in catalogue()}
    source = existing["small_powers"]
    renamed = source.replace("_norm_sites", "_places").replace("found", "seen").replace("small_powers", "powers")
    near = nearest(renamed, existing)
    assert near is not None
    assert near[0] == "small_powers"
    assert near[1] >= NEAR
    honest = nearest(drafts.CUBE, existing)
    assert honest is not None
    assert honest[1] < NEAR


@needs_sandbox
@pytest.mark.slow
@pytest.mark.usefixtures("few_inputs")
def test_the_format_follows_the_ranges() -> None:
    found = judge(drafts.CUBE, doubles.tiny(outlier=7e4))
    assert found.accepted, found.reason
    assert found.validation is not None
    assert found.validation.precision is not None
    assert found.validation.precision.dtype == "bfloat16"


class Forging(Sandbox):
    """A sandbox whose process says what it likes, as code that got past the screen could."""

    def run(self, job: Job) -> Answer:
        return FORGED.pop()


FORGED: list[Answer] = []
SITES = [{"path": "x", "kind": "k", "before": "b", "after": "a"}]
SEEN: dict[str, Any] = {"adapter": {"name": "gelu_cube", "equivalence": "reassociated"}, "sites": SITES}
PROVEN = {**SEEN, "proof": [{"name": "n", "sites": 1, "error": 0.0, "complete": True}]}
FORGERIES = {
    "nothing": ({}, "not the one that the file declares"),
    "no examples": (SEEN, "no examples"),
    "no figures": (PROVEN, "does not fit: KeyError"),
    "wrong types": ({"sites": 5}, "does not fit: TypeError"),
    "code replaced": ({**PROVEN, "changed_code": ["time.perf_counter"]}, "was replaced: time.perf_counter"),
    "another adapter": ({**PROVEN, "adapter": {"name": "x", "equivalence": "exact"}}, "not the one that the file"),
    "no sites": ({**PROVEN, "sites": []}, "applies to nothing"),
    "changes elsewhere": ({**PROVEN, "changed_modules": ["y"]}, "does not name as its sites: y"),
}


def forged(data: object, *, kind: str = "done", stage: str = "done", causes: Sequence[Diagnosis] = ()) -> Outcome:
    """The outcome for an answer of the sandbox."""
    adapter = screen(drafts.CUBE).adapter
    assert adapter is not None
    FORGED[:] = [Answer(kind=kind, stage=stage, reason="", data=data, tensors={}, sandboxed=True, seconds=1.0)]  # type: ignore[arg-type]
    return examine(drafts.CUBE, adapter, doubles.tiny(), Forging(), seed=1, causes=causes)


@pytest.mark.parametrize(("data", "reason"), FORGERIES.values(), ids=FORGERIES)
def test_a_forged_answer_is_no_proof(data: dict[str, object], reason: str) -> None:
    found = forged(data)
    assert not found.accepted
    assert reason in found.reason


REFUSED = {
    "op": "aten.pow.Tensor_Scalar", "shapes": [[2, 64]], "dtypes": ["torch.float16"], "rule": "pow-scalar-exponent",
    "module_path": doubles.ELSEWHERE.module_path, "source_line": None, "hint": None, "detail": "is not lowered",
}  # fmt: skip
STOPPED = {**PROVEN, "refused": REFUSED, "checks": [{"name": "n", "where": "x", "passed": True, "value": 0.0}]}
NO_PART = {
    "the same place": {**STOPPED, "refused": {**REFUSED, "module_path": doubles.DIAGNOSIS.module_path}},
    "inside its own site": {**STOPPED, "refused": {**REFUSED, "module_path": "x.y (Inner)"}},
    "no place": {**STOPPED, "refused": {**REFUSED, "module_path": None}},
    "not equal": {**STOPPED, "checks": [{"name": "n", "where": "x", "passed": False, "value": 1.0}]},
    "not compared": {key: value for key, value in STOPPED.items() if key != "checks"},
    "no examples": {**STOPPED, "proof": []},
    "code replaced": {**STOPPED, "changed_code": ["time.perf_counter"]},
    "applies to nothing": {**STOPPED, "sites": []},
}


def test_a_failure_elsewhere_is_told() -> None:
    found = forged(STOPPED, kind="refused", stage="device", causes=[doubles.DIAGNOSIS])
    assert not found.accepted
    assert found.remaining is not None
    assert (found.remaining.kind, found.remaining.module_path) == ("refused", doubles.ELSEWHERE.module_path)
    assert forged(STOPPED, kind="refused", stage="device").remaining is None


def test_places_without_a_class_are_told_apart_by_their_paths() -> None:
    cause = replace(doubles.DIAGNOSIS, module_path="encoder.layer.0")
    for path, again in (("encoder.layer.0", True), ("pooler", False)):
        stopped = {**STOPPED, "refused": {**REFUSED, "module_path": path}}
        found = forged(stopped, kind="refused", stage="device", causes=[cause])
        assert (found.remaining is None) == again


@pytest.mark.parametrize("data", NO_PART.values(), ids=NO_PART)
def test_a_draft_that_is_to_blame_is_no_part(data: dict[str, object]) -> None:
    found = forged(data, kind="refused", stage="device", causes=[doubles.DIAGNOSIS])
    assert (found.accepted, found.remaining) == (False, None)


CLAIMED = Declared(name="a", summary="s", rules=("conv",), equivalence="exact", releases=None, order=1)
ERROR = {"name": NAME, "where": "x.inner", "value": 1e-12, "passed": True}
TOO_SMALL = {
    "exact, and its site differs": ({"checks": [ERROR]}, "differs by 1e-12"),
    "exact, and its example differs": ({"proof": [{**PROVEN["proof"][0], "error": 1e-12}]}, "differs by 1e-12"),
}


@pytest.mark.parametrize(("seen", "reason"), TOO_SMALL.values(), ids=TOO_SMALL)
def test_a_smaller_class_than_it_has_is_no_claim(seen: dict[str, object], reason: str) -> None:
    data = {**PROVEN, "adapter": {"name": "a", "equivalence": "exact"}}
    assert list(claims.after_running(CLAIMED, data, prove=True)) == []
    told = list(claims.after_running(CLAIMED, {**data, **seen}, prove=True))
    assert len(told) == 1
    assert reason in told[0]
    # What other adapters do at other places is not the draft's.
    other = {**data, "checks": [{**ERROR, "where": "z"}]}
    assert list(claims.after_running(CLAIMED, other, prove=True)) == []
