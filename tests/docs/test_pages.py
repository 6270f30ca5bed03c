"""The documentation is true: its code runs, its generated pages are current, what it names exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

from hf_adapters import reference

from .snippets import ROOT, run, saved_model, snippets

GUARANTEES = sorted((ROOT / "docs" / "guarantees").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the pages take as given: torch, transformers, a model's path and a batch of its tokens."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    import hf_adapters

    path = saved_model(tmp_path_factory.mktemp("model"))
    tokens = dict(AutoTokenizer.from_pretrained(path)(["which models run on spyre ?"], return_tensors="pt"))
    return {"hf_adapters": hf_adapters, "torch": torch, "AutoModel": AutoModel, "path": path, "tokens": tokens}


@pytest.mark.parametrize("page", GUARANTEES, ids=lambda page: page.stem)
def test_guarantee_is_shown_by_code_that_runs(page: Path, names: dict[str, Any], tmp_path: Path) -> None:
    assert page.stem == "README" or snippets(page)
    run(page, dict(names), tmp_path)


def test_adapter_page_writes_proves_and_runs_an_adapter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    found: dict[str, Any] = {}
    run(ROOT / "docs" / "write-an-adapter.md", found, tmp_path)
    assert found["ADAPTER"].name == "batch_norm"


@pytest.mark.slow
def test_quick_start_runs(names: dict[str, Any], tmp_path: Path) -> None:
    run(ROOT / "README.md", dict(names), tmp_path)


@pytest.mark.parametrize("name", reference.PAGES)
def test_generated_page_is_current(name: str) -> None:
    page = ROOT / "docs" / name
    assert page.read_text(encoding="utf-8") == reference.PAGES[name](), f"docs/{name} is stale; run: make docs"


@pytest.mark.parametrize("page", GUARANTEES, ids=lambda page: page.stem)
def test_tests_that_hold_a_guarantee_exist(page: Path) -> None:
    named = re.findall(r"`(tests/\S+?\.py)::(\w+)`", page.read_text(encoding="utf-8"))
    assert page.stem == "README" or named
    for file, function in named:
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, f"{file}::{function}"


def test_every_guarantee_is_in_the_index() -> None:
    index = (ROOT / "docs" / "guarantees" / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\]\((\S+?)\.md\)", index)) == {page.stem for page in GUARANTEES} - {"README"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if "://" not in target and not target.startswith("#"):
            assert (page.parent / target.partition("#")[0]).exists(), target
