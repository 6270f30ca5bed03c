"""Write the bundled snapshot from a census: only what a sweep needs, and its date.

python -m hf_adapters.corpus.snapshot RANKING.csv PROFILES.jsonl --date 2026-07-15 --out corpus/data
"""

from __future__ import annotations

import argparse
import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_PROFILE_FIELDS = (
    "profile_id",
    "shape_id",
    "architecture_class",
    "representative_checkpoint",
    "expected_parameter_count",
    "pooling",
    "confidence",
    "rows",
    "downloads",
    "config",
)
_ROW_FIELDS = (
    "rank",
    "downloads",
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
_FLAGS = ("gated", "moe", "multimodal")


def compact_profiles(text: str) -> str:
    """The census' profiles with the fields of `Profile` only, one JSON object a line."""
    lines = []
    for line in text.splitlines():
        whole: dict[str, Any] = json.loads(line)
        lines.append(json.dumps({name: whole[name] for name in _PROFILE_FIELDS}, separators=(",", ":")))
    return "\n".join(lines) + "\n"


def compact_ranking(text: str) -> str:
    """The census' ranking without model ids, flags as 0/1."""
    out = io.StringIO()
    writer = csv.DictWriter(out, _ROW_FIELDS, lineterminator="\n")
    writer.writeheader()
    for cells in csv.DictReader(io.StringIO(text)):
        row = {name: cells[name] for name in _ROW_FIELDS}
        row.update({flag: "1" if cells[flag] == "True" else "0" for flag in _FLAGS})
        writer.writerow(row)
    return out.getvalue()


def write_snapshot(ranking: Path, profiles: Path, date: str, out: Path) -> None:
    """Write `ranking.csv`, `profiles.jsonl` and `about.json` into `out`."""
    out.mkdir(parents=True, exist_ok=True)
    out.joinpath("ranking.csv").write_text(compact_ranking(ranking.read_text(encoding="utf-8")), encoding="utf-8")
    out.joinpath("profiles.jsonl").write_text(compact_profiles(profiles.read_text(encoding="utf-8")), encoding="utf-8")
    about = {"date": date, "what": "the most downloaded embedding models of the Hugging Face Hub, without their ids"}
    out.joinpath("about.json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> None:
    """Command line of this file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("ranking", type=Path)
    parser.add_argument("profiles", type=Path)
    parser.add_argument("--date", required=True)
    parser.add_argument("--out", type=Path, default=Path("corpus/data"))
    given = parser.parse_args(argv)
    write_snapshot(given.ranking, given.profiles, given.date, given.out)


if __name__ == "__main__":
    main()
