"""Regional compilation: equal layers compile once and share their programs; settings reach models."""

from __future__ import annotations

import functools

import pytest
import torch
from torch._inductor import config as inductor
from transformers import BertConfig, BertModel

import hf_adapters
from spyre_backend.compiler import stages
from spyre_backend.compiler.settings import using
from spyre_backend.program import Program
from tests.compiler.plan_checker import check_program

pytestmark = pytest.mark.slow


@functools.cache
def programs(layers, **changes):
    torch._dynamo.reset()
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=99, hidden_size=128, num_hidden_layers=layers, num_attention_heads=2, intermediate_size=256
    )
    model = BertModel(config).eval()
    inputs = {"input_ids": torch.arange(1, 49)[None], "attention_mask": torch.ones(1, 48).long()}
    expected = model(**inputs).last_hidden_state
    hf_adapters.compile(model)
    with using(**changes), stages.recording() as collected, torch.no_grad(), inductor.patch(fx_graph_cache=False):
        got = model(**inputs).last_hidden_state
    assert torch.nn.functional.cosine_similarity(got.flatten(), expected.flatten(), dim=0) > 0.999
    return [Program.from_json(s.text) for s in collected if s.stage == "program"]


def test_three_layers_need_no_more_programs_than_one():
    one, three = programs(1), programs(3)
    assert len(one) > 0
    assert {p.digest for p in three} == {p.digest for p in one}
    assert len(three) == len(one)


def test_a_whole_model_keeps_its_temporaries_and_gives_the_same_without():
    layer = max(programs(1), key=lambda p: len(p.ops))
    check_program(layer, 1_625_344)
    assert any(op.name == "LxRelayout" for op in layer.ops)
    temps = [spec for spec in layer.tensors if spec.kind == "temp"]
    assert sum(spec.lx_address is not None for spec in temps) > len(temps) / 2
    off = max(programs(1, lx_planning=False), key=lambda p: len(p.ops))
    assert not [spec for spec in off.tensors if spec.lx_address is not None]
    assert not [op for op in off.ops if op.name == "LxRelayout"]
