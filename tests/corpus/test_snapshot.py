"""What is bundled: figures that everything else builds on, and nothing that must not be."""

from __future__ import annotations

from importlib.resources import files

import pytest

from hf_adapters.corpus import Profile, load_profiles, load_ranking

FAMILIES = [
    "bert",
    "xlm-roberta",
    "roberta",
    "mpnet",
    "distilbert",
    "camembert",
    "electra",
    "albert",
    "qwen2",
    "qwen3",
    "llama",
    "mistral",
    "modernbert",
    "gemma3_text",
    "gpt_neo",
    "nomic_bert",
]


def test_the_snapshot_has_its_date_and_every_rank_once() -> None:
    ranking = load_ranking(10_000)
    assert (ranking.source, ranking.date) == ("bundled", "2026-07-15")
    assert [row.rank for row in ranking.rows] == list(range(1, 10_001))
    assert ranking.downloads == 418_117_860


def test_downloads_fall_with_the_rank() -> None:
    downloads = [row.downloads for row in load_ranking().rows]
    assert downloads == sorted(downloads, reverse=True)


def test_every_row_has_a_profile_or_a_reason() -> None:
    profiles = load_profiles()
    rows = load_ranking().rows
    assert sum(row.profile_id is not None for row in rows) == 9_264
    for row in rows:
        assert (row.profile_id is None) == (row.no_profile_reason is not None)
        assert row.judged_profile_id is None or row.judged_profile_id in profiles
        assert not (row.profile_id and row.standin_profile_id)


def test_rows_and_downloads_of_profiles_are_those_of_the_ranking() -> None:
    rows: dict[str, int] = {}
    downloads: dict[str, int] = {}
    for row in load_ranking().rows:
        if row.profile_id:
            rows[row.profile_id] = rows.get(row.profile_id, 0) + 1
            downloads[row.profile_id] = downloads.get(row.profile_id, 0) + row.downloads
    for profile in load_profiles().values():
        assert rows[profile.profile_id] == profile.rows
        assert downloads[profile.profile_id] == profile.downloads


def test_models_of_the_first_families_stand_for_most_downloads() -> None:
    profiles = load_profiles()
    ranking = load_ranking()
    rows = [row for row in ranking.rows if row.profile_id and profiles[row.profile_id].model_type in FAMILIES]
    assert len(rows) >= 7_600
    assert sum(row.downloads for row in rows) / ranking.downloads > 0.96


def test_a_model_that_only_has_the_shape_of_its_profile_is_a_stand_in() -> None:
    rows = [row for row in load_ranking().rows if row.buildable == "shape_only" and row.profile_id]
    assert rows
    assert all(row.stand_in for row in rows)


def test_no_model_ids_are_bundled_beyond_representatives() -> None:
    assert all(row.model_id is None for row in load_ranking().rows)
    header = files("hf_adapters.corpus").joinpath("data/ranking.csv").read_text(encoding="utf-8").splitlines()[0]
    assert "model_id" not in header
    assert len({profile.representative_checkpoint for profile in load_profiles().values()}) == len(load_profiles())


@pytest.mark.parametrize("top", [1, 10, 999])
def test_top_takes_the_first_rows(top: int) -> None:
    assert [row.rank for row in load_ranking(top).rows] == list(range(1, top + 1))


@pytest.mark.parametrize("top", [0, -1])
def test_top_below_one_is_refused(top: int) -> None:
    with pytest.raises(ValueError, match="starts at 1"):
        load_ranking(top)


def test_profiles_survive_json() -> None:
    for profile in load_profiles().values():
        assert Profile.from_json(profile.to_json()) == profile


def test_a_profile_without_a_config_is_refused() -> None:
    with pytest.raises(ValueError, match="lacks config"):
        Profile.from_json({"profile_id": "x/v1", "shape_id": "x", "architecture_class": "BertModel"})


def test_the_common_pooling_is_the_one_most_models_declare() -> None:
    profile = load_profiles()["bert.base/v30522"]
    assert profile.common_pooling == "cls"
    assert load_profiles()["qwen3.0.6b/v151669"].common_pooling == "lasttoken"
