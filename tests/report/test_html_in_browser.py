"""The HTML report as a browser shows it: complete without a network, drawn, readable, usable with the keyboard."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from hf_adapters.report import Provenance, render, summarise
from hf_adapters.report.rows import VERDICTS
from tests.report.rows import POW, SAMPLE, row

CHROMIUM = shutil.which("chromium")
OPTIONS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
#: Enough rows for scrolling, with names and reasons as long as they come.
MANY = (
    *SAMPLE,
    *(
        row(
            rank,
            "uncovered" if rank % 3 else "adapted",
            model_id=f"an-organisation-with-a-long-name/multilingual-embedding-model-of-version-{rank}",
            family=f"family_{rank % 40}",
            **({**POW, "op": f"aten.an_operation_with_quite_a_long_name_{rank % 5}.default"} if rank % 3 else {}),
        )
        for rank in range(200, 500)
    ),
)

DRAWN = "[...document.querySelectorAll('.plotly-graph-div')].every((chart) => chart.querySelector('.main-svg'))"

# The contrast of WCAG 2.1, section 1.4.3, for every element that shows text of its own.
CONTRAST = """() => {
  const channels = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = (colour) => {
    const [r, g, b] = channels(colour).slice(0, 3).map((v) => v / 255)
      .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const [, , , alpha = 1] = channels(getComputedStyle(at).backgroundColor);
      if (alpha === 1) return getComputedStyle(at).backgroundColor;
    }
    return "rgb(255, 255, 255)";
  };
  const own = (element) => [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
  return [...document.body.querySelectorAll("*")]
    .filter((element) => !["SCRIPT", "STYLE", "NOSCRIPT"].includes(element.tagName))
    .filter((element) => own(element) && element.getClientRects().length)
    .map((element) => {
      const style = getComputedStyle(element);
      const [front, back] = [light(element instanceof SVGElement ? style.fill : style.color), light(ground(element))];
      const contrast = (Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05);
      return { text: element.textContent.trim().slice(0, 40), contrast };
    });
}"""

pytestmark = pytest.mark.slow


@dataclass(slots=True)
class Opened:
    """A page with what happened while it was open."""

    page: Any
    address: str
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (the extra 'dev')")
    if CHROMIUM is None:
        pytest.skip("chromium is not installed (Debian: apt-get install chromium)")
    with api.sync_playwright() as started:
        found = started.chromium.launch(executable_path=CHROMIUM, headless=True, args=OPTIONS)
        yield found
        found.close()


def show(browser: Any, file: Path, rows: Any, *, width: int = 1280) -> Opened:
    source = Provenance(ranking_source="bundled snapshot", ranking_date="2026-07-15", versions={"torch": "2.13.0"})
    file.write_text(render(summarise(rows, source), "html"), encoding="utf-8")
    opened = Opened(page=browser.new_page(viewport={"width": width, "height": 800}), address=file.as_uri())
    opened.page.on("request", lambda request: opened.requests.append(request.url))
    opened.page.on("console", lambda message: opened.complaints.append(message.text))
    opened.page.on("pageerror", lambda error: opened.complaints.append(str(error)))
    opened.page.goto(opened.address)
    opened.page.wait_for_function(DRAWN)
    return opened


@pytest.fixture(scope="module")
def opened(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    shown = show(browser, tmp_path_factory.mktemp("report") / "wide.html", MANY)
    yield shown
    shown.page.close()


@pytest.fixture(scope="module")
def narrow(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    shown = show(browser, tmp_path_factory.mktemp("report") / "narrow.html", MANY, width=360)
    yield shown
    shown.page.close()


def boxes(opened: Opened, selector: str) -> list[dict[str, float]]:
    found = [element.bounding_box() for element in opened.page.query_selector_all(selector)]
    assert all(box is not None for box in found), selector
    return found


def test_coverage_is_drawn_as_two_lines(opened: Opened) -> None:
    lines = boxes(opened, "#coverage-chart .scatterlayer path.js-line")
    assert len(lines) == 2
    assert all(line["width"] > 800 and line["height"] > 20 for line in lines)
    texts = opened.page.text_content("#coverage-chart")
    assert all(word in texts for word in ("share of models", "share of downloads", "first N models", "accepted, %"))


def test_bars_are_as_long_as_their_figures(opened: Opened) -> None:
    counts = [figures["models"] for figures in summarise(MANY).blocking.values()]
    bars = boxes(opened, "#blocking-chart .barlayer path")
    assert len(bars) == len(counts) == 7
    assert [bar["width"] / bars[0]["width"] for bar in bars] == pytest.approx(
        [count / counts[0] for count in counts], abs=0.01
    )
    assert [bar["y"] for bar in bars] == sorted(bar["y"] for bar in bars), "most first"
    points = boxes(opened, "#blocking-chart .scatterlayer path.point")
    assert len(points) == len(counts)
    assert [point["x"] for point in points] == sorted(point["x"] for point in points), "shares add up"


def test_tables_line_up(opened: Opened) -> None:
    tables = opened.page.evaluate(
        """() => [...document.querySelectorAll("main table")].map((table) => [...table.rows].map((row) =>
          [...row.cells].map((cell) => getComputedStyle(cell).textAlign)))"""
    )
    assert len(tables) == 9
    for rows in tables:
        assert len(rows) > 1
        assert len({tuple(alignments) for alignments in rows}) == 1, "headers stand like their columns"
    families = opened.page.locator("#families-table + p + .scroll")
    assert families.evaluate("box => box.scrollHeight > box.clientHeight"), "long tables scroll in place"
    families.evaluate("box => box.scrollTo(0, 200)")
    top = "getBoundingClientRect().top"
    gap = families.evaluate(f"box => box.querySelector('th').{top} - box.{top}")
    assert gap == pytest.approx(0, abs=1), "and keep their headers in sight"


def test_links_lead_somewhere(opened: Opened) -> None:
    targets = [link.get_attribute("href") for link in opened.page.query_selector_all("a")]
    assert len(targets) > 8
    assert all(target.startswith("#") and opened.page.query_selector(target) for target in targets)


def test_the_keyboard_is_enough(opened: Opened) -> None:
    page = opened.page
    page.evaluate("() => { document.activeElement.blur(); scrollTo(0, 0); }")
    stops, outlines = [], []
    for _ in range(60):
        page.keyboard.press("Tab")
        name, outline = page.evaluate(
            """() => { const at = document.activeElement; const box = at.closest("[role=region]");
              return [at.id || at.getAttribute("href") || (box && box.getAttribute("aria-labelledby")) || at.tagName,
                      getComputedStyle(at).outlineStyle]; }"""
        )
        if name == "BODY":
            break
        stops.append(name)
        outlines.append(outline)
    assert stops[0] == "#content", "the way past the links comes first"
    assert {"families-table", "models", "filter-words", "filter-verdict"} <= set(stops)
    assert set(outlines) == {"solid"}, "where the focus is can be seen"


def test_models_are_filtered(opened: Opened) -> None:
    page = opened.page
    page.fill("#filter-words", "MODEL-OF-VERSION-2 family_7")
    page.select_option("#filter-verdict", "uncovered")
    ranks = page.locator("#models-table tbody tr:visible td:first-child").all_text_contents()
    assert ranks == ["247", "287"]
    assert page.text_content("#filter-shown") == f"{len(ranks)} shown"
    page.fill("#filter-words", "")
    page.select_option("#filter-verdict", "")
    assert page.locator("#models-table tbody tr:visible").count() == len(MANY)


def test_all_text_can_be_read(opened: Opened) -> None:
    found = opened.page.evaluate(CONTRAST)
    assert len(found) > 1000
    assert [item for item in found if item["contrast"] < 4.5] == []


def test_a_telephone_is_wide_enough(narrow: Opened) -> None:
    assert narrow.page.evaluate("document.documentElement.scrollWidth") <= 360
    for name in ("coverage", "blocking"):
        (drawing, *_) = boxes(narrow, f"#{name}-chart svg.main-svg")
        assert drawing["x"] >= 0
        assert drawing["x"] + drawing["width"] <= 360
    bars = boxes(narrow, "#blocking-chart .barlayer path")
    assert bars[0]["width"] > 60
    assert boxes(narrow, "#coverage-chart .scatterlayer path.js-line")[0]["width"] > 200


def test_images_of_it_are_described(opened: Opened) -> None:
    labels = [item.get_attribute("aria-label") for item in opened.page.query_selector_all("[role=img]")]
    assert len(labels) == 3
    assert all(labels)
    assert opened.page.get_attribute("html", "lang") == "en"
    assert opened.page.locator("h1").count() == 1


@pytest.mark.parametrize(
    "rows",
    [(), SAMPLE[:1], (row(1, "mismatch", model_id="</script><img src=http://127.0.0.1:9/x>", op="<b onload=x>"),)],
    ids=["empty", "one", "hostile"],
)
def test_small_and_hostile_reports_open(browser: Any, tmp_path: Path, rows: Any) -> None:
    shown = show(browser, tmp_path / "small.html", rows)
    assert shown.page.text_content("h1") == "Embedding models on Spyre"
    assert shown.page.locator("img, b[onload]").count() == 0
    assert (shown.requests, shown.complaints) == ([shown.address], [])
    shown.page.close()


def test_every_verdict_has_its_colour(opened: Opened) -> None:
    style = opened.page.text_content("style")
    assert all(f".{verdict}" in style for verdict in VERDICTS)


def test_nothing_was_fetched_and_nothing_complained(opened: Opened, narrow: Opened) -> None:
    """Last, so that all that happened above counts, too."""
    for shown in (opened, narrow):
        assert shown.requests == [shown.address]
        assert shown.complaints == []
