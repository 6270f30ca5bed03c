"""What a sweep decides to do, from a ranking of a few models in a real store."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hf_adapters.corpus import Profile, Ranking, RankingRow
from hf_adapters.store import Store
from hf_adapters.sweep.fingerprint import Fingerprint
from hf_adapters.sweep.messages import Outcome
from hf_adapters.sweep.options import SweepOptions
from hf_adapters.sweep.plan import Plan, UnknownFamily, UnknownSource, choose_source, plan
from hf_adapters.sweep.record import verdict_record

RELEASE = "2026.07"
NOW = Fingerprint(
    value="v1", base="b1", release=RELEASE, release_fingerprint="r", code="c", adapters="a1", versions={"torch": "2"}
)
OTHER_ADAPTERS = replace(NOW, value="v2", adapters="a2")
OTHER_DEVICE = replace(NOW, value="v3", base="b3")


def profile(name: str, hidden: int, family: str = "bert") -> Profile:
    return Profile(
        profile_id=f"{name}/v1",
        shape_id=name,
        model_type=family,
        architecture_class="BertModel",
        config={"model_type": family, "hidden_size": hidden, "vocab_size": 100},
        pooling={},
    )


SMALL, SAME_SHAPE, LARGE = (
    profile("small", 64),
    replace(profile("small", 64), profile_id="small/v2"),
    profile("large", 128),
)
EXOTIC = profile("exotic", 64, "esm")
PROFILES = {item.profile_id: item for item in (SMALL, SAME_SHAPE, LARGE, EXOTIC)}
RANKING = Ranking(
    rows=(
        RankingRow(rank=1, downloads=100, profile_id="large/v1", match="exact", model_type="bert"),
        RankingRow(rank=2, downloads=60, profile_id="small/v1", match="exact", model_type="bert"),
        RankingRow(rank=3, downloads=50, profile_id="small/v2", match="inferred", model_type="bert"),
        RankingRow(rank=4, downloads=9, standin_profile_id="exotic/v1", model_type="esm"),
        RankingRow(rank=5, downloads=5, buildable="remote_only", no_profile_reason="remote_only: class X"),
    ),
    source="bundled",
    date="2026-07-15",
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "s.db") as opened:
        opened.upgrade()
        opened.put_ranking(RANKING, PROFILES, release=RELEASE)
        yield opened


def made(store: Store, identity: Fingerprint = NOW, **options: object) -> Plan:
    return plan(store, SweepOptions(release=RELEASE, **options), identity, "bundled", RANKING.date)  # type: ignore[arg-type]


def judge(store: Store, verdict: str, profile_id: str, identity: Fingerprint = NOW) -> None:
    (signature,) = {item.signature for item in store.current(release=RELEASE) if item.model.profile_id == profile_id}
    run = store.begin_run(release=RELEASE, fingerprint=identity.value, source="bundled")
    outcome = Outcome(kind="done", result={"verdict": verdict, "reason": ""})
    store.record_verdict(run, verdict_record(outcome, identity, signature=signature))


def shapes(planned: Plan) -> list[str]:
    return [str(item.profile["shape_id"]) for item in planned.todo]


def test_structures_are_deduplicated_and_ordered_by_impact(store: Store) -> None:
    planned = made(store)
    # small: 2 models x 110 downloads; large: 1 x 100; exotic: 1 x 9
    assert shapes(planned) == ["small", "large", "exotic"]
    assert (planned.structures, planned.settled, planned.left_out) == (3, 0, 0)


def test_top_limit_and_families_narrow_the_work(store: Store) -> None:
    assert shapes(made(store, top=1)) == ["large"]
    assert shapes(made(store, limit=1)) == ["small"]
    assert shapes(made(store, families=frozenset({"esm"}))) == ["exotic"]
    assert made(store, families=frozenset({"esm"})).left_out == 2


def test_a_verdict_stands_while_nothing_changes(store: Store) -> None:
    judge(store, "adapted", "small/v1")
    planned = made(store)
    assert shapes(planned) == ["large", "exotic"]
    assert planned.settled == 1


def test_other_adapters_put_only_patched_and_failed_models_in_question(store: Store) -> None:
    judge(store, "adapted", "small/v1")
    judge(store, "native", "large/v1")
    judge(store, "uncovered", "exotic/v1")
    assert shapes(made(store, OTHER_ADAPTERS)) == ["small", "exotic"]


def test_another_device_puts_everything_in_question(store: Store) -> None:
    judge(store, "native", "large/v1")
    assert shapes(made(store, OTHER_DEVICE)) == ["small", "large", "exotic"]


def test_retry_asks_again(store: Store) -> None:
    judge(store, "timed-out", "small/v1")
    judge(store, "adapted", "large/v1")
    assert shapes(made(store)) == ["exotic"]
    assert shapes(made(store, retry=frozenset({"timed-out"}))) == ["small", "exotic"]


def test_unknown_families_are_named(store: Store) -> None:
    with pytest.raises(UnknownFamily, match="bertie: choose among bert, esm"):
        made(store, families=frozenset({"bertie"}))


def test_a_task_carries_all_that_the_judge_needs(store: Store) -> None:
    task = made(store).tasks(RELEASE)[0]
    assert Profile.from_json(task.payload["profile"]).shape_id == "small"
    assert task.payload["release"] == RELEASE
    assert task.key == task.payload["signature"]


def test_a_pulled_ranking_wins_over_the_bundled_one(store: Store) -> None:
    assert choose_source(store, None) == "bundled"
    store.put_ranking(replace(RANKING, source="hub"), PROFILES, release=RELEASE)
    assert choose_source(store, None) == "hub"
    assert choose_source(store, "bundled") == "bundled"
    with pytest.raises(UnknownSource, match="holds no ranking 'mine'"):
        choose_source(store, "mine")
