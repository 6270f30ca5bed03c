"""Acceptance on the emulator: the honest draft goes all the way, wrong ones are stopped for what is wrong with them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from hf_adapters.agents import review
from hf_adapters.agents.acceptance import candidate
from hf_adapters.agents.acceptance.candidate import Outcome, examine, secret_seed
from hf_adapters.agents.acceptance.duplicates import NEAR, nearest, sources
from hf_adapters.agents.checkpoints import open_checkpointer
from hf_adapters.agents.portfolio import ListPortfolio
from hf_adapters.agents.run import advance, start
from hf_adapters.agents.sandbox.run import Answer, Job, Sandbox
from hf_adapters.agents.screening.declared import Declared
from hf_adapters.agents.screening.policy import screen
from hf_adapters.catalogue import catalogue
from hf_adapters.store import Store
from hf_adapters.validation.inputs import standard_sets
from tests.agents import doubles, drafts
from tests.agents.doubles import Scripted
from tests.agents.test_sandbox import needs_sandbox


@pytest.fixture
def few_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two batches of one bucket: one compilation instead of three."""
    monkeypatch.setattr(candidate, "standard_sets", lambda spec, seed: standard_sets(spec, seed)[::3])


def judge(source: str) -> Outcome:
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
    return examine(source, claimed, doubles.tiny(), Sandbox(), seed=secret_seed())


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
    subject = doubles.tiny()
    untouched = doubles.tiny("gelu", without=())
    portfolio = ListPortfolio(subjects=(subject,), regression=(untouched,))
    workshop = doubles.workshop(
        store,
        Scripted([drafts.CUBE]),
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
    assert (case.rule, case.module_path) == ("pow-scalar-exponent", "encoder.layer.0.intermediate.intermediate_act_fn")
    assert case.failure["module"] == "transformers.activations:NewGELUActivation"
    assert "torch.pow" in case.failure["source"]
    assert [o["dtype"] for o in case.failure["operands"]] == ["torch.float32"]
    (attempt,) = workshop.agents.attempts(case_id)
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


class Forging(Sandbox):
    """A sandbox whose process says what it likes, as code that got past the screen could."""

    def run(self, job: Job) -> Answer:
        return FORGED.pop()


FORGED: list[Answer] = []
SITES = [{"path": "x", "kind": "k", "before": "b", "after": "a"}]
SEEN = {"adapter": {"name": "gelu_cube", "equivalence": "reassociated"}, "sites": SITES}
FORGERIES = {
    "nothing": {},
    "no examples": SEEN,
    "no figures": {**SEEN, "proof": [{"name": "n", "sites": 1, "error": 0.0, "complete": True}]},
    "wrong types": {"sites": 5},
    "code replaced": {**SEEN, "proof": [], "changed_code": ["time.perf_counter"]},
}


@pytest.mark.parametrize("data", FORGERIES.values(), ids=FORGERIES)
def test_a_forged_answer_is_no_proof(data: dict[str, object]) -> None:
    adapter = screen(drafts.CUBE).adapter
    assert adapter is not None
    FORGED[:] = [
        Answer(kind="done", stage="done", reason="", data=data, tensors={}, sandboxed=True, seconds=1.0)  # type: ignore[arg-type]
    ]
    found = examine(drafts.CUBE, adapter, doubles.tiny(), Forging(), seed=1)
    assert not found.accepted
    assert found.reason
