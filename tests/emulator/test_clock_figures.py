"""The published figures of `make bench-device`: none may be missing, none may be off, no limit may be an excuse."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from benchmarks import device
from benchmarks import device_figures as bench
from spyre_backend.compiler.settings import Settings

NOTES = Path(__file__).parents[3] / "shared" / "device.md"
PUBLISHED = [
    ("softmax 512x1024", (0.851, 0.736, 0.728)),
    ("matmul by tiling and layout", (-0.29, -0.69)),
    ("fused MLP [1,512,4096], utilisation", (0.66, 0.79)),
    ("fused MLP [1,512,4096], time", (-0.17,)),
    ("relu(neg(x)) through device memory", (80.0,)),
    ("relu(neg(x)) over the ring", (41.1,)),
    ("its relayout", (1.1,)),
    ("relayout of 2.1 MB, 8 cores", (8.72,)),
    ("[1,4096] x [4096,25600]", (1762.0,)),
    ("[8,4096] x [4096,25600]", (1377.0,)),
    ("[1,4096] x [4096,26624]", (1508.0,)),
    ("cost model against greedy", (2.59, 1.76, 2.07)),
    ("F.linear against x @ A", (3.5,)),
    ("restickify", (116.0,)),
    ("cat on dim 0", (57.6,)),
    ("cat on dim 1", (105.2,)),
    ("outer transpose", (105.2,)),
]
"""Figures that the table owes (D7.3, D7.9), each with the part of its name that tells it."""


def statements() -> dict[int, str]:
    """Row of D7.9: whether the model reproduces it, in the notes' words."""
    text = NOTES.read_text(encoding="utf-8").split("### 7.9", 1)[1].split("### 7.10", 1)[0]
    rows = (re.match(r"\| (\d+) \|.*\| (.+) \|$", line) for line in text.splitlines())
    return {int(row[1]): row[2] for row in rows if row}


@pytest.mark.slow
def test_published_figures_are_reproduced_where_the_model_can() -> None:
    found = bench.figures()
    assert [(f.what, round(f.error, 3)) for f in found if not f.holds] == []
    for name, values in PUBLISHED:
        papers = [round(f.paper, 3) for f in found if name in f.what]
        assert [v for v in values if v not in papers] == [], name
    for figure in found:
        assert figure.source.startswith("D7")
        assert figure.emulated != 0
        settings = {item.name for item in fields(Settings)} & set(re.findall(r"\w+", figure.switch))
        assert settings or "_" not in figure.switch, f"{figure.switch} is no compiler setting"
    claimed(found)


def claimed(found: list[bench.Figure]) -> None:
    """A limit quotes its row of D7.9, and that row does not say "yes"; a row that says so has no limit."""
    said = statements() if NOTES.exists() else {}
    for figure in found:
        cited = re.search(r"D7\.9 row (\d+)", figure.limit)
        assert bool(cited) == bool(figure.limit), figure.what
        if cited and said:
            word = said[int(cited[1])].split(" ")[0].strip("–:;,")
            assert word != "yes", figure.what
            assert not word or figure.limit.startswith(word), figure.what


def test_a_limit_must_be_the_statement_of_the_notes() -> None:
    sample = {"what": "x", "switch": "-", "unit": "us", "paper": 1.0, "emulated": 2.0, "source": "D7.9 row 8"}
    for limit in ("the model is coarse", "yes (D7.9 row 8): the model is coarse"):
        if NOTES.exists() or "row" not in limit:
            with pytest.raises(AssertionError):
                claimed([bench.Figure(**sample, limit=limit)])
    claimed([bench.Figure(**sample), bench.Figure(**sample, limit="partly (D7.9 row 6): x")])


def test_a_switch_that_does_nothing_is_noticed() -> None:
    """The two-way exchange: without relayout the temporary goes through device memory."""
    off, ring, *_ = bench.relayouts()
    assert off.emulated > 1.9 * ring.emulated


def test_figures_that_are_off_fail_the_benchmark(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sample = bench.Figure(what="x", switch="-", unit="us", paper=100.0, emulated=111.0, source="D7")
    assert not sample.holds
    assert sample.error == pytest.approx(0.11)
    for emulated, code, words in ((111.0, 1, "OFF"), (109.0, 0, "within 10 %")):
        found = [bench.Figure(what="x", switch="-", unit="us", paper=100.0, emulated=emulated, source="D7")]
        monkeypatch.setattr(device, "figures", lambda found=found: found)
        assert device.main() == code
        assert words in capsys.readouterr().out
