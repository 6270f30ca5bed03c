"""Verdicts: only ever added, and for every model exactly one is the current one."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import create_engine
from sqlalchemy.exc import DBAPIError

from hf_adapters.corpus import structural_signature
from hf_adapters.store import CurrentVerdict, Store
from hf_adapters.store.address import full_address
from hf_adapters.store.errors import NoSuchRow, SourceAmbiguous
from hf_adapters.store.records import AdapterRecord
from tests.store.conftest import PROFILES, RANKING, RELEASE, SOURCE, NewDatabase, begin, record

BERT = structural_signature(PROFILES["bert.a/v10"], RELEASE)
QWEN = structural_signature(PROFILES["qwen3.b/v10"], RELEASE)


def _by_id(store: Store, release: str = RELEASE) -> dict[str, CurrentVerdict]:
    return {str(item.model.model_id): item for item in store.current(release=release, source=SOURCE)}


def _unbuildable(store: Store, run_id: int, **values: Any) -> int:
    given: dict[str, Any] = {"source": SOURCE, "release": RELEASE, "release_fingerprint": "rf", "fingerprint": "f1"}
    return store.record_unbuildable(run_id, **{**given, **values})


def test_before_anything_is_judged_every_model_is_pending(store: Store) -> None:
    current = _by_id(store)
    assert len(current) == 6
    assert {item.verdict for item in current.values()} == {None}
    assert not any(item.accepted for item in current.values())
    stand_ins = [name for name, item in current.items() if item.stand_in]
    assert stand_ins == ["acme/four"], "a first sweep counts without them"


def test_one_verdict_counts_for_every_model_of_the_structure(store: Store) -> None:
    store.record_verdict(begin(store), record(signature=BERT))
    current = _by_id(store)
    assert [current[f"acme/{name}"].verdict for name in ("one", "two", "three", "four")] == [
        "adapted",
        "adapted",
        None,
        "adapted",
    ]
    assert [current[f"acme/{name}"].stand_in for name in ("one", "two", "four")] == [False, False, True]


def test_models_without_a_structure_get_their_reason_once(store: Store) -> None:
    run = begin(store)
    assert _unbuildable(store, run) == 2
    assert _unbuildable(store, run, fingerprint="f2") == 0
    current = _by_id(store)
    assert (current["acme/five"].verdict, current["acme/five"].reason) == ("unbuildable", "remote_only: class X")
    evidence = current["acme/five"].evidence
    assert evidence is not None
    assert (evidence.rule, evidence.error_code) == ("remote-code", "E_REMOTE_CODE")
    six = current["acme/six"].evidence
    assert six is not None
    assert (six.rule, six.reason) == ("no-profile", "no count at all")


def test_unbuildable_models_beyond_top_wait(store: Store) -> None:
    assert _unbuildable(store, begin(store), top=5) == 1


def test_a_missing_profile_is_forgotten_when_there_is_one(store: Store) -> None:
    run = begin(store)
    store.record_verdict(run, record(signature=BERT))
    _unbuildable(store, run)
    assert _by_id(store)["acme/six"].verdict == "unbuildable"
    found = replace(RANKING.rows[5], profile_id="bert.a/v20", match="exact", no_profile_reason=None)
    store.put_ranking(replace(RANKING, rows=(found,)), PROFILES, release=RELEASE)
    assert _by_id(store)["acme/six"].verdict == "adapted"


def test_after_a_whole_sweep_every_model_has_one_verdict(store: Store) -> None:
    run = begin(store)
    for work in store.pending(release=RELEASE, source=SOURCE, fingerprint="f1"):
        store.record_verdict(run, record(signature=work.signature))
    _unbuildable(store, run)
    current = store.current(release=RELEASE, source=SOURCE)
    assert len(current) == len({item.model.id for item in current}) == 6
    assert all(item.verdict and item.reason for item in current)


def test_the_newest_verdict_of_a_structure_counts(store: Store) -> None:
    run = begin(store)
    store.record_verdict(run, record(signature=BERT, verdict="uncovered", reason="pow", rule="pow-scalar-exponent"))
    store.record_verdict(run, record(signature=BERT, fingerprint="f2"))
    assert _by_id(store)["acme/one"].verdict == "adapted"
    assert [verdict.verdict for verdict in store.history(signature=BERT)] == ["adapted", "uncovered"]


def test_releases_have_verdicts_of_their_own(store: Store) -> None:
    store.record_verdict(begin(store), record(signature=BERT))
    assert _by_id(store, "2026.09")["acme/one"].verdict is None


def test_a_verdict_about_the_model_itself_beats_the_one_of_its_structure(store: Store) -> None:
    run = begin(store)
    model = store.put_local_model("acme/four", profile=None, release=RELEASE)
    assert model == _by_id(store)["acme/four"].model.id
    store.record_verdict(run, record(model_row_id=model, verdict="native", weights="real"))
    store.record_verdict(run, record(signature=BERT))
    current = _by_id(store)
    assert (current["acme/four"].verdict, current["acme/four"].stand_in) == ("native", False)
    assert current["acme/one"].verdict == "adapted"
    store.record_verdict(run, record(signature=BERT, fingerprint="f2", verdict="mismatch"))
    assert _by_id(store)["acme/four"].verdict == "mismatch"


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["model", "structure"]),
            st.sampled_from(["f1", "f2"]),
            st.sampled_from(["native", "mismatch"]),
        ),
        min_size=1,
        max_size=6,
    )
)
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_happened_exactly_one_verdict_is_current(store: Store, steps: list[Any]) -> None:
    # Each example has a ranking and a structure of its own, which is quicker than a database.
    own = replace(PROFILES["bert.a/v10"], config={"hidden_size": 16, "example": len(store.sources())})
    source = f"example {len(store.sources())}"
    store.put_ranking(replace(RANKING.head(1), source=source), {own.profile_id: own}, release=RELEASE)
    signature = structural_signature(own, RELEASE)
    run, model = begin(store, source=source), store.current(release=RELEASE, source=source)[0].model.id
    for subject, fingerprint, verdict in steps:
        about = {"model_row_id": model} if subject == "model" else {"signature": signature}
        store.record_verdict(run, record(fingerprint=fingerprint, verdict=verdict, **about))
    current = store.current(release=RELEASE, source=source)
    assert len(current) == 1
    owns = [step for step in steps if step[0] == "model"]
    expected = owns[-1] if owns else steps[-1]
    if owns and steps[-1][0] == "structure" and steps[-1][1] != owns[-1][1]:
        expected = steps[-1]
    assert current[0].verdict == expected[2]


def test_rows_cannot_be_changed_or_deleted(store: Store, address: str) -> None:
    store.record_verdict(begin(store), record(signature=BERT))
    for statement in ("UPDATE verdicts SET verdict = 'native'", "DELETE FROM verdicts"):
        with pytest.raises(DBAPIError, match="append-only"), create_engine(full_address(address)).begin() as connection:
            connection.exec_driver_sql(statement)
    assert _by_id(store)["acme/one"].verdict == "adapted"


def test_everything_recorded_comes_back(store: Store) -> None:
    given = record(
        signature=BERT,
        rule="matmul-k-stick",
        op="aten.mm.default",
        module_path="encoder.layer.0",
        noise_floor=0.0125,
        multiple=1.5,
        floor_multiple=4.0,
        neighbours_kept=True,
        fallback_count=2,
        fallbacks={"aten.embedding": 2},
        adapters={"rotary": "abc"},
        cut={"vocab_size": (100, 10)},
        inputs={"lengths": [3, 4]},
        versions={"torch": "2.13.0"},
        seed=2**62 - 1,
        details={"layers": [1.0, float("nan"), float("inf")], "output": "a\x00b \ud800"},
        hint="a\x00b",
        simulated_us=float("inf"),
    )
    identifier = store.record_verdict(begin(store), given)
    found = store.history(signature=BERT)[0]
    assert found.id == identifier
    assert found.created_at.tzinfo == UTC
    assert (found.noise_floor, found.multiple, found.neighbours_kept, found.seed) == (0.0125, 1.5, True, 2**62 - 1)
    assert (found.cut, found.adapters, found.inputs) == (
        {"vocab_size": [100, 10]},
        {"rotary": "abc"},
        {"lengths": [3, 4]},
    )
    assert found.details == {"layers": [1.0, None, None], "output": "a\N{REPLACEMENT CHARACTER}b ?"}
    assert found.hint == "a\N{REPLACEMENT CHARACTER}b"
    assert found.simulated_us is None


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"signature": BERT, "model_row_id": 1},
        {"signature": BERT, "verdict": "fine"},
        {"signature": BERT, "ladder": "up"},
    ],
    ids=["no-subject", "two-subjects", "verdict", "ladder"],
)
def test_nonsense_is_not_recorded(store: Store, values: dict[str, Any]) -> None:
    run = begin(store)
    with pytest.raises(ValueError, match=r"verdict|ladder"):
        store.record_verdict(run, record(**values))
    assert store.history(signature=BERT) == []


def test_work_comes_by_impact_and_goes_when_it_is_done(store: Store) -> None:
    work = store.pending(release=RELEASE, source=SOURCE, fingerprint="f1")
    assert [(item.signature, item.models, item.downloads, item.family) for item in work] == [
        (BERT, 3, 940, "bert"),
        (QWEN, 1, 50, "qwen3"),
    ]
    run = begin(store)
    store.record_verdict(run, record(signature=BERT))
    store.record_verdict(run, record(signature=QWEN, verdict="timed-out"))

    def left(**values: Any) -> list[str]:
        given: dict[str, Any] = {"release": RELEASE, "source": SOURCE, "fingerprint": "f1"}
        return [item.signature for item in store.pending(**{**given, **values})]

    assert left() == []
    assert left(retry=("timed-out", "crashed")) == [QWEN]
    assert left(fingerprint="f2") == [BERT, QWEN]
    assert left(fingerprint="f2", families=["qwen3"]) == [QWEN]
    assert left(fingerprint="f2", top=2) == [BERT]
    assert left(fingerprint={BERT: "f1", QWEN: "f9"}) == [QWEN]
    assert left(fingerprint={QWEN: "f1"}) == [BERT]


def test_a_structure_that_only_stands_in_is_marked(store: Store) -> None:
    only = RANKING.rows[3]
    store.put_ranking(type(RANKING)(rows=(only,), source="table:other.csv", date="d"), PROFILES, release=RELEASE)
    assert [
        item.stand_in_only for item in store.pending(release=RELEASE, source="table:other.csv", fingerprint="f")
    ] == [True]


@pytest.mark.parametrize(
    ("ref", "expected"),
    [
        ("acme/two", ["acme/two"]),
        ("bert.a/v10", ["acme/one", "acme/four"]),
        ("acme/bert.a-10", ["acme/one", "acme/two", "acme/four"]),
        (BERT, ["acme/one", "acme/two", "acme/four"]),
        ("acme/nobody", []),
    ],
    ids=["model", "profile", "checkpoint", "signature", "unknown"],
)
def test_models_are_found_by_what_people_call_them(store: Store, ref: str, expected: list[str]) -> None:
    assert [item.model.model_id for item in store.find(ref, release=RELEASE)] == expected


def test_a_model_checked_by_hand_has_a_row_outside_of_every_ranking(store: Store) -> None:
    first = store.put_local_model("/some/folder", profile=PROFILES["bert.a/v10"], release=RELEASE)
    assert store.put_local_model("/some/folder", profile=PROFILES["bert.a/v10"], release=RELEASE) == first
    store.record_verdict(begin(store, source="local"), record(model_row_id=first, verdict="native"))
    assert [item.verdict for item in store.find("/some/folder", release=RELEASE)] == ["native"]
    assert len(store.current(release=RELEASE, source=SOURCE)) == 6
    assert store.sources() == {SOURCE: 6}


def test_the_default_ranking_is_that_of_the_newest_run(store: Store, new_database: NewDatabase) -> None:
    assert store.default_source() == SOURCE
    store.put_ranking(type(RANKING)(rows=RANKING.rows, source="hub", date="d"), PROFILES, release=RELEASE)
    with pytest.raises(SourceAmbiguous, match="hub"):
        store.default_source()
    begin(store, source="hub")
    begin(store, source="local")
    assert store.default_source() == "hub"
    with Store(new_database()) as empty:
        empty.upgrade()
        with pytest.raises(NoSuchRow):
            empty.default_source()


def test_a_run_that_was_killed_counts_as_interrupted(store: Store) -> None:
    first = begin(store)
    second = begin(store, command="again", options={"jobs": 2})
    store.end_run(second)
    runs = store.runs()
    assert [(run.id, run.state) for run in runs] == [(second, "finished"), (first, "interrupted")]
    assert runs[0].finished_at is not None
    assert runs[0].options == {"jobs": 2}


def test_adapter_versions_are_kept(store: Store) -> None:
    one = AdapterRecord(name="rotary", hash="a", rules=("rope-half-stick",), releases=("2026.07",))
    assert store.put_adapters([one, AdapterRecord(name="rotary", hash="b")]) == 2
    assert store.put_adapters([one]) == 0
    assert [(item.name, item.hash) for item in store.adapters()] == [("rotary", "a"), ("rotary", "b")]
    assert list(store.adapters()[0].rules) == ["rope-half-stick"]


def test_an_unknown_structure_has_no_profile(store: Store) -> None:
    assert store.profile_of(BERT) == PROFILES["bert.a/v10"]
    with pytest.raises(NoSuchRow):
        store.profile_of("nothing")
