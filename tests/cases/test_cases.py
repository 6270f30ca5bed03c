"""The public failure reports in ``../shared/cases`` against ``hf_adapters.compile``."""

from __future__ import annotations

import importlib.util
import inspect
import os
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from torch import nn

import hf_adapters

FOLDER = Path(__file__).resolve().parents[3] / "shared" / "cases"
FILES = sorted(FOLDER.glob("case_*.py"))
TARGET = os.environ.get("HF_ADAPTERS_CASES_TARGET", "spyre")

if not FILES:
    pytest.skip("the failure reports (../shared/cases) are not part of this checkout", allow_module_level=True)

pytestmark = [pytest.mark.slow] if TARGET == "spyre" else []


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def apply(model: nn.Module) -> nn.Module:
    return hf_adapters.compile(model, target=TARGET)


def device_calls() -> int:
    import torch

    return int(torch.spyre.launch_count())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_case(path: Path) -> None:
    case = load(path)
    hooks: dict[str, Any] = {}
    wanted = inspect.signature(case.check).parameters
    if "undo" in wanted:
        hooks["undo"] = hf_adapters.decompile
    if "device_calls" in wanted and TARGET == "spyre":
        hooks["device_calls"] = device_calls
    case.check(apply, **hooks)
