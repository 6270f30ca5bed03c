"""From a refusal to the smallest module that fails alone, and a script that shows it."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from transformers import Lfm2Config, Lfm2Model

import hf_adapters
from hf_adapters.validation.inputs import draw, spec_of
from hf_adapters.validation.smallest import Smallest, save_reproducer, smallest
from tests.agents.doubles import RELEASE, build_tiny

ACTIVATION = "encoder.layer.0.intermediate.intermediate_act_fn"


def find(path: str, rule: str) -> Smallest:
    model = build_tiny()
    batch = draw(spec_of(model), name="two", lengths=(64, 9), padding="right", seed=1)
    return smallest(model, path, rule, nullcontext, batch, RELEASE)


@pytest.fixture(scope="module")
def found() -> Smallest:
    return find(ACTIVATION, "pow-scalar-exponent")


@pytest.mark.slow
def test_the_module_that_fails_alone(found: Smallest) -> None:
    assert (found.path, found.alone) == (ACTIVATION, True)
    assert found.name == "transformers.activations:NewGELUActivation"
    assert found.operands == (("input", (2, 64, 64), "torch.float32"),)
    source, first = found.source()
    assert "torch.pow" in source
    assert first is not None


@pytest.mark.slow
def test_a_module_that_runs_alone_is_no_cause() -> None:
    wrong = find("encoder.layer.0.output.dense", "pow-scalar-exponent")
    assert wrong.path != "encoder.layer.0.output.dense" or not wrong.alone


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "rule", "absent"),
    [("layers.0.conv", "conv", "convolutions"), ("layers.1.self_attn", "rope-half-stick", "rotary")],
)
def test_modules_that_are_called_with_a_cache(path: str, rule: str, absent: str) -> None:
    """LFM2 gives one to its convolutions, too; another call of the module would find it filled."""
    config = Lfm2Config(
        vocab_size=90, hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=1,
        num_key_value_heads=1, full_attn_idxs=[1], block_auto_adjust_ff_dim=False,
    )  # fmt: skip
    model = Lfm2Model(config).eval()
    names = [adapter.name for adapter in hf_adapters.catalogue() if adapter.name != absent]
    batch = draw(spec_of(model), name="two", lengths=(64, 9), padding="right", seed=1)
    found = smallest(model, path, rule, functools.partial(hf_adapters.patched, only=names), batch, RELEASE)
    assert (found.path, found.alone) == (path, True)
    assert all("Cache" not in type(value).__name__ for value in found.call.kwargs.values())


@pytest.mark.slow
def test_the_script_fails_in_the_same_way(found: Smallest, tmp_path: Path) -> None:
    script = save_reproducer(found, tmp_path / "case", release=RELEASE, title="pow(x, 3)")
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))}
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "pow-scalar-exponent" in done.stderr
    uncalled = Smallest(path="x", module=found.module, call=None, alone=False)
    with pytest.raises(ValueError, match="never called"):
        save_reproducer(uncalled, tmp_path, release=RELEASE, title="")
