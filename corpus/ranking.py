"""The ranking: which models are downloaded most, and which profile stands for each."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from hf_adapters.corpus import own

Match = Literal["exact", "inferred", "none"]

#: Ways to build that are not the model itself: same parameters, but another mask or wrapper.
_ONLY_SHAPE = "shape_only"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankingRow:
    """One model of a ranking.

    `profile_id` is the profile that describes the model; `standin_profile_id` is the commonest profile of
    the same model type, offered where there is none. `no_profile_reason` says why there is none.
    """

    rank: int
    downloads: int
    model_id: str | None = None
    revision: str | None = None
    config_hash: str | None = None
    profile_id: str | None = None
    match: Match = "none"
    buildable: str = ""
    standin_profile_id: str | None = None
    model_type: str = ""
    pooling: str | None = None
    gated: bool = False
    moe: bool = False
    multimodal: bool = False
    no_profile_reason: str | None = None

    @property
    def judged_profile_id(self) -> str | None:
        """The profile whose verdict counts for this model, stand-ins included; None if there is none."""
        return self.profile_id or self.standin_profile_id

    @property
    def stand_in(self) -> bool:
        """True if that verdict is only about something similar."""
        return (self.profile_id is None and self.standin_profile_id is not None) or (
            self.profile_id is not None and self.buildable == _ONLY_SHAPE
        )

    @property
    def key(self) -> str:
        """The model id, or `rank/<n>` where the source carries no ids."""
        return self.model_id or f"rank/{self.rank}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """Rows in rank order, with where they come from ("bundled", "hub", "table:<name>") and their date."""

    rows: tuple[RankingRow, ...]
    source: str
    date: str
    notes: tuple[str, ...] = ()

    def head(self, top: int) -> Ranking:
        """The first `top` rows.

        Raises:
            ValueError: `top` is smaller than one.
        """
        if top < 1:
            raise ValueError(f"top is {top}: a ranking starts at 1")
        return replace(self, rows=self.rows[:top])

    @property
    def downloads(self) -> int:
        """Downloads of all rows together."""
        return sum(row.downloads for row in self.rows)


def parse_bundled_rows(text: str) -> Iterable[RankingRow]:
    """Rows of the bundled CSV (empty cell: absent, 0/1: no/yes)."""
    for cells in csv.DictReader(io.StringIO(text)):
        yield RankingRow(
            rank=int(cells["rank"]),
            downloads=int(cells["downloads"]),
            profile_id=cells["profile_id"] or None,
            match=cells["match"],  # type: ignore[arg-type]
            buildable=cells["buildable"],
            standin_profile_id=cells["standin_profile_id"] or None,
            model_type=cells["model_type"],
            pooling=cells["pooling"] or None,
            gated=cells["gated"] == "1",
            moe=cells["moe"] == "1",
            multimodal=cells["multimodal"] == "1",
            no_profile_reason=cells["no_profile_reason"] or None,
        )


@cache
def _bundled() -> Ranking:
    data = files("hf_adapters.corpus").joinpath("data")
    about = json.loads(data.joinpath("about.json").read_text(encoding="utf-8"))
    placed = {rank: line for line in own.bundled() for rank in line["ranks"]}
    rows = tuple(
        _with_own(row, placed[row.rank]) if row.rank in placed else row
        for row in parse_bundled_rows(data.joinpath("ranking.csv").read_text(encoding="utf-8"))
    )
    return Ranking(rows=rows, source="bundled", date=about["date"])


def _with_own(row: RankingRow, line: Mapping[str, Any]) -> RankingRow:
    return replace(
        row,
        profile_id=line["profile_id"],
        match=line["match"],
        buildable=own.BUILDABLE,
        standin_profile_id=None,
        no_profile_reason=None,
    )


def load_ranking(top: int = 10_000) -> Ranking:
    """The `top` most downloaded models of the bundled snapshot (no model ids in it).

    Raises:
        ValueError: `top` is smaller than one.
    """
    return _bundled().head(top)
