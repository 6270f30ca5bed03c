"""A small ranking with every kind of row, and a store that holds it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hf_adapters.corpus import Profile, Ranking, RankingRow
from hf_adapters.store import Store, VerdictRecord
from tests.postgres import Server

RELEASE = "2026.07"
SOURCE = "table:small.csv"


def profile(name: str, vocabulary: int, downloads: int, **config: Any) -> Profile:
    return Profile(
        profile_id=f"{name}/v{vocabulary}",
        shape_id=name,
        model_type=name.partition(".")[0],
        architecture_class="BertModel",
        config={"hidden_size": 8, "vocab_size": vocabulary, **config},
        representative_checkpoint=f"acme/{name}-{vocabulary}",
        expected_parameter_count=10,
        pooling={"mean": 1},
        confidence="exact",
        downloads=downloads,
    )


PROFILES = {
    item.profile_id: item
    for item in (
        profile("bert.a", 10, 900),
        profile("bert.a", 20, 100),
        profile("qwen3.b", 10, 50, num_hidden_layers=3),
    )
}

ROWS = (
    RankingRow(rank=1, downloads=800, model_id="acme/one", profile_id="bert.a/v10", match="exact", buildable="native"),
    RankingRow(
        rank=2, downloads=100, model_id="acme/two", profile_id="bert.a/v20", match="inferred", buildable="native"
    ),
    RankingRow(
        rank=3, downloads=50, model_id="acme/three", profile_id="qwen3.b/v10", match="exact", buildable="native"
    ),
    RankingRow(
        rank=4,
        downloads=40,
        model_id="acme/four",
        standin_profile_id="bert.a/v10",
        buildable="native",
        no_profile_reason="no count",
    ),
    RankingRow(
        rank=5, downloads=30, model_id="acme/five", buildable="remote_only", no_profile_reason="remote_only: class X"
    ),
    RankingRow(rank=6, downloads=20, model_id="acme/six", buildable="native", no_profile_reason="no count at all"),
)
RANKING = Ranking(rows=ROWS, source=SOURCE, date="2026-01-02")


def record(**values: Any) -> VerdictRecord:
    given: dict[str, Any] = {
        "verdict": "adapted",
        "reason": "fits",
        "release": RELEASE,
        "release_fingerprint": "rf",
        "fingerprint": "f1",
        "ladder": "accurate",
    }
    return VerdictRecord(**{**given, **values})


def begin(store: Store, **values: Any) -> int:
    given: dict[str, Any] = {"release": RELEASE, "fingerprint": "f1", "source": SOURCE}
    return store.begin_run(**{**given, **values})


NewDatabase = Callable[[], str]


@pytest.fixture(params=["sqlite", "postgresql"])
def new_database(request: pytest.FixtureRequest, tmp_path: Path) -> NewDatabase:
    """Gives addresses of empty databases, of each kind in turn."""
    if request.param == "postgresql":
        server: Server = request.getfixturevalue("postgres_server")
        return server.new_schema
    numbers = itertools.count()
    return lambda: f"sqlite:///{tmp_path / f'small{next(numbers)}.db'}"


@pytest.fixture
def address(new_database: NewDatabase) -> str:
    """An empty database of each kind in turn."""
    return new_database()


@pytest.fixture
def store(address: str) -> Iterator[Store]:
    with Store(address) as opened:
        opened.upgrade()
        opened.put_ranking(RANKING, PROFILES, release=RELEASE)
        yield opened
