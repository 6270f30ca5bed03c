"""From a failing model to the failing module."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
import torch
from torch import nn

from hf_adapters.diagnose import Diagnosis, diagnose
from hf_adapters.validation.inputs import InputSet
from hf_adapters.validation.places import located, trail
from hf_adapters.validation.recording import Pooling, Recording
from hf_adapters.validation.runners import Execution, Simulated
from spyre_backend.errors import SpyreUnsupported
from tests.validation import structures
from tests.validation.mutations import NUMERIC, Mutation

CULPRITS = {
    ("bert", "gelu replaced by quick-gelu"): "encoder.layer.0.intermediate.intermediate_act_fn",
    ("bert", "one layer skipped"): "encoder.layer.1",
    ("bert", "attention scale off by sqrt(2)"): "encoder.layer.0.attention.self",
    ("bert", "positions dropped"): "embeddings.position_embeddings",
    ("bert", "5 % noise on feed-forward weights"): "encoder.layer.0.intermediate.dense",
    ("qwen3", "norm eps 1e-2"): "layers.0.input_layernorm",
    ("qwen3", "gelu replaced by silu"): "layers.0.mlp.act_fn",
    ("qwen3", "wrong rotary theta"): "rotary_emb",
}


@pytest.mark.parametrize(("name", "fault"), CULPRITS)
def test_a_wrong_patch_is_traced_to_its_module(name: str, fault: str) -> None:
    mutation: Mutation = next(m for m in NUMERIC if m.name == fault)
    found = diagnose(structures.build(name), patch=mutation, runner=Simulated())
    assert found.kind == "wrong"
    assert found.module_path is not None
    assert found.module_path.partition(" ")[0] == CULPRITS[name, fault]
    assert found.error is not None
    assert found.limit is not None
    assert found.error > found.limit


def test_a_fault_that_shows_in_one_padding_only_is_found() -> None:
    mutation = next(m for m in NUMERIC if m.name == "padding mask ignored")
    assert diagnose(structures.build("qwen3"), patch=mutation, runner=Simulated()).kind == "wrong"


class Coarse(Simulated):
    """Loses digits in the second layer, as a device with a worse norm would."""

    def __call__(self, model: nn.Module, input_sets: Sequence[InputSet], pooling: Pooling) -> Execution:
        done = super().__call__(model, input_sets, pooling)
        values = {
            k: v.half().to(torch.float8_e4m3fn).float() if "layer.1" in k else v
            for k, v in done.recording.values.items()
        }
        return Execution(recording=Recording(values))


def test_lost_digits_are_told_from_wrong_code() -> None:
    found = diagnose(structures.build("bert"), runner=Coarse())
    assert found.kind == "inaccurate"
    assert found.layer == "encoder.layer.1"
    assert "noise floors" in found.message


def test_nothing_is_found_in_a_right_model() -> None:
    assert diagnose(structures.build("bert"), runner=Simulated()).kind == "none"


class Refusing:
    """A runner whose device refuses one operation."""

    name = "refusing"

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __call__(self, model: nn.Module, input_sets: Sequence[InputSet], pooling: Pooling) -> Execution:
        raise self.error


def test_a_refusal_carries_op_rule_and_place() -> None:
    error = SpyreUnsupported(
        op="aten.pow.Tensor_Scalar",
        rule="pow-scalar-exponent",
        shapes=((2, 64),),
        dtypes=("torch.float16",),
        module_path="layers.0.mlp (MLP)",
        source_line="model.py:7",
        hint="write products",
        detail="pow(x, 3) is not lowered",
    )
    found = diagnose(structures.build("bert"), runner=Refusing(error))
    assert (found.kind, found.op, found.rule, found.module_path) == ("refused", error.op, error.rule, error.module_path)
    assert (found.source_line, found.hint, found.shapes) == ("model.py:7", "write products", ((2, 64),))
    assert found.rule_title
    text = str(found)
    for part in ("pow(x, 3)", "model.py:7", "pow-scalar-exponent", "layers.0.mlp"):
        assert part in text


def test_any_other_error_is_reported_as_such() -> None:
    found: Diagnosis = diagnose(structures.build("bert"), runner=Refusing(ZeroDivisionError("x")))
    assert (found.kind, found.message) == ("failed", "ZeroDivisionError: x")


@contextmanager
def _following(model: nn.Module) -> Iterator[list[str]]:
    with trail({"0": model[0], "1": model[1]}) as followed:  # type: ignore[index]
        yield followed.open


def test_the_trail_ends_where_the_error_was() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(3, 2))
    with _following(model) as open_modules:
        with pytest.raises(RuntimeError):
            model(torch.zeros(1, 2))
        assert open_modules == ["1"]


def test_paths_are_joined_from_the_root() -> None:
    error = SpyreUnsupported(op="x", rule="y", module_path="attention.self (BertSelfAttention)")
    assert located(error, "encoder.layer.0").module_path == "encoder.layer.0.attention.self (BertSelfAttention)"
    root = SpyreUnsupported(op="x", rule="y", module_path="<root> (BertLayer)")
    assert located(root, "encoder.layer.0").module_path == "encoder.layer.0 (BertLayer)"
    assert located(error, None) is error
