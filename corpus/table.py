"""Read a table of models (CSV) with their ids, downloads and, where known, profiles."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hf_adapters.corpus import own
from hf_adapters.corpus.errors import TableInvalid
from hf_adapters.corpus.hub import RankingSink
from hf_adapters.corpus.profiles import load_profiles
from hf_adapters.corpus.ranking import Ranking, RankingRow

REQUIRED = ("rank", "model_id", "downloads")
OPTIONAL = (
    "profile_id",
    "match",
    "buildable",
    "standin_profile_id",
    "model_type",
    "pooling",
    "gated",
    "moe",
    "multimodal",
    "no_profile_reason",
)
_YES = frozenset({"true", "1", "yes"})
_NO = frozenset({"false", "0", "no", ""})
_MATCHES = ("exact", "inferred", "none")
_UNDESCRIBED = "the table names no profile for this model"


def read_table(path: str | Path, *, date: str | None = None) -> Ranking:
    """The ranking in a CSV file.

    The columns `rank`, `model_id` and `downloads` are needed. `profile_id` names a bundled profile; without that
    column, models that are the representative checkpoint of a profile get it. The other columns are those of
    `RankingRow`; further ones are ignored.

    Args:
        path: the file, UTF-8.
        date: of the ranking; by default the day on which the file was last written.

    Returns:
        A ranking with the source `table:<file name>`.

    Raises:
        TableInvalid: the file cannot be read, or a column or a value is wrong (with its line).
    """
    path = Path(path)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            columns = reader.fieldnames or []
            missing = [name for name in REQUIRED if name not in columns]
            if missing:
                raise TableInvalid(
                    f"{path} lacks the column(s) {', '.join(missing)}; it has: {', '.join(columns) or 'none'}",
                    hint=f"a table needs {', '.join(REQUIRED)}",
                )
            rows = [_row(cells, f"{path}, line {reader.line_num}", "profile_id" in columns) for cells in reader]
        date = date or datetime.fromtimestamp(path.stat().st_mtime, UTC).date().isoformat()
    except OSError as error:
        raise TableInvalid(f"{path} cannot be read: {error.strerror}", hint="name a CSV file") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise TableInvalid(f"{path} is not a CSV file in UTF-8: {error}") from error
    if not rows:
        raise TableInvalid(f"{path} holds no models")
    _check_unique(rows, path)
    return Ranking(rows=tuple(sorted(rows, key=lambda row: row.rank)), source=f"table:{path.name}", date=date)


def import_table(path: str | Path, store: RankingSink, *, release: str, date: str | None = None) -> Any:
    """Read a table and write it to a store; needs no network. What the store changed is returned.

    Raises:
        TableInvalid: see `read_table`; nothing is written then.
    """
    return store.put_ranking(read_table(path, date=date), load_profiles(), release=release)


def _row(cells: Mapping[str | None, Any], where: str, has_profiles: bool) -> RankingRow:
    if None in cells or any(value is None for value in cells.values()):
        raise TableInvalid(f"{where}: it has another number of cells than the header")
    text = {str(name): str(value).strip() for name, value in cells.items()}
    model_id = text["model_id"]
    if not model_id:
        raise TableInvalid(f"{where}: model_id is empty")
    profile_id = _profile(text, "profile_id", where) if has_profiles else _representative(model_id)
    standin_id = _profile(text, "standin_profile_id", where)
    placed = own.placed(text)
    if placed is not None and (profile_id is None or profile_id != placed[0]):
        # The table knows this model by what its repository declares; we have the structure.
        (profile_id, match), standin_id = placed, None
        text = {**text, "match": match, "buildable": own.BUILDABLE, "no_profile_reason": ""}
    match = text.get("match") or ("exact" if profile_id else "none")
    if match not in _MATCHES:
        raise TableInvalid(f"{where}: match is {match!r}, not one of {', '.join(_MATCHES)}")
    reason = text.get("no_profile_reason") or None
    profile = load_profiles()[profile_id] if profile_id else None
    return RankingRow(
        rank=_number(text, "rank", where, at_least=1),
        downloads=_number(text, "downloads", where, at_least=0),
        model_id=model_id,
        profile_id=profile_id,
        match=match,  # type: ignore[arg-type]
        buildable=text.get("buildable") or ("native" if profile_id else ""),
        standin_profile_id=standin_id,
        model_type=text.get("model_type") or (profile.model_type if profile else ""),
        pooling=text.get("pooling") or None,
        gated=_flag(text, "gated", where),
        moe=_flag(text, "moe", where),
        multimodal=_flag(text, "multimodal", where),
        no_profile_reason=reason if profile_id else reason or _UNDESCRIBED,
    )


def _profile(text: Mapping[str, str], column: str, where: str) -> str | None:
    profile_id = text.get(column) or None
    if profile_id is not None and profile_id not in load_profiles():
        raise TableInvalid(
            f"{where}: {column} {profile_id!r} is not a bundled profile",
            hint="leave the cell empty, or use `hf-adapters corpus pull` to read configs from the Hub",
        )
    return profile_id


def _representative(model_id: str) -> str | None:
    for profile in load_profiles().values():
        if profile.representative_checkpoint == model_id:
            return profile.profile_id
    return None


def _number(text: Mapping[str, str], column: str, where: str, *, at_least: int) -> int:
    try:
        number = int(text[column])
    except ValueError:
        raise TableInvalid(f"{where}: {column} is {text[column]!r}, not a whole number") from None
    if number < at_least:
        raise TableInvalid(f"{where}: {column} is {number}, it must be at least {at_least}")
    return number


def _flag(text: Mapping[str, str], column: str, where: str) -> bool:
    value = text.get(column, "").lower()
    if value not in _YES | _NO:
        raise TableInvalid(f"{where}: {column} is {value!r}, not true or false")
    return value in _YES


def _check_unique(rows: list[RankingRow], path: Path) -> None:
    for what in ("rank", "model_id"):
        seen: set[Any] = set()
        for row in rows:
            value = getattr(row, what)
            if value in seen:
                raise TableInvalid(f"{path} holds the {what} {value!r} twice")
            seen.add(value)
