"""Weights that change after patching: honest patches follow, copies do not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hf_adapters.patching import patched
from hf_adapters.validation.followed import follows_weights
from hf_adapters.validation.inputs import draw, spec_of
from hf_adapters.validation.streaming import replaced_forward
from hf_adapters.validation.types import Check, Thresholds
from tests.validation import structures
from tests.validation.surgery import feed_forward_linears


@contextmanager
def _copied_table(model: nn.Module) -> Iterator[nn.Module]:
    table = model.get_input_embeddings()  # its weight is the first parameter
    weight = table.weight.detach().clone()

    def forward(ids: Tensor) -> Tensor:
        return F.embedding(ids, weight)

    with replaced_forward(table, forward):
        yield model


@contextmanager
def _copied(model: nn.Module) -> Iterator[nn.Module]:
    linear = feed_forward_linears(model)[-1]
    weight = linear.weight.detach().clone()

    def forward(x: Tensor) -> Tensor:
        return F.linear(x, weight, linear.bias)

    with replaced_forward(linear, forward):
        yield model


def _checked(name: str, patch: object) -> Check:
    model = structures.build(name)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    batch = draw(spec_of(model), name="batch", lengths=(9, 4), padding="right", seed=3)
    found = follows_weights(model, patch, batch, Thresholds())  # type: ignore[arg-type]
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    return found


@pytest.mark.parametrize("name", ["bert", "qwen3", "distilbert"])
def test_an_honest_patch_follows_the_weights(name: str) -> None:
    found = _checked(name, patched)
    assert found.passed, found


@pytest.mark.parametrize("copied", [_copied, _copied_table])
def test_a_copy_of_a_weight_is_found(copied: object) -> None:
    found = _checked("bert", copied)
    assert not found.passed
    assert found.where.startswith("batch/encoder.layer."), "the first layer that does not follow"
