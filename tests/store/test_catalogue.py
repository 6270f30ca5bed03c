"""Writing rankings: the same twice changes nothing, and ten thousand rows are no burden."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hf_adapters.corpus import load_profiles, load_ranking
from hf_adapters.store import Store
from tests.store.conftest import PROFILES, RANKING, RELEASE, SOURCE, begin, record


def test_the_same_ranking_twice_changes_nothing(store: Store) -> None:
    before = store.current(release=RELEASE, source=SOURCE)
    summary = store.put_ranking(RANKING, PROFILES, release=RELEASE)
    assert (summary.inserted, summary.updated, summary.unchanged, summary.structures) == (0, 0, 6, 2)
    assert store.current(release=RELEASE, source=SOURCE) == before


def test_a_model_that_lost_its_place_keeps_its_row_without_a_rank(store: Store) -> None:
    newcomer = replace(RANKING.rows[0], model_id="acme/new", downloads=999)
    summary = store.put_ranking(replace(RANKING, rows=(newcomer,)), PROFILES, release=RELEASE)
    assert (summary.inserted, summary.updated) == (1, 0)
    ranked = [(item.model.rank, item.model.model_id) for item in store.current(release=RELEASE, source=SOURCE)]
    assert ranked[0] == (1, "acme/new")
    assert ranked[-1] == (None, "acme/one")
    assert [item.model.rank for item in store.current(release=RELEASE, source=SOURCE, top=10)] == [1, 2, 3, 4, 5, 6]


def test_changed_rows_are_updated_in_place(store: Store) -> None:
    identifier = store.find("acme/six", release=RELEASE)[0].model.id
    solved = replace(RANKING.rows[5], profile_id="bert.a/v20", match="inferred", no_profile_reason=None)
    summary = store.put_ranking(replace(RANKING, rows=(solved,)), PROFILES, release=RELEASE)
    assert (summary.inserted, summary.updated) == (0, 1)
    found = store.find("acme/six", release=RELEASE)[0].model
    assert (found.id, found.profile_id, found.family) == (identifier, "bert.a/v20", "bert")


def test_a_row_with_an_unknown_profile_writes_nothing(store: Store) -> None:
    rows = (replace(RANKING.rows[0], model_id="acme/new"), replace(RANKING.rows[1], profile_id="gpt9.x/v1"))
    with pytest.raises(KeyError, match="gpt9"):
        store.put_ranking(replace(RANKING, rows=rows), PROFILES, release=RELEASE)
    assert store.find("acme/new", release=RELEASE) == []


def test_releases_group_profiles_in_their_own_way(store: Store) -> None:
    assert len(store.structures(release=RELEASE, source=SOURCE)) == 2
    store.put_ranking(RANKING, PROFILES, release="2026.09")
    assert len(store.structures(release="2026.09", source=SOURCE)) == 3


def test_ten_thousand_models(address: str) -> None:
    with Store(address) as store:
        store.upgrade()
        ranking = load_ranking(10_000)
        store.put_ranking(ranking, load_profiles(), release=RELEASE)
        run = begin(store, source=ranking.source)
        pending = store.pending(release=RELEASE, source=ranking.source, fingerprint="f1")
        store.record_verdicts(run, [record(signature=work.signature) for work in pending])
        store.record_unbuildable(
            run, source=ranking.source, release=RELEASE, release_fingerprint="rf", fingerprint="f1"
        )
        current = store.current(release=RELEASE)
    assert len(pending) == 189
    assert len(current) == 10_000
    assert all(item.verdict and item.reason for item in current)
    assert sum(item.accepted and not item.stand_in for item in current) == 9_248
    assert sum(item.accepted and item.stand_in for item in current) == 339
    assert sum(item.verdict == "unbuildable" for item in current) == 413
