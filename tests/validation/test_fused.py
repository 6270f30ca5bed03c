"""Wrong only when fused: a model that is right on the device but for one decision of the compiler."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hf_adapters.diagnose import Diagnosis, diagnose
from hf_adapters.validation.inputs import draw, spec_of
from spyre_backend import capabilities
from spyre_backend.compiler.bisection import blame

pytestmark = pytest.mark.filterwarnings("ignore")


def _bert() -> nn.Module:
    import transformers

    torch.manual_seed(3)
    config = transformers.BertConfig(
        vocab_size=97, hidden_size=128, num_hidden_layers=1, num_attention_heads=2, intermediate_size=128,
        max_position_embeddings=96, initializer_range=0.1,
    )  # fmt: skip
    return transformers.BertModel(config).eval()


def _diagnosed(model: nn.Module) -> Diagnosis:
    batch = draw(spec_of(model), name="one", lengths=(64, 23), padding="right", seed=1)
    return diagnose(model, [batch.kwargs], stock=True)


@pytest.mark.slow
def test_the_decision_that_flips_the_result_is_named() -> None:
    model = _bert()
    with capabilities.silent_bugs("issue-1783"):
        found = _diagnosed(model)
    assert found.kind == "fused"
    assert found.layer == "encoder.layer.0"
    assert found.decision is not None
    assert found.decision.startswith("layout: aten.mul.Tensor at attention.self (BertSelfAttention)")
    assert "[2, 2, 64, 64]" in found.decision
    assert 3 <= found.runs <= 12
    assert found.decision in str(found)


def test_a_right_result_has_nobody_to_blame() -> None:
    with pytest.raises(ValueError, match="right"):
        blame(lambda: False)


def test_a_program_that_compiles_nothing_runs_once() -> None:
    found = blame(lambda: True)
    assert (found.decision, found.runs) == (None, 1)
