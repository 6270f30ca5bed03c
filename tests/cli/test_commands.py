"""The smaller commands, on a database that a sweep with a fake judge has filled."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from hf_adapters.sweep import own_examples
from hf_adapters.sweep.own_examples import ExampleControl
from tests.cli.conftest import FAKE_JUDGE, Run, error_line

TABLE = """rank,model_id,downloads,profile_id,match,buildable,no_profile_reason
1,someone/mini,900,bert.minilm-l6/v30522,exact,native,
2,someone/mpnet,500,mpnet.base/v30527,exact,native,
3,someone/other-mini,100,bert.minilm-l6/v30522,inferred,native,
4,someone/strange,50,,none,remote_only,remote_only: class Strange
"""


@pytest.fixture
def swept(hf_adapters: Run, tmp_path: Path) -> Run:
    """The command line in a folder with the database s.db, swept."""
    (tmp_path / "table.csv").write_text(TABLE)
    imported = hf_adapters("corpus", "import", "table.csv", "--db", "s.db")
    assert imported.returncode == 0, imported.stderr
    assert "hf-adapters sweep --source table:table.csv --db s.db" in imported.stdout
    done = hf_adapters("sweep", "--db", "s.db", "--jobs", "1", "--work", FAKE_JUDGE)
    assert done.returncode == 0, done.stderr
    assert "the ranking 'table:table.csv'" in done.stdout
    return hf_adapters


def test_show_finds_a_model_by_every_name_it_has(swept: Run) -> None:
    for name in ("someone/mini", "bert.minilm-l6/v30522", "sentence-transformers/all-MiniLM-L6-v2"):
        done = swept("show", name, "--db", "s.db")
        assert done.returncode == 0, done.stderr
        assert "model:      someone/mini (bert), 900 downloads" in done.stdout
        assert "verdict:    adapted" in done.stdout
        assert "measured:   noise floor 0.01, multiple 1.5" in done.stdout
        assert "reproduce:  hf-adapters check someone/mini --backend-release 2026.07" in done.stdout


def test_show_tells_why_a_model_fails(swept: Run) -> None:
    done = swept("show", "someone/mpnet", "--db", "s.db")
    for expected in ("uncovered", "pow-scalar-exponent", "aten.pow.Tensor_Scalar", "encoder.layer.0"):
        assert expected in done.stdout
    assert "remote_only: class Strange" in swept("show", "someone/strange", "--db", "s.db").stdout


def test_show_prints_everything_as_json(swept: Run) -> None:
    stored = json.loads(swept("show", "someone/mini", "--db", "s.db", "--json").stdout)
    assert stored["model"]["model_id"] == "someone/mini"
    assert stored["evidence"]["adapters"] == {"gelu": "h1"}


def test_show_of_a_model_that_was_never_judged(swept: Run) -> None:
    assert "judge it with hf-adapters check no/such" in error_line(swept("show", "no/such", "--db", "s.db"))


def test_report_in_every_format_and_to_a_file(swept: Run, tmp_path: Path) -> None:
    printed = {
        name: swept("report", "--db", "s.db", "--format", name) for name in ("terminal", "json", "html", "md", "csv")
    }
    assert {done.returncode for done in printed.values()} == {0}
    assert json.loads(printed["json"].stdout)["coverage"]["10"]["accepted"] == 2
    assert len(list(csv.DictReader(io.StringIO(printed["csv"].stdout)))) == 4
    assert "2 of 4 models accepted (50.0 %), 64.5 % of downloads" in printed["md"].stdout
    assert "2 of 4 models accepted" in printed["terminal"].stdout
    assert "<!doctype html>" in printed["html"].stdout
    written = swept("report", "--db", "s.db", "--format", "json", "--output", "r.json")
    assert written.stdout == ""
    assert json.loads((tmp_path / "r.json").read_text())["verdicts"]["uncovered"] == 1


def test_report_of_the_first_ranks_only(swept: Run) -> None:
    figures = json.loads(swept("report", "--db", "s.db", "--format", "json", "--top", "1").stdout)
    assert figures["coverage"]["10000"]["models"] == 1
    assert figures["coverage"]["10000"]["downloads_share"] == 1.0


def test_info_names_the_bundled_snapshot_and_the_rankings_of_a_database(swept: Run) -> None:
    text = swept("corpus", "info", "--db", "s.db").stdout
    assert "bundled: 10,000 models of 2026-07-15" in text
    assert "ranking 'table:table.csv' with 4 models" in text


def test_profiles_of_a_family(hf_adapters: Run) -> None:
    lines = hf_adapters("corpus", "profiles", "--family", "mpnet").stdout.splitlines()
    assert lines
    assert all(line.startswith("mpnet.") for line in lines)


def test_releases_mark_the_default(hf_adapters: Run) -> None:
    lines = hf_adapters("releases").stdout.splitlines()
    assert [line.split()[:2] for line in lines] == [["*", "2026.07"], ["2026.09", "fingerprint"]]
    assert hf_adapters("releases", SPYRE_BACKEND_RELEASE="2026.09").stdout.splitlines()[1].startswith("* 2026.09")


def test_upgrading_twice_changes_nothing(hf_adapters: Run) -> None:
    assert "upgraded from nothing" in hf_adapters("db", "upgrade", "--db", "s.db").stdout
    assert "up to date" in hf_adapters("db", "upgrade", "--db", "s.db").stdout


def test_adapters_are_listed_and_shown(hf_adapters: Run) -> None:
    listed = hf_adapters("adapters", "list")
    assert listed.returncode == 0, listed.stderr
    assert "head_padding" in listed.stdout
    shown = hf_adapters("adapters", "show", "head_padding").stdout
    assert shown.startswith("head_padding: ")
    assert "ADAPTER = Adapter(" in shown


@pytest.mark.parametrize(("outcome", "code"), [("lost", 0), ("kept", 1), ("unusable", 1)])
def test_controls_keep_an_adapter_s_own_example_apart_from_models(
    outcome: Any, code: int, swept: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    control = ExampleControl(adapter="rotary", example="half", outcome=outcome, rule="view-stick-split", reason="")
    monkeypatch.setattr(own_examples, "example_control", lambda *_, **__: control)
    done = swept("adapters", "controls", "--db", "s.db", "--adapter", "rotary", COLUMNS="300")
    assert done.returncode == code
    assert "own example (no accepted structure is lost)" in done.stdout
    row = next(line.split() for line in done.stdout.splitlines() if line.strip().startswith("rotary  "))
    assert row == ["rotary", "0", "0", "0", "0", "half", outcome, "(view-stick-split)"]


def test_an_imported_ranking_can_be_swept_for_another_release(swept: Run) -> None:
    done = swept("sweep", "--db", "s.db", "--jobs", "1", "--work", FAKE_JUDGE, "--backend-release", "2026.09")
    assert done.returncode == 0, done.stderr
    figures = json.loads(swept("report", "--db", "s.db", "--format", "json", "--backend-release", "2026.09").stdout)
    assert figures["release"] == "2026.09"
    assert figures["coverage"]["10"]["accepted"] == 2
    assert figures["verdicts"]["pending"] == 0
