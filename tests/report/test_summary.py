"""The figures of a report, checked against a ranking counted by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_adapters.report.compare import comparison
from hf_adapters.report.rows import VERDICTS, ModelRow, Provenance
from hf_adapters.report.summary import Summary, coverage, summarise
from tests.report.rows import SAMPLE, row


@pytest.fixture(scope="module")
def summary() -> Summary:
    return summarise(reversed(SAMPLE))


def test_coverage_counts_models_judged_on_their_own_structure(summary: Summary) -> None:
    top = summary.coverage[10]
    assert (top.models, top.judged) == (9, 8)
    assert (top.accepted, top.accepted_native, top.accepted_adapted) == (3, 1, 2)
    assert top.stand_in == 1, "a stand-in is kept apart"
    assert top.accepted_downloads == 1700
    assert top.downloads == 2150
    assert top.downloads_share == pytest.approx(1700 / 2150)


def test_coverage_is_cumulative_over_ranks(summary: Summary) -> None:
    assert [summary.coverage[top].models for top in (10, 100, 1000, 10000)] == [9, 9, 10, 10]
    assert summary.coverage[1000].accepted == 4


def test_evidence_is_kept_apart(summary: Summary) -> None:
    assert summary.coverage[10].by_evidence == {
        "exact": {"models": 2, "downloads": 1500, "structures": 2},
        "inferred": {"models": 1, "downloads": 200, "structures": 1},
        "stand-in": {"models": 1, "downloads": 100, "structures": 1},
    }


def test_every_model_has_one_verdict(summary: Summary) -> None:
    assert sum(summary.verdicts.values()) == len(SAMPLE)
    assert tuple(summary.verdicts) == VERDICTS
    assert summary.verdicts["uncovered"] == 2
    assert summary.verdicts_by_structure["uncovered"] == 1, "two models of one structure"


def test_blocking_operations_carry_their_impact(summary: Summary) -> None:
    (first, figures), *_ = summary.blocking.items()
    assert first == "aten.pow.Tensor_Scalar"
    assert (figures["models"], figures["downloads"], figures["structures"]) == (2, 170, 1)
    assert figures["rules"] == ["pow-scalar-exponent"]
    assert "aten.softmax.int" in summary.blocking


def test_reasons_are_grouped_by_verdict_and_rule(summary: Summary) -> None:
    found = {(reason["verdict"], reason["rule"]): reason["models"] for reason in summary.reasons}
    assert found == {
        ("uncovered", "pow-scalar-exponent"): 2,
        ("mismatch", "mismatch"): 1,
        ("unbuildable", "remote-code"): 1,
    }


def test_adapter_sets_show_what_is_needed_together(summary: Summary) -> None:
    found = {tuple(item["adapters"]): item["models"] for item in summary.adapter_sets}
    assert found == {(): 2, ("gelu",): 1, ("gelu", "heads"): 1}


def test_a_release_that_needs_an_adapter_no_more_retires_it() -> None:
    def of(release: str, rows: tuple[ModelRow, ...]) -> Summary:
        return summarise(rows, Provenance(release=release))

    new = (row(1, "native"), row(2, "uncovered"), row(3, "adapted", adapters=("heads",), evidence="inferred"))
    old = (row(1, "adapted", adapters=("gelu",)), row(2, "native"), row(3, "adapted", adapters=("gelu", "heads")))
    coverage, adapters, models = comparison([of("2026.07", old), of("2026.09", new)])
    assert [line[:2] for line in coverage.rows] == [("2026.07", "3"), ("2026.09", "2")]
    assert {line[0]: line[-1] for line in adapters.rows} == {"gelu": "retired by 2026.09", "heads": ""}
    assert models.rows == [("2026.07 -> 2026.09", "bert", "0", "1")]
    with pytest.raises(ValueError, match="at least two"):
        comparison([of("2026.07", old)])


def test_adapters_and_families(summary: Summary) -> None:
    assert summary.adapters["gelu"]["models"] == 3
    assert summary.adapters["gelu"]["accepted"] == 2
    assert summary.adapters["gelu"]["accepted_alone"] == 1
    assert summary.families["gpt2"] == {
        "models": 2, "accepted": 0, "accepted_native": 0, "accepted_adapted": 0, "stand_in": 0, "pending": 0,
        "downloads": 170, "accepted_downloads": 0, "downloads_share": 0.0,
    }  # fmt: skip


def test_curve_ends_at_the_whole_ranking(summary: Summary) -> None:
    rank, models, downloads = summary.curve[-1]
    assert rank == 150
    assert models == pytest.approx(4 / 10)
    assert downloads == pytest.approx(1710 / 2160)


def test_an_empty_database_has_a_report() -> None:
    empty = summarise([])
    assert empty.coverage[10].models == 0
    assert empty.coverage[10].downloads_share == 0.0
    assert empty.curve == []


@given(
    st.lists(
        st.builds(
            lambda verdict, evidence, downloads: (verdict, evidence, downloads),
            st.sampled_from(VERDICTS),
            st.sampled_from(["exact", "inferred", "stand-in"]),
            st.integers(0, 10**9),
        ),
        max_size=60,
    )
)
def test_the_parts_add_up(specs: list[tuple[str, str, int]]) -> None:
    rows: list[ModelRow] = [
        row(rank, verdict, evidence=evidence, downloads=downloads)
        for rank, (verdict, evidence, downloads) in enumerate(specs, 1)
    ]
    cover = coverage(rows)
    assert cover.accepted == cover.accepted_native + cover.accepted_adapted
    assert cover.accepted == cover.by_evidence["exact"]["models"] + cover.by_evidence["inferred"]["models"]
    assert cover.stand_in == cover.by_evidence["stand-in"]["models"]
    assert 0.0 <= cover.downloads_share <= 1.0
    assert cover.accepted + cover.stand_in <= cover.judged <= cover.models
