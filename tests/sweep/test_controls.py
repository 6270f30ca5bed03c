"""Controls: which structures are tried without an adapter, and what counts as lost."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from transformers import BertConfig, BertModel

import hf_adapters
from hf_adapters.report.rows import ModelRow
from hf_adapters.sweep import controls
from hf_adapters.sweep.whole import refusal


def row(rank: int, structure: str, adapters: tuple[str, ...], **changes: Any) -> ModelRow:
    fields: dict[str, Any] = {
        "downloads": 10, "model_id": None, "family": "bert", "evidence": "exact", "verdict": "adapted",
        "profile_id": f"{structure}/v1",
    }  # fmt: skip
    return ModelRow(rank=rank, structure=structure, adapters=adapters, **{**fields, **changes})


ROWS = (
    row(1, "small", ("rotary",)),
    row(2, "large", ("rotary", "layer_norm")),
    row(3, "large", ("rotary", "layer_norm")),
    row(4, "failing", ("rotary",), verdict="uncovered"),
    row(5, "other", ("layer_norm",), evidence="stand-in"),
)


def test_candidates_are_accepted_structures_by_adapter() -> None:
    found = controls.candidates(ROWS)
    assert {name: [c.profile_id for c in items] for name, items in found.items()} == {
        "rotary": ["large/v1", "small/v1"],
        "layer_norm": ["large/v1"],
    }
    assert [candidate.models for candidate in found["rotary"]] == [2, 1]


def test_one_structure_of_each_family_comes_first() -> None:
    rows = [row(rank, f"bert{rank}", ("rotary",)) for rank in (1, 2, 3)]
    rows += [row(4, "t5", ("rotary",), family="t5"), row(5, "esm", ("rotary",), family="esm")]
    found = controls.candidates(rows)["rotary"]
    assert [candidate.profile_id for candidate in found] == ["bert1/v1", "t5/v1", "esm/v1", "bert2/v1", "bert3/v1"]


@pytest.mark.parametrize(("structures", "tried"), [(1, ["large"]), (30, ["large", "small"])])
def test_structures_are_tried_until_one_is_lost(
    structures: int, tried: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def judged(profile: str, left_out: str | None, release: str) -> Any:
        verdict = "uncovered" if left_out is not None and profile != "large/v1" else "adapted"
        return SimpleNamespace(verdict=verdict, rule=None, reason="")

    monkeypatch.setattr(controls, "_judge_profile", judged)
    monkeypatch.setattr(controls, "_refused_whole", lambda *_: None)
    found = controls.candidates((*ROWS, row(6, "third", ("rotary",))))
    done = controls.run_controls(found, ["rotary"], release="2026.07", structures=structures)
    assert [control.candidate.profile_id.split("/")[0] for control in done] == tried


@pytest.mark.parametrize(
    ("whole", "without", "verdict", "lost"),
    [
        ("adapted", "uncovered", "uncovered", True),
        ("adapted", "mismatch", "mismatch", True),
        ("adapted", "fallback", "fallback", True),
        ("adapted", "adapted", "adapted", False),
        ("uncovered", "uncovered", "unusable", False),
    ],
)
def test_only_what_passes_with_all_adapters_can_be_lost(
    whole: str, without: str, verdict: str, lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def judged(profile: str, left_out: str | None, release: str) -> Any:
        return SimpleNamespace(verdict=whole if left_out is None else without, rule=None, reason=release)

    monkeypatch.setattr(controls, "_judge_profile", judged)
    monkeypatch.setattr(controls, "_refused_whole", lambda *_: None)
    said: list[str] = []
    found = controls.candidates(ROWS)
    done = controls.run_controls(found, ["rotary", "unused"], release="2026.07", structures=1, say=said.append)
    assert [(c.adapter, c.candidate.profile_id, c.verdict, c.lost) for c in done] == [
        ("rotary", "large/v1", verdict, lost)
    ]
    assert said == [f"rotary left out of large/v1: {verdict}"]


@pytest.mark.parametrize(
    ("with_all", "without", "lost"), [(None, "rule", True), ("rule", "rule", False), (None, None, False)]
)
def test_a_model_that_passes_by_layers_is_compiled_whole(
    with_all: str | None, without: str | None, lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(profile: str, left_out: str | None, release: str) -> Any:
        rule = with_all if left_out is None else without
        return None if rule is None else SimpleNamespace(rule=rule)

    judged = SimpleNamespace(verdict="adapted", rule=None, reason="")
    monkeypatch.setattr(controls, "_judge_profile", lambda *_: judged)
    monkeypatch.setattr(controls, "_refused_whole", refused)
    (done,) = controls.run_controls(controls.candidates(ROWS), ["rotary"], release="2026.07")
    assert (done.lost, done.whole, done.rule) == (lost, lost, "rule" if lost else None)


@pytest.mark.slow
def test_lookups_and_masks_in_one_graph_with_the_layers_need_their_adapters() -> None:
    config = BertConfig(
        vocab_size=90, hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=1,
        max_position_embeddings=128,
    )  # fmt: skip
    model, names = BertModel(config).eval(), [adapter.name for adapter in hf_adapters.catalogue()]
    assert refusal(model, names, "2026.07") is None
    for left_out, rule in (("embedding_tables", "indirect-access"), ("additive_masks", "int64-compare-scalar")):
        refused = refusal(model, [name for name in names if name != left_out], "2026.07")
        assert refused is not None
        assert refused.rule == rule
