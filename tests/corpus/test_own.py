"""Structures of our own in the corpus: their ranks, folders that they load, masks that they keep apart."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

from hf_adapters.corpus import WeightsInvalid, load_model, load_profiles, load_ranking, own, resolve
from hf_adapters.corpus.architectures import count_parameters, declared
from hf_adapters.corpus.match import parse_config, profile_of
from hf_adapters.natives.jina_bert import JinaBertModel
from tests.natives import published as p
from tests.natives import test_decoders as decoders
from tests.natives import test_jina_v2 as jina_v2
from tests.natives import test_jina_v3 as jina_v3

TABLE = Path(__file__).parents[2].parent / "shared/corpus/top10k.csv"


@pytest.mark.skipif(not TABLE.is_file(), reason="the table with model ids is not at hand")
def test_the_bundled_ranks_follow_from_the_table() -> None:
    with TABLE.open(encoding="utf-8", newline="") as opened:
        assert own.lines(csv.DictReader(opened)) == list(own.bundled())


def test_nearly_all_downloads_have_a_structure() -> None:
    ranking = load_ranking()
    rows = [row for row in ranking.rows if row.profile_id is not None and not row.stand_in]
    assert sum(row.downloads for row in rows) / ranking.downloads > 0.998
    assert {row.buildable for row in rows if row.rank in (19, 35, 44)} == {own.BUILDABLE}


@pytest.mark.parametrize("profile_id", own.STRUCTURES)
def test_counts_of_the_structures(profile_id: str) -> None:
    profile = load_profiles()[profile_id]
    assert count_parameters(*declared(profile)) == profile.expected_parameter_count


def test_rows_that_need_no_remote_code_are_left_alone() -> None:
    cells = {"buildable": "native", "architecture": "XLMRobertaModel", "parameters": "572310396"}
    assert own.placed(cells) is None
    assert own.placed({**cells, "buildable": "remote_only"}) == ("jina.v3/v250002", "exact")
    assert own.placed({**cells, "buildable": "remote_only", "parameters": ""}) is None


def test_a_folder_as_published_is_built_with_its_weights(tmp_path: Path) -> None:
    built = load_model(resolve(str(p.write(tmp_path, jina_v2.CONFIG, jina_v2.checkpoint("qk_norm")))))
    assert (type(built.model), built.weights) == (JinaBertModel, "real")
    assert built.profile.config["qk_norm"] is True


def test_a_folder_without_a_model_type_is_recognised(tmp_path: Path) -> None:
    built = load_model(resolve(str(p.write(tmp_path, jina_v3.CONFIG, jina_v3.checkpoint()[1]))))
    assert (type(built.model).__name__, built.weights) == ("JinaEmbeddingsV3Model", "real")


def test_a_renamed_weight_is_an_error(tmp_path: Path) -> None:
    weights = jina_v2.checkpoint("gate_first")
    weights["encoder.layer.0.mlp.down.bias"] = weights.pop("encoder.layer.0.mlp.wo.bias")
    with pytest.raises(WeightsInvalid, match="missing"):
        load_model(resolve(str(p.write(tmp_path, jina_v2.CONFIG, weights))))


def test_a_missing_task_says_how_to_name_one(tmp_path: Path) -> None:
    folder = p.write(tmp_path, decoders.JINA_SMALL, decoders.checkpoint("qwen3"))
    with pytest.raises(WeightsInvalid, match="needs a task"):
        load_model(resolve(str(folder)))
    found, _ = decoders.adapters(decoders.checkpoint("qwen3"), "")
    decoders.write_adapter(folder, "retrieval", found)
    assert load_model(replace(resolve(str(folder)), task="retrieval")).weights == "real"


def test_a_file_of_another_layout_is_an_error_for_stock_classes_too(tmp_path: Path) -> None:
    """The published file without the settings that tell whose it is: stock BERT would draw most of it."""
    known = {"model_type": "bert", "architectures": ["BertModel"]}
    telling = ("auto_map", "position_embedding_type", "feed_forward_type", "emb_pooler", "attn_implementation")
    config = {**{name: value for name, value in jina_v2.CONFIG.items() if name not in telling}, **known}
    folder = p.write(tmp_path, config, jina_v2.checkpoint("gate_first"))
    with pytest.raises(WeightsInvalid, match="missing"):
        load_model(resolve(str(folder)))


def test_a_task_for_a_model_without_adapters_is_an_error(tmp_path: Path) -> None:
    folder = p.write(tmp_path, jina_v2.CONFIG, jina_v2.checkpoint("gate_first"))
    with pytest.raises(WeightsInvalid, match="no task"):
        load_model(replace(resolve(str(folder)), task="retrieval"))


def test_the_mask_tells_profiles_apart() -> None:
    causal = {**load_profiles()["qwen3.0.6b/v151936"].config, "architectures": ["Qwen3Model"]}
    assert profile_of(causal, "x").profile_id == "qwen3.0.6b/v151936"
    both = {**causal, "model_type": "bidirectional_pplx_qwen3", "architectures": ["PPLXQwen3Model"]}
    both["auto_map"] = {"AutoModel": "modeling.PPLXQwen3Model"}
    found = profile_of(both, "x")
    assert (found.architecture_class, found.config["is_causal"]) == ("Qwen3Model", False)
    assert found.profile_id.startswith("qwen3.bidirectional-0.6b/")


def test_only_known_configs_may_lack_their_type() -> None:

    assert parse_config(json.dumps(jina_v3.CONFIG), "x")["model_type"] == "xlm-roberta"
    with pytest.raises(ValueError, match="names no model_type"):
        parse_config("{}", "x")


ROW = {"buildable": "native", "match": "exact", "remote_code": "True", "profile_id": "qwen2.1.5b/v151646"}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"model_id": "Alibaba-NLP/gte-Qwen2-1.5B-instruct"}, ("qwen2.bidirectional-1.5b/v151646", "exact")),
        ({"model_id": "someone/stella_en_1.5B_v5"}, ("qwen2.bidirectional-1.5b/v151646", "exact")),
        ({"model_id": "Qodo/Qodo-Embed-1-1.5B"}, ("qwen2.bidirectional-1.5b/v151646", "inferred")),
        ({"model_id": "someone/gte-Qwen2-1.5B-instruct", "remote_code": "False"}, None),
        ({"model_id": "Qwen/Qwen2-1.5B"}, None),
        ({"model_id": "x/stella", "profile_id": "bert.base/v30522"}, None),
    ],
)
def test_masks_of_models_that_stock_classes_also_build(changes: dict[str, str], expected: object) -> None:
    assert own.placed({**ROW, **changes}) == expected


def test_models_with_their_own_mask_left_the_profile_of_the_causal_one() -> None:
    profiles, rows = load_profiles(), load_ranking().rows
    assert rows[88].profile_id == "qwen2.bidirectional-1.5b/v151646"
    assert rows[114].profile_id == "qwen3.voyage4-nano-projected/v151936"
    assert "qwen3.voyage4-nano/v151936" not in profiles
    assert profiles["qwen2.1.5b/v151646"].config.get("is_causal") is None
    voyage = profiles["qwen3.voyage4-nano-projected/v151936"]
    # The count that the census names for the published file.
    assert count_parameters(*declared(voyage)) == voyage.expected_parameter_count == 346_451_968
