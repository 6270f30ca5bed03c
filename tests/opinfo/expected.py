"""The calls that are expected not to give the CPU's values, from one file: ``expected_failures.yaml``.

    nn.functional.linear:            # OpInfo's or ModuleInfo's name
    - rule: matmul-k-stick           # rule of the capability file, or a numeric setting of it that differs from PyTorch
      reason: inner dimensions of 5, 10 and 20 are no whole sticks
      at:
        eager float16: 0-3, 5        # positions in the entry's list of samples

A sample that is listed and gives the right values is a failure, as is one that fails under another rule.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path

import yaml

from spyre_backend.capabilities import Numerics
from tests.opinfo.judge import Outcome

FILE = Path(__file__).parent / "expected_failures.yaml"
NUMERIC = frozenset(field.name for field in fields(Numerics))
"""Settings of a release that make values differ from PyTorch's."""
Key = tuple[str, str, str]
"""Entry's name, mode, dtype."""


@dataclass(frozen=True, slots=True)
class Expected:
    """Why a sample fails."""

    rule: str
    reason: str


def numbers(text: str) -> list[int]:
    """Read "0-3, 5"."""
    found: list[int] = []
    for part in str(text).split(","):
        first, _, last = part.strip().partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def ranges(positions: Iterable[int]) -> str:
    """Write positions as "0-3, 5"."""
    runs: list[list[int]] = []
    for position in sorted(set(positions)):
        if runs and runs[-1][1] == position - 1:
            runs[-1][1] = position
        else:
            runs.append([position, position])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def read(file: Path = FILE) -> dict[Key, dict[int, Expected]]:
    """All expectations; a sample listed twice is an error."""
    entries: dict[Key, dict[int, Expected]] = {}
    for name, items in (yaml.safe_load(file.read_text(encoding="utf-8")) or {}).items():
        for item in items:
            for place, text in item["at"].items():
                mode, dtype = place.split()
                known = entries.setdefault((name, mode, dtype), {})
                for position in numbers(text):
                    if position in known:
                        raise ValueError(f"{name}, {place}: sample {position} is listed twice")
                    known[position] = Expected(item["rule"], item["reason"])
    return entries


def write(entries: Mapping[Key, Mapping[int, Expected]], file: Path = FILE) -> None:
    """Write expectations, grouped by name and rule."""
    grouped: dict[str, dict[Expected, dict[str, str]]] = {}
    for (name, mode, dtype), samples in sorted(entries.items()):
        for expected in sorted(set(samples.values()), key=lambda e: (e.rule, e.reason)):
            places = grouped.setdefault(name, {}).setdefault(expected, {})
            places[f"{mode} {dtype}"] = ranges(p for p, e in samples.items() if e == expected)
    lines = [
        "# Calls that do not give the CPU's values on release 2026.07, and why; tests/opinfo/expected.py reads it.",
        "",
    ]
    for name, items in grouped.items():
        lines.append(f"{name}:")
        for expected, places in items.items():
            lines += [f"- rule: {expected.rule}", f"  reason: {json.dumps(expected.reason)}", "  at:"]
            lines += [f'    {place}: "{text}"' for place, text in places.items()]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def deviations(expected: Mapping[int, Expected], found: Mapping[int, Outcome]) -> list[str]:
    """One sentence for every sample that did something else than expected.

    A refusal must name the expected rule; wrong values are only explained by a numeric setting of the release.
    """
    sentences = []
    for position, outcome in found.items():
        entry = expected.get(position)
        kind, _, rule = outcome.kind.partition(":")
        if entry is None and outcome.kind != "ok":
            sentences.append(f"sample {position}: {outcome.kind} ({outcome.detail})")
        elif entry is not None and outcome.kind == "ok":
            sentences.append(f"sample {position}: passes, but {entry.rule} is expected; remove it from {FILE.name}")
        elif entry is not None and outcome.kind != "ok" and not _explains(entry.rule, kind, rule):
            sentences.append(f"sample {position}: {outcome.kind} instead of {entry.rule} ({outcome.detail})")
    return sentences


def _explains(expected: str, kind: str, rule: str) -> bool:
    return rule == expected if kind == "refused" else kind == "wrong" and expected in NUMERIC
