"""Which profiles share a structure."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hf_adapters.corpus import Profile, group_profiles, load_profiles, structural_signature

BERT = load_profiles()["bert.base/v30522"]


def _with(profile: Profile, **values: object) -> Profile:
    return replace(profile, config={**profile.config, **values})


@pytest.mark.parametrize(
    "change",
    [
        {"vocab_size": 99},
        {"pad_token_id": 3},
        {"hidden_dropout_prob": 0.5},
        {"_name_or_path": "x"},
        {"dtype": "bfloat16"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_changes_no_operation_changes_no_signature(change: dict[str, object]) -> None:
    assert structural_signature(_with(BERT, **change)) == structural_signature(BERT)


@pytest.mark.parametrize(
    "change",
    [
        {"hidden_size": 512},
        {"num_attention_heads": 6},
        {"hidden_act": "relu"},
        {"layer_norm_eps": 1e-5},
        {"max_position_embeddings": 514},
        {"num_hidden_layers": 11},
        {"rope_parameters": {"rope_theta": 5.0}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_changes_an_operation_changes_the_signature(change: dict[str, object]) -> None:
    assert structural_signature(_with(BERT, **change)) != structural_signature(BERT)


def test_class_and_type_are_part_of_the_signature() -> None:
    assert structural_signature(replace(BERT, architecture_class="RobertaModel")) != structural_signature(BERT)
    assert structural_signature(replace(BERT, model_type="roberta")) != structural_signature(BERT)


def test_the_vocabulary_of_a_nested_text_config_is_left_out_too() -> None:
    clip = load_profiles()["metaclip2.b16-384/v32768"]
    other = _with(clip, text_config={**clip.config["text_config"], "vocab_size": 7})
    assert structural_signature(other) == structural_signature(clip)


def test_the_vocabulary_counts_where_embeddings_are_looked_up_on_the_device() -> None:
    smaller = _with(BERT, vocab_size=99)
    assert structural_signature(smaller, "2026.07") == structural_signature(BERT, "2026.07")
    assert structural_signature(smaller, "2026.09") != structural_signature(BERT, "2026.09")


def test_an_unknown_release_is_refused() -> None:
    with pytest.raises(ValueError, match=r"1999\.01"):
        structural_signature(BERT, "1999.01")


def test_the_bundled_profiles_fall_into_their_shapes() -> None:
    groups = group_profiles(load_profiles().values())
    shapes = {frozenset(profile.shape_id for profile in group.profiles) for group in groups.values()}
    assert all(len(names) == 1 for names in shapes)
    assert len(groups) == len({profile.shape_id for profile in load_profiles().values()}) == 189


def test_the_most_downloaded_profile_represents_its_group() -> None:
    groups = list(group_profiles(load_profiles().values()).values())
    assert groups[0].representative.profile_id == "bert.minilm-l6/v30522"
    for group in groups:
        assert group.representative.downloads == max(profile.downloads for profile in group.profiles)


def test_the_signature_does_not_depend_on_the_order_of_the_config() -> None:
    backwards = replace(BERT, config=dict(reversed(list(BERT.config.items()))))
    assert structural_signature(backwards) == structural_signature(BERT)
