"""Pulls from a local server that speaks the Hub's API."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from hf_adapters.corpus import (
    GatedModel,
    HubRefused,
    ModelNotFound,
    NetworkUnavailable,
    hub,
    load_profiles,
    pull,
    resolve,
)
from hf_adapters.store import Store
from tests.corpus.hub_server import FakeHub, FakeModel, serving

RELEASE = "2026.07"
BERT = load_profiles()["bert.tiny/v30522"]
UNKNOWN_BERT = {"model_type": "bert", "hidden_size": 96, "num_attention_heads": 3, "architectures": ["BertModel"]}


def _model(name: str, downloads: int, config: Any = None, **more: Any) -> FakeModel:
    files = (
        {} if config is None else {"config.json": config if isinstance(config, bytes) else json.dumps(config).encode()}
    )
    return FakeModel(f"acme/{name}", downloads, files, **more)


def _models() -> list[FakeModel]:
    return [
        _model("first", 900, {**BERT.config, "architectures": ["BertForMaskedLM"]}),
        _model("second", 800, {**BERT.config, "vocab_size": 1000}, pipeline_tag="sentence-similarity"),
        _model("gated", 700, BERT.config, gated=True),
        _model("truncated", 600, b'{"model_type": "bert", "hidden_si'),
        _model("gone", 500),
        _model("remote", 400, {"model_type": "frob", "auto_map": {"AutoModel": "code.FrobModel"}}),
        _model("other", 300, UNKNOWN_BERT, pipeline_tag="sentence-similarity"),
        _model("nested", 200),
        _model("last", 100, BERT.config),
    ]


@pytest.fixture
def fake_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    models = _models()
    models[7].files["0_Transformer/config.json"] = json.dumps(dict(BERT.config)).encode()
    with serving(models) as server:
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", server.url + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setattr(hub, "_FIRST_WAIT", 0.01)
        yield server


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "pull.db") as opened:
        opened.upgrade()
        yield opened


def test_every_listed_model_gets_a_row_with_its_profile_or_its_reason(fake_hub: FakeHub, store: Store) -> None:
    summary = pull(9, store, release=RELEASE)
    rows = {row.model_id: row for row in summary.ranking.rows}
    assert [row.model_id for row in summary.ranking.rows] == [model.model_id for model in _models()]
    assert [row.rank for row in summary.ranking.rows] == list(range(1, 10))
    assert rows["acme/first"].profile_id == rows["acme/last"].profile_id == rows["acme/nested"].profile_id
    assert rows["acme/first"].profile_id == BERT.profile_id
    assert rows["acme/second"].profile_id == "bert.tiny/v1000"
    assert (rows["acme/gated"].buildable, rows["acme/gated"].gated) == ("gated", True)
    assert rows["acme/truncated"].buildable == "broken"
    assert "not valid JSON" in (rows["acme/truncated"].no_profile_reason or "")
    assert "no config.json" in (rows["acme/gone"].no_profile_reason or "")
    assert rows["acme/remote"].buildable == "remote_only"
    assert summary.buildable == {"native": 5, "gated": 1, "broken": 2, "remote_only": 1}
    assert rows["acme/first"].revision == fake_hub.models["acme/first"].sha


def test_a_pull_fills_the_store_and_shares_structures_with_the_bundle(fake_hub: FakeHub, store: Store) -> None:
    pull(9, store, release=RELEASE)
    pulled = {current.model.model_id: current for current in store.current(release=RELEASE, source="hub")}
    assert len(pulled) == 9
    assert pulled["acme/first"].signature == pulled["acme/second"].signature is not None
    assert pulled["acme/other"].signature not in (None, pulled["acme/first"].signature)
    assert store.profile_of(str(pulled["acme/other"].signature)).config["hidden_size"] == 96


def test_top_takes_the_most_downloaded_of_both_tasks(fake_hub: FakeHub) -> None:
    summary = pull(2, release=RELEASE)
    assert [row.model_id for row in summary.ranking.rows] == ["acme/first", "acme/second"]


def test_rate_limits_and_server_errors_are_waited_out(fake_hub: FakeHub) -> None:
    fake_hub.fail_next["/acme/first/resolve/"] = [429, 500, 503]
    summary = pull(1, release=RELEASE)
    assert summary.buildable == {"native": 1}
    assert fake_hub.fail_next["/acme/first/resolve/"] == []


@pytest.mark.slow
def test_a_page_that_fails_once_does_not_lose_the_list(fake_hub: FakeHub) -> None:
    fake_hub.fail_next["/api/models"] = [429]
    assert len(pull(9, release=RELEASE).ranking.rows) == 9


def test_an_error_that_stays_is_recorded_and_the_others_go_on(fake_hub: FakeHub) -> None:
    fake_hub.always["/acme/first/resolve/"] = 500
    rows = pull(2, release=RELEASE).ranking.rows
    assert rows[0].buildable == "broken"
    assert "500" in (rows[0].no_profile_reason or "")
    assert rows[1].buildable == "native"


def test_an_interrupted_pull_keeps_its_batches_and_fetches_nothing_twice(
    fake_hub: FakeHub, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "_BATCH", 1)

    def stop(progress: hub.PullProgress) -> None:
        if progress.done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull(9, store, release=RELEASE, on_progress=stop)
    assert [item.model.model_id for item in store.current(release=RELEASE, source="hub")] == [
        "acme/first",
        "acme/second",
    ]
    fetched_before = {path: count for path, count in fake_hub.requests.items() if "/acme/first/" in path}
    pull(9, store, release=RELEASE)
    assert {path: count for path, count in fake_hub.requests.items() if "/acme/first/" in path} == fetched_before
    assert len(store.current(release=RELEASE, source="hub")) == 9


def test_no_code_of_a_repository_is_fetched(fake_hub: FakeHub) -> None:
    fake_hub.models["acme/remote"].files["code.py"] = b"raise SystemExit('ran')"
    pull(9, release=RELEASE)
    assert not [path for path in fake_hub.requests if path.endswith(".py")]


def test_resolve_asks_the_hub_last_and_tells_its_answers_apart(fake_hub: FakeHub) -> None:
    found = resolve("acme/first")
    assert (found.kind, found.profile.profile_id, found.weights) == ("hub", BERT.profile_id, "real")
    assert found.revision == fake_hub.models["acme/first"].sha
    assert resolve("acme/first").kind == "cache"
    with pytest.raises(GatedModel):
        resolve("acme/gated")
    with pytest.raises(ModelNotFound) as caught:
        resolve("acme/nothing")
    assert caught.value.code == "E_MODEL_NOT_FOUND"
    fake_hub.always["/acme/last/resolve/"] = 502
    with pytest.raises(HubRefused):
        resolve("acme/last")


def test_without_a_network_the_error_says_so(monkeypatch: pytest.MonkeyPatch, store: Store) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{port}")
    with pytest.raises(NetworkUnavailable) as caught:
        pull(5, store, release=RELEASE)
    assert caught.value.code == "E_NETWORK"
    assert str(port) in str(caught.value)
    assert store.sources() == {}


@pytest.mark.parametrize("top", [0, -3])
def test_a_top_below_one_is_refused_before_anything_is_asked(top: int) -> None:
    with pytest.raises(ValueError, match="starts at 1"):
        pull(top, release=RELEASE)


@pytest.mark.slow
def test_the_environment_variable_selects_the_hub(tmp_path: Path) -> None:
    code = "from hf_adapters.corpus import pull\nprint(pull(2, release='2026.07').ranking.rows[0].model_id)\n"
    with serving(_models()) as server:
        environment = {"HF_ENDPOINT": server.url, "HF_HOME": str(tmp_path), "PATH": "", "HOME": str(tmp_path)}
        answer = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=240, check=True
        )
    assert answer.stdout.strip() == "acme/first"
