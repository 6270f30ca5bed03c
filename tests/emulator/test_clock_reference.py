"""docs/device.md is current, and what it claims exists."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from spyre_backend import capabilities, reference
from spyre_backend.emulator.clock_constants import FACTS

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "device.md"


def test_document_is_current() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == reference.render(), "docs/device.md is stale; run: make docs"


def test_everything_is_listed() -> None:
    text = reference.render()
    bugs = capabilities.load(capabilities.DEFAULT_RELEASE).settings.silent_bugs
    for name in (*FACTS, *bugs):
        assert f"`{name}`" in text, name


@pytest.mark.parametrize("area", reference.AREAS, ids=lambda area: area.what)
def test_every_area_names_a_module_and_a_section(area: reference.Area) -> None:
    assert importlib.util.find_spec(f"spyre_backend.{area.module}") is not None
    assert area.source.startswith("D")


def test_main_writes_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reference.main(["--output", str(tmp_path / "device.md")])
    reference.main([])
    assert capsys.readouterr().out == (tmp_path / "device.md").read_text(encoding="utf-8") == reference.render()
