"""From a profile to evidence: the same policy in a worker and in `check`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hf_adapters.corpus import Profile, load_profiles
from hf_adapters.store.records import VerdictRecord
from hf_adapters.sweep import work
from hf_adapters.sweep.messages import Outcome, encode, finite
from hf_adapters.validation.types import PlaceFigures, Validation
from tests.sweep.test_plan import NOW

TINY = load_profiles()["bert.tiny/v30522"]


@pytest.fixture
def validated(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Replace the validator; the list holds the arguments of its calls."""
    calls: list[dict[str, Any]] = []

    def validate(model: Any, **arguments: Any) -> Validation:
        calls.append({"model": model, **arguments})
        return Validation(
            verdict="adapted",
            reason="within 1.50 noise floors",
            multiple=1.5,
            neighbours_kept=0.5,
            fallbacks={"aten.embedding.default (lookup)": 3},
            adapters={"head_padding": "abc"},
            simulated_us=812.5,
            weights=arguments["weights"],
            depth=arguments["depth"],
            inputs="right 4x33",
            seed=7,
            release=arguments["release"],
            places=(PlaceFigures(place="layer", floor=1.0, floor_rms=1.0, error=1.5, error_rms=1.0, cosine_min=1.0),),
        )

    monkeypatch.setattr("hf_adapters.validate", validate)
    return calls


def test_evidence_fits_the_store_and_survives_the_pipe(validated: list[dict[str, Any]]) -> None:
    evidence = work.judge({"profile": TINY.to_json(), "release": "2026.07", "models": 1, "downloads": 1})
    encode({"result": finite(evidence)})
    from hf_adapters.sweep.record import adapter_records, verdict_record

    outcome = Outcome(kind="done", result=json.loads(json.dumps(finite(evidence))))
    record = verdict_record(outcome, NOW, signature="s")
    assert isinstance(record, VerdictRecord)
    assert (record.verdict, record.weights, record.depth, record.fallback_count) == (
        "adapted",
        "random",
        "all layers",
        3,
    )
    assert record.neighbours_kept is False
    assert record.simulated_us == 812.5
    assert record.details["neighbours_share"] == 0.5
    assert record.inputs == {"sets": "right 4x33", "seed": 7}
    (adapter,) = adapter_records(outcome)
    assert (adapter.name, adapter.hash) == ("head_padding", "abc")
    assert adapter.summary


def test_the_reference_process_builds_the_same_model(validated: list[dict[str, Any]]) -> None:
    import torch

    work.judge_profile(TINY, release="2026.07")
    (call,) = validated
    again = call["source"].build()
    assert again is not call["model"]
    ours = call["model"].state_dict()
    assert all(torch.equal(value, ours[name]) for name, value in again.state_dict().items())


def test_depth_is_spent_where_much_depends_on_it(validated: list[dict[str, Any]]) -> None:
    assert work.budget_for(1, 10) == work.budget_for(19, 999_999) == work.SPARING_ELEMENTS
    assert work.budget_for(20, 10) == work.budget_for(1, 1_000_000) == work.FULL_ELEMENTS
    assert work.judge_profile(TINY, release="2026.07", max_elements=1)["depth"] == "all layers", (
        "it has two layers only"
    )
    mini = load_profiles()["bert.minilm-l6/v30522"]
    evidence = work.judge_profile(mini, release="2026.07", max_elements=5_000_000)
    assert evidence["depth"] == "distinct layers [0, 1]"
    assert evidence["cut"]["num_hidden_layers"] == {"before": 6, "after": 2}
    assert validated[-1]["source"].build().config.num_hidden_layers == 2


def test_each_step_is_told(validated: list[dict[str, Any]]) -> None:
    said: list[str] = []
    work.judge_profile(TINY, release="2026.07", say=said.append)
    assert said[0].startswith("build: bert.tiny/v30522")
    assert said[-1].startswith("validate: ")


def test_what_cannot_be_built_has_a_verdict_with_its_error_code(validated: list[dict[str, Any]]) -> None:
    strange = Profile(
        profile_id="x/v1", shape_id="x", model_type="bertissimo", architecture_class="BertModel", config={}, pooling={}
    )
    evidence = work.judge_profile(strange, release="2026.07")
    assert evidence["verdict"] == "unbuildable"
    assert evidence["error_code"] == "E_CONFIG_INVALID"
    assert "bertissimo" in evidence["reason"]
    assert not validated


@pytest.mark.slow
def test_a_real_structure_is_accepted_on_the_emulated_device() -> None:
    evidence = work.judge({"profile": TINY.to_json(), "release": "2026.07", "models": 1, "downloads": 1})
    assert evidence["verdict"] in ("native", "adapted"), evidence
    assert evidence["multiple"] <= evidence["floor_multiple"]
    assert evidence["launches"] > 0
