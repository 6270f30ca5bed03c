"""The generated operator table is current and complete."""

from __future__ import annotations

from pathlib import Path

import pytest

from spyre_backend import capabilities
from spyre_backend.capabilities import table

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "operators.md"


def test_document_is_current() -> None:
    regenerate = "python -m spyre_backend.capabilities.table --output docs/operators.md"
    assert DOCUMENT.read_text(encoding="utf-8") == table.render(), f"docs/operators.md is stale; run: {regenerate}"


def test_every_operator_and_rule_has_a_row() -> None:
    lines = table.render().splitlines()
    for release in capabilities.available():
        loaded = capabilities.load(release)
        for name in (*loaded.operators, *loaded.rules):
            assert any(line.startswith(f"| `{name}`") for line in lines), name


def test_main_writes_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table.main(["--output", str(tmp_path / "operators.md")])
    assert (tmp_path / "operators.md").read_text(encoding="utf-8") == table.render()
    table.main([])
    assert capsys.readouterr().out == table.render()
