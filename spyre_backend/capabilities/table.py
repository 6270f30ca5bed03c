"""Writes the operator support table as Markdown.

    python -m spyre_backend.capabilities.table --output docs/operators.md

The table is generated so that documentation and compiler cannot disagree: both read the release files.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from spyre_backend.capabilities import available, load
from spyre_backend.capabilities.model import Capabilities, OperatorEntry

_INTRODUCTION = """\
# What the device can lower

Generated from `spyre_backend/capabilities/*.toml` by `python -m spyre_backend.capabilities.table --output
docs/operators.md`; do not edit.

Each release has two columns: *compiled* (under `torch.compile`) and *eager*. `native` is one device operation,
`decomposed` several, `fallback` runs on the CPU and is counted, `unsupported` raises `SpyreUnsupported` with the rule
named in the last column. A check in brackets decides a partly supported operator. A dagger marks rows that no source
names. In-place and `out=` variants follow their functional form. Operators that are not listed are `{compiled}` when
compiled (rule `{rule}`) and `{eager}` in eager mode.
"""


def render() -> str:
    """Return the whole document: operators, rules, and the limits and numerics of every release."""
    releases = [load(name) for name in available()]
    default = releases[0]
    parts = [
        _INTRODUCTION.format(compiled=default.default_compiled, eager=default.default_eager, rule=default.default_rule),
        "## Operators\n",
        "\n".join(_operator_rows(releases)) + "\n",
        "## Rules\n",
        "\n".join(_rule_rows(default)) + "\n",
        "## Numbers\n",
        "\n".join(_number_rows(releases)) + "\n",
    ]
    return "\n".join(parts)


def _operator_rows(releases: list[Capabilities]) -> Iterator[str]:
    columns = [f"{r.release} {column}" for r in releases for column in ("compiled", "eager")]
    yield "| operator | " + " | ".join(columns) + " | rule | source |"
    yield "|---" * (len(columns) + 3) + "|"
    for name in sorted(releases[-1].operators):
        entries = [r.operators[name] for r in releases if name in r.operators]
        cells = [cell for entry in entries for cell in _support_cells(entry)]
        rules = dict.fromkeys(entry.rule for entry in entries)
        dagger = " †" if entries[0].assumed else ""
        yield (
            f"| `{name}`{dagger} | "
            + " | ".join(cells)
            + f" | {', '.join(f'`{rule}`' for rule in rules)} | {entries[0].source} |"
        )


def _support_cells(entry: OperatorEntry) -> tuple[str, str]:
    check = f" [{entry.predicate}]" if entry.predicate and entry.compiled in ("native", "decomposed") else ""
    return entry.compiled + check, entry.eager


def _rule_rows(release: Capabilities) -> Iterator[str]:
    yield "| rule | meaning | what helps | source |"
    yield "|---|---|---|---|"
    for rule in sorted(release.rules.values(), key=lambda r: r.id):
        yield f"| `{rule.id}` | {rule.title} | {rule.hint} | {rule.source} |"


def _number_rows(releases: list[Capabilities]) -> Iterator[str]:
    yield "| setting | " + " | ".join(r.release for r in releases) + " |"
    yield "|---" * (len(releases) + 1) + "|"
    for section in ("limits", "numerics", "settings"):
        for field in fields(getattr(releases[0], section)):
            values = [getattr(getattr(r, section), field.name) for r in releases]
            if not isinstance(values[0], dict):
                yield f"| {section}.{field.name} | " + " | ".join(f"{value}" for value in values) + " |"


def main(arguments: list[str] | None = None) -> None:
    """Print the document, or write it to `--output`."""
    parser = argparse.ArgumentParser(
        prog="python -m spyre_backend.capabilities.table", description="Write the operator support table as Markdown."
    )
    parser.add_argument("--output", type=Path, help="file to write, e.g. docs/operators.md; printed when absent")
    output: Path | None = parser.parse_args(arguments).output
    if output is None:
        print(render(), end="")
    else:
        output.write_text(render(), encoding="utf-8")


if __name__ == "__main__":
    main()
