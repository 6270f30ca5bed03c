"""Built models: the right class and size, whole or cut, the same every time."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from hf_adapters.corpus import (
    ConfigInvalid,
    NoTextInputs,
    Profile,
    Unbuildable,
    build_model,
    group_profiles,
    load_profiles,
    make_inputs,
)
from hf_adapters.corpus.architectures import count_parameters, declared
from hf_adapters.corpus.cut import distinct_layers, fit
from tests.corpus import conftest as small

SMALL = [small.bert, small.roberta, small.modernbert, small.gpt_neo, small.t5, small.clip]


def _run(profile: Profile, **options: int) -> torch.Tensor:
    built = build_model(profile, **options)
    with torch.no_grad():
        return built.model(**make_inputs(built))[0]


@pytest.mark.parametrize("make", SMALL, ids=lambda make: make.__name__)
def test_a_built_model_answers_with_finite_varied_numbers(make: Callable[[], Profile]) -> None:
    built = build_model(make())
    assert not built.model.training
    assert all(parameter.dtype == torch.float32 for parameter in built.model.parameters())
    assert sum(parameter.numel() for parameter in built.model.parameters()) == built.elements
    with torch.no_grad():
        answer = built.model(**make_inputs(built))[0]
    assert bool(torch.isfinite(answer).all())
    assert float(answer.std()) > 0.1


def test_two_builds_are_the_same_bit_for_bit() -> None:
    first, second = (dict(build_model(small.gpt_neo()).model.state_dict()) for _ in range(2))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_another_seed_gives_another_model() -> None:
    assert not torch.equal(_run(small.bert(), seed=0), _run(small.bert(), seed=1))


def test_every_dtype_has_the_same_weights() -> None:
    single = build_model(small.bert()).model.state_dict()
    double = build_model(small.bert(), dtype=torch.float64).model.state_dict()
    assert all(torch.equal(single[name].double(), double[name].double()) for name in single)


def test_weights_do_not_depend_on_vocabulary_or_depth() -> None:
    whole = build_model(small.bert(), max_elements=None).model.state_dict()
    cut = build_model(small.bert(), max_elements=1)
    assert cut.depth == "distinct"
    shared = [name for name in cut.model.state_dict() if "word_embeddings" not in name]
    assert len(shared) > 10
    assert all(torch.equal(cut.model.state_dict()[name], whole[name]) for name in shared)


def test_the_global_random_state_is_left_alone() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    build_model(small.bert())
    assert torch.equal(before, torch.get_rng_state())


def test_vocabulary_goes_first_and_depth_next() -> None:
    whole = build_model(small.bert())
    assert (whole.cut, whole.depth, whole.layers) == ({}, "all", None)
    fewer_tokens = build_model(small.bert(), max_elements=whole.elements - 1)
    assert dict(fewer_tokens.cut) == {"vocab_size": (3000, 2048)}
    assert fewer_tokens.depth == "all"
    shallow = build_model(small.bert(), max_elements=fewer_tokens.elements - 1)
    assert shallow.cut["num_hidden_layers"] == (4, 2)
    assert (shallow.depth, shallow.layers) == ("distinct", (0, 1))


def test_one_layer_of_each_kind_stays() -> None:
    sliding, full = "sliding_attention", "full_attention"
    built = build_model(small.gemma3([sliding, sliding, sliding, full, sliding, full]), max_elements=1)
    assert built.layers == (0, 3)
    assert built.config.layer_types == [sliding, full]
    # The first layer of ModernBERT has no norm before attention, so it is a kind of its own.
    assert build_model(small.modernbert(), max_elements=1).layers == (0, 1, 3)
    assert build_model(small.gpt_neo(), max_elements=1).config.attention_layers == ["global", "local"]
    assert build_model(small.t5(), max_elements=1).layers == (0, 1)


@pytest.mark.parametrize("make", SMALL, ids=lambda make: make.__name__)
def test_a_cut_model_still_runs(make: Callable[[], Profile]) -> None:
    assert bool(torch.isfinite(_run(make(), max_elements=1)).all())


def test_special_tokens_stay_inside_a_cut_vocabulary_and_apart() -> None:
    config = build_model(small.modernbert(), max_elements=1).config
    ids = [config.pad_token_id, config.bos_token_id, config.eos_token_id]
    assert len(set(ids)) == 3
    assert all(0 <= token < config.vocab_size for token in ids)
    assert (config.cls_token_id, config.sep_token_id) == (config.bos_token_id, config.eos_token_id)


def test_a_dual_encoder_is_built_as_its_text_tower() -> None:
    built = build_model(small.clip())
    assert type(built.model).__name__ == "CLIPTextModelWithProjection"
    assert built.left_out == ("vision",)
    with torch.no_grad():
        assert built.model(**make_inputs(built)).text_embeds.shape == (4, 48)


def test_a_model_without_text_is_refused() -> None:
    vision = small.profile("vit", "ViTModel", hidden_size=64, num_attention_heads=2)
    with pytest.raises(NoTextInputs) as caught:
        build_model(vision)
    assert caught.value.code == "E_NO_TEXT_INPUTS"


def test_what_cannot_be_built_says_why() -> None:
    with pytest.raises(Unbuildable, match="no model class 'FrobModel'"):
        build_model(replace(small.bert(), architecture_class="FrobModel"))
    with pytest.raises(ConfigInvalid, match="'frob'"):
        build_model(replace(small.bert(), model_type="frob"))
    with pytest.raises(Unbuildable, match="65"):
        build_model(small.bert(hidden_size=65))
    with pytest.raises(ConfigInvalid):
        build_model(small.bert(hidden_size="wide"))


def test_the_first_of_each_kind_is_kept() -> None:
    assert distinct_layers("aabacb", 2) == (0, 2, 4)
    assert distinct_layers("aaaa", 2) == (0, 1)
    assert distinct_layers("aaaa", 1) == (0,)
    assert distinct_layers("ab", 5) == (0, 1)


def test_a_huge_model_is_never_allocated() -> None:
    profile = load_profiles()["qwen3.4b/v151665"]
    tracemalloc.start()
    cut = fit(*declared(profile), 400_000_000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert cut.layers == (0, 1)
    assert cut.elements < 400_000_000
    assert peak < 100e6


@pytest.mark.slow
def test_every_shape_has_the_expected_number_of_parameters() -> None:
    wrong = {}
    for group in group_profiles(load_profiles().values()).values():
        profile = group.representative
        count = count_parameters(*declared(profile))
        if count != profile.expected_parameter_count:
            wrong[profile.profile_id] = count
    assert wrong == {}
