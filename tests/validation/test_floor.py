"""The noise floor: right order of magnitude, no hidden float32, dtype semantics of float16."""

from __future__ import annotations

import pytest
import torch
import transformers
from torch.nn import functional as F

from hf_adapters.validation import dl16, metrics
from hf_adapters.validation.dl16_tensor import DL16Tensor
from hf_adapters.validation.float64 import in_float64
from hf_adapters.validation.floor import device_format
from hf_adapters.validation.inputs import draw, spec_of
from hf_adapters.validation.runners import Simulated, run_floor, run_reference
from tests.validation import structures


def _floor(model: torch.nn.Module) -> float:
    batch = draw(spec_of(model), name="a", lengths=(33, 20), padding="right", seed=1)
    reference, floor = run_reference(model, [batch], "mean"), run_floor(model, [batch], "mean").recording
    return max(
        float(metrics.vector_errors(floor.values[key], value, batch.valid).amax())
        for key, value in reference.values.items()
    )


def test_small_structures_have_a_floor_of_a_few_rounding_units() -> None:
    assert 2 * dl16.ROUNDING_UNIT < _floor(structures.build("bert")) < 0.03


@pytest.mark.slow
def test_deep_structures_have_the_known_floors() -> None:
    torch.manual_seed(0)
    minilm = transformers.BertConfig(
        initializer_range=0.1, hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536
    )
    assert 0.002 < _floor(transformers.BertModel(minilm).eval()) < 0.015
    qwen = transformers.Qwen3Config(
        initializer_range=0.1,
        vocab_size=503,
        hidden_size=1024,
        num_hidden_layers=6,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        intermediate_size=3072,
    )
    assert 0.006 < _floor(transformers.Qwen3Model(qwen).eval()) < 0.03


def test_float16_range_is_the_devices() -> None:
    with device_format():
        big = torch.full((4,), 60000.0, dtype=torch.float16) * 4
        assert big.dtype == torch.float16
        assert isinstance(big, DL16Tensor)
        assert torch.isfinite(big).all()
        assert float(big[0]) == float(dl16.rounded(dl16.from_host(torch.full((1,), 60000.0).half()) * 4))


def test_minus_infinity_as_a_number_of_the_program_leaves_a_floor() -> None:
    """Longformer fills its band with it; the softmax of the others is what counts."""
    scores = torch.randn(3, 8, generator=torch.Generator().manual_seed(2)).half()
    hidden = torch.arange(8) > 5
    with device_format():
        masked = torch.full_like(scores * 1, -float("inf")).where(hidden, scores * 1)
        filled = (scores * 1).masked_fill(hidden, -float("inf"))
        shares = [torch.softmax(x, -1, dtype=torch.float32) for x in (masked, filled)]
    assert all(bool(x.isfinite().all()) for x in shares)
    assert all(float(x[:, 6:].abs().max()) == 0.0 for x in shares)


def test_float32_stays_float32() -> None:
    with device_format() as log:
        x = torch.full((4,), 1 / 3, dtype=torch.float16)
        wide = x.to(torch.float32) * (1 + 2**-20)
        assert wide.dtype == torch.float32
        assert not isinstance(wide, DL16Tensor)
        assert float(wide[0]) != float(dl16.rounded(wide)[0])
    assert not log.off_format


def test_a_matrix_product_in_another_format_is_noticed() -> None:
    with device_format() as log:
        torch.randn(4, 4) @ torch.randn(4, 4)
        torch.randn(4, 4, dtype=torch.float64) @ torch.randn(4, 4, dtype=torch.float64)
        torch.randn(2, 4, 1) @ torch.randn(2, 1, 3)  # an outer product: rotary angles
    assert log.off_format == {("aten.mm", "float32"): 1, ("aten.mm", "float64"): 1}


def test_attention_is_not_computed_by_a_fused_kernel() -> None:
    q, k, v = (torch.randn(1, 2, 8, 16, generator=torch.Generator().manual_seed(s)).half() for s in range(3))
    with device_format() as log:
        out = F.scaled_dot_product_attention(q, k, v)
    assert log.dl16_ops["aten.bmm"] == 2
    exact = F.scaled_dot_product_attention(q.double(), k.double(), v.double())
    assert isinstance(out, DL16Tensor)
    assert 0 < float((out.dl16 - exact).abs().max()) < 0.02


@pytest.mark.parametrize("name", ["bert", "qwen3", "modernbert"])
def test_a_stock_model_computes_nothing_off_format(name: str) -> None:
    model = structures.build(name)
    execution = Simulated()(model, [draw(spec_of(model), name="a", lengths=(9, 5), padding="left", seed=0)], "mean")
    assert not execution.computed_elsewhere


def test_float64_mode_leaves_no_float32_rounding() -> None:
    model = structures.build("qwen3")  # its RMSNorm casts to float32 inside
    ids = draw(spec_of(model), name="a", lengths=(9,), padding="none", seed=0).kwargs["input_ids"]
    with in_float64():
        ours = model(input_ids=ids).last_hidden_state
    again = structures.build("qwen3")
    with in_float64():
        again.double()
        theirs = again(input_ids=ids).last_hidden_state
    assert ours.dtype == theirs.dtype == torch.float64
    assert float((ours - theirs).abs().max() / theirs.abs().max()) < 1e-13
