"""Every format shows the figures of the summary, and JSON has the documented form."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from hf_adapters.report import FORMATS, Provenance, render, summarise
from hf_adapters.report.csv_format import COLUMNS
from hf_adapters.report.rows import VERDICTS
from hf_adapters.report.summary import Summary
from hf_adapters.report.tables import percent
from tests.report.rows import SAMPLE, row

DOCUMENT = Path(__file__).parents[2] / "docs" / "report.md"


@pytest.fixture(scope="module")
def summary() -> Summary:
    source = Provenance(
        ranking_source="bundled snapshot",
        ranking_date="2026-07-15",
        release="2026.07",
        run_id="7",
        versions={"torch": "2.13.0"},
        rule_titles={"pow-scalar-exponent": "pow needs a tensor exponent"},
    )
    return summarise(SAMPLE, source)


@pytest.fixture(scope="module")
def report(summary: Summary) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(render(summary, "json"))
    return parsed


def documented_fields(heading: str) -> set[str]:
    """Names in the first column of the field table that follows a sentence of docs/report.md."""
    section = DOCUMENT.read_text().split(heading, 1)[1]
    table = section.split("| field |", 1)[1].split("\n\n", 1)[0]
    return {name for line in table.splitlines()[2:] for name in re.findall(r"`([\w]+)`", line.split("|")[1])}


def test_json_has_exactly_the_documented_fields(report: dict[str, Any]) -> None:
    assert set(report) == documented_fields("## JSON")
    for top in ("10", "100", "1000", "10000"):
        assert set(report["coverage"][top]) == documented_fields("Each value of `coverage`")


def test_json_has_what_every_reader_relies_on(report: dict[str, Any]) -> None:
    required = {"models", "accepted", "accepted_native", "accepted_adapted", "stand_in", "downloads_share"}
    assert set(report["coverage"]) == {"10", "100", "1000", "10000"}
    assert all(required <= set(cover) for cover in report["coverage"].values())
    assert set(report["verdicts"]) == set(VERDICTS)
    assert report["published"] == {"models": 10000, "covered": 7960, "passing": 6804, "adapters": 13}
    assert report["blocking"]["aten.pow.Tensor_Scalar"]["downloads"] == 170
    assert report["reasons"][0]["title"] == "pow needs a tensor exponent"


def test_csv_has_one_line_for_each_model(summary: Summary) -> None:
    lines = list(csv.DictReader(io.StringIO(render(summary, "csv"))))
    assert len(lines) == len(SAMPLE)
    assert tuple(lines[0]) == COLUMNS
    assert lines[0]["adapters"] == "gelu heads"
    assert lines[7]["structure"] == ""


@pytest.mark.parametrize("output_format", ["terminal", "md", "html"])
def test_pages_for_people_show_result_context_and_blocking_operation(summary: Summary, output_format: str) -> None:
    text = render(summary, output_format)
    for expected in (
        "4 of 10 models accepted (40.0 %)",
        "79.2 % of downloads",
        "2026-07-15",
        "7,960",
        "6,804",
        "aten.pow.Tensor_Scalar",
    ):
        assert expected in " ".join(text.split()), expected


def test_html_needs_no_network(summary: Summary) -> None:
    page = render(summary, "html")
    markup = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert not re.findall(r"""(?:src|href)=["'](?!#|data:)""", markup)
    assert 'id="coverage-chart"' in page
    assert 'id="blocking-chart"' in page
    assert "Plotly.newPlot" in page


def test_html_escapes_what_comes_from_outside() -> None:
    page = render(summarise([row(1, "mismatch", model_id="<script>alert(1)</script>", reason="<b>bad</b>")]), "html")
    assert "<script>alert(1)" not in page
    assert "<b>bad" not in page


def test_an_empty_report_renders_in_every_format() -> None:
    for output_format in FORMATS:
        assert render(summarise([]), output_format)


def test_markdown_keeps_its_tables_whole() -> None:
    text = render(summarise([row(1, "mismatch", reason="a|b\nc", model_id="x|y")]), "md")
    line = next(line for line in text.splitlines() if "a\\|b c" in line)
    assert len(re.findall(r"(?<!\\)\|", line)) == 7


def test_unknown_format_is_refused() -> None:
    with pytest.raises(ValueError, match="choose one of terminal, json, html, md, csv"):
        render(summarise([]), "pdf")


def test_percentages_never_round_up_to_everything() -> None:
    assert percent(0.99996) == "99.9 %"
    assert percent(1.0) == "100.0 %"
    assert percent(0.0) == "0.0 %"
