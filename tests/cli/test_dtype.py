"""The format on the device is chosen by the range pass unless `--dtype` forces it; both are stored and shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import FAKE_JUDGE, Run


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "forced"), [("auto", False), ("bfloat16", True)])
def test_a_check_records_the_format_and_its_reason(hf_adapters: Run, dtype: str, forced: bool) -> None:
    done = hf_adapters("check", "bert.tiny/v30522", "--dtype", dtype, "--db", "s.db")
    assert done.returncode == 0, done.stdout + done.stderr
    expected = "bfloat16 (asked for; by its ranges it would be float16" if forced else "float16 (weights reach"
    assert f"dtype: {expected}" in done.stdout
    shown = hf_adapters("show", "bert.tiny/v30522", "--db", "s.db").stdout
    assert f"dtype:      {expected}" in shown
    assert (
        "reproduce:  hf-adapters check bert.tiny/v30522 --backend-release 2026.07 --dtype bfloat16" in shown
    ) == forced
    stored = json.loads(hf_adapters("show", "bert.tiny/v30522", "--db", "s.db", "--json").stdout)
    precision = stored["evidence"]["details"]["precision"]
    assert (precision["forced"], precision["checkpoint"]) == (forced, "float32")
    assert precision["largest_value_at"]


def test_a_check_hands_the_format_to_the_judge(hf_adapters: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def judge(*_: Any, **options: Any) -> dict[str, Any]:
        asked.append(options["dtype"])
        return {"verdict": "native", "reason": "within", "weights": "random", "depth": "all layers"}

    monkeypatch.setattr("hf_adapters.sweep.work.judge_found", judge)
    for dtype in ("auto", "float16", "bfloat16"):
        assert hf_adapters("check", "bert.tiny/v30522", "--dtype", dtype).returncode == 0
    assert asked == [None, "float16", "bfloat16"]


def test_a_sweep_of_another_format_tries_the_structures_again(hf_adapters: Run, tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text(
        "rank,model_id,downloads,profile_id,match,buildable,no_profile_reason\n"
        "1,someone/mini,900,bert.minilm-l6/v30522,exact,native,\n"
    )
    assert hf_adapters("corpus", "import", "table.csv", "--db", "s.db").returncode == 0
    sweep = ("sweep", "--db", "s.db", "--jobs", "1", "--work", FAKE_JUDGE)
    assert "1 to try" in hf_adapters(*sweep).stdout
    assert "0 to try" in hf_adapters(*sweep).stdout
    assert "1 to try" in hf_adapters(*sweep, "--dtype", "bfloat16").stdout
    assert "0 to try" in hf_adapters(*sweep, "--dtype", "bfloat16").stdout
