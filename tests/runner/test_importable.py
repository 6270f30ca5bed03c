"""Modules whose classes come from a file that was loaded by its path and never entered ``sys.modules``."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import hf_adapters

SOURCE = """
import math

import torch
from torch import nn


class Parent(nn.Module):
    def forward(self, x):
        return x * math.sqrt(4.0)


class Child(Parent):
    def forward(self, x):
        return super().forward(x) + FACTOR


FACTOR = 3.0
"""


@pytest.mark.parametrize("keep_module", [True, False])
def test_a_module_that_cannot_be_imported_by_name(tmp_path: Path, keep_module: bool) -> None:
    path = tmp_path / "never_imported.py"
    path.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model = nn.Sequential(module.Child(), nn.Identity()).eval()
    if not keep_module:
        del module

    compiled = hf_adapters.compile(model)
    got = compiled(torch.ones(2, 64))

    assert torch.equal(got, torch.full((2, 64), 5.0))
    assert "never_imported" not in sys.modules
