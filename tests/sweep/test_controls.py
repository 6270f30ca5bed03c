"""Controls: which structures are tried without an adapter, and what counts as lost."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hf_adapters.report.rows import ModelRow
from hf_adapters.sweep import controls


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
    said: list[str] = []
    found = controls.candidates(ROWS)
    done = controls.run_controls(found, ["rotary", "unused"], release="2026.07", structures=1, say=said.append)
    assert [(c.adapter, c.candidate.profile_id, c.verdict, c.lost) for c in done] == [
        ("rotary", "large/v1", verdict, lost)
    ]
    assert said == [f"rotary left out of large/v1: {verdict}"]
