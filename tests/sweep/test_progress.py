"""The display tells done, left, running coverage and what is in work."""

from __future__ import annotations

import io

from rich.console import Console

from hf_adapters.sweep.progress import LiveDisplay, PlainDisplay, Tally, display


def tally() -> Tally:
    return Tally(total=3, models=10, downloads=1000, accepted_models=2, accepted_downloads=400)


def console(terminal: bool) -> tuple[Console, io.StringIO]:
    stream = io.StringIO()
    return Console(file=stream, force_terminal=terminal, width=120, color_system=None), stream


def test_plain_lines_where_there_is_no_terminal() -> None:
    made, stream = console(terminal=False)
    figures = tally()
    with display(figures, made) as shown:
        assert isinstance(shown, PlainDisplay)
        figures.start("bert.base")
        shown.update()
        assert stream.getvalue() == ""
        figures.finish("bert.base", "adapted", models=3, downloads=100)
        shown.update("bert.base: adapted")
    assert stream.getvalue() == "[1/3] bert.base: adapted; accepted 5 of 10 models (50.0 %), 50.0 % of downloads\n"


def test_a_live_display_in_a_terminal() -> None:
    made, stream = console(terminal=True)
    figures = tally()
    with display(figures, made) as shown:
        assert isinstance(shown, LiveDisplay)
        figures.finish("mpnet.base", "uncovered", models=4, downloads=10)
        figures.start("bert.base")
        shown.update("mpnet.base: uncovered")
    text = stream.getvalue()
    for expected in ("1/3", "2 left", "bert.base", "structures: uncovered 1", "accepted 2 of 10 models (20.0 %)"):
        assert expected in text, expected


def test_failed_structures_add_nothing_to_the_coverage() -> None:
    figures = tally()
    figures.finish("a", "mismatch", models=5, downloads=500)
    assert (figures.accepted_models, figures.accepted_downloads, figures.done) == (2, 400, 1)


def test_an_empty_ranking_has_no_coverage() -> None:
    assert "0 of 0 models (0.0 %)" in Tally(total=0, models=0, downloads=0).coverage()
