"""Text inputs: valid tokens, varied lengths, padding that is never a word."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_adapters.corpus import BuiltModel, build_model, make_inputs
from tests.corpus import conftest as small


@pytest.fixture(scope="module")
def built() -> BuiltModel:
    return build_model(small.roberta())


@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=5),
    seed=st.integers(0, 3),
    side=st.sampled_from(["left", "right"]),
)
@settings(max_examples=30, deadline=None)
def test_masked_positions_are_padding_and_no_others(
    built: BuiltModel, lengths: list[int], seed: int, side: str
) -> None:
    inputs = make_inputs(built, lengths=lengths, seed=seed, padding_side=side)  # type: ignore[arg-type]
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    limit = small.BERT["max_position_embeddings"] - 2
    assert mask.sum(1).tolist() == [min(length, limit) for length in lengths]
    assert torch.equal(ids == 1, mask == 0)
    assert int(ids.min()) >= 0
    assert int(ids.max()) < built.config.vocab_size
    full = mask[:, -1] if side == "left" else mask[:, 0]
    assert bool(full.all())


def test_sentences_are_framed_by_special_tokens(built: BuiltModel) -> None:
    ids = make_inputs(built, lengths=[9, 6])["input_ids"]
    assert ids[:, 0].tolist() == [0, 0]
    assert (int(ids[0, 8]), int(ids[1, 5])) == (2, 2)
    assert not set(ids[0, 1:8].tolist()) & {0, 1, 2}


def test_the_position_table_limits_the_length(built: BuiltModel) -> None:
    inputs = make_inputs(built, lengths=[500])
    assert inputs["input_ids"].shape == (1, 38)
    with torch.no_grad():
        built.model(**inputs)


def test_the_same_arguments_give_the_same_inputs(built: BuiltModel) -> None:
    first, second, other = make_inputs(built), make_inputs(built), make_inputs(built, seed=1)
    assert torch.equal(first["input_ids"], second["input_ids"])
    assert not torch.equal(first["input_ids"], other["input_ids"])


def test_lengths_are_repeated_over_the_batch(built: BuiltModel) -> None:
    mask = make_inputs(built, batch=5, lengths=[7, 3])["attention_mask"]
    assert mask.sum(1).tolist() == [7, 3, 7, 3, 7]


def test_token_types_come_where_the_model_has_them() -> None:
    assert "token_type_ids" in make_inputs(build_model(small.bert()))
    assert "token_type_ids" not in make_inputs(build_model(small.gpt_neo()))


@pytest.mark.parametrize("arguments", [{"batch": 0}, {"lengths": []}, {"lengths": [3, 0]}])
def test_empty_sentences_are_refused(built: BuiltModel, arguments: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="at least one token"):
        make_inputs(built, **arguments)  # type: ignore[arg-type]
