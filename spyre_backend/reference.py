"""Writes `docs/device.md`: what the emulator models, how truly, from which source, and what it does not.

    python -m spyre_backend.reference --output docs/device.md

Values come from the capability files, the compiler's settings and the clock's constants, so that the document cannot
disagree with them.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

from spyre_backend import capabilities
from spyre_backend.capabilities.model import Capabilities
from spyre_backend.compiler.settings import ENVIRONMENT, Settings
from spyre_backend.emulator.clock_constants import FACTS

_INTRODUCTION = """\
# What is emulated

Generated from the capability files, the compiler's settings and the clock's constants by `make docs`; do not edit.

Fidelity: *exact* follows a rule that a source states; *modelled* follows an inference where the sources give none;
*calibrated* follows formulas fitted to measurements on cards. Sources are sections of the project's device notes.
Operators, rules and numeric settings of each release are in [operators.md](operators.md).
"""


@dataclass(frozen=True, slots=True)
class Area:
    """One thing that is emulated: how truly, in which module, from which section of the notes."""

    what: str
    fidelity: str
    module: str
    source: str


AREAS = (
    Area(
        "Storage formats, DL16 rounding, saturation, subnormals",
        "exact, rounding mode is a setting",
        "emulator.numerics",
        "D1.5, D1.6",
    ),
    Area(
        "Accumulation in blocks of 64 rounded to DL16",
        "modelled on widths up to 4096, which were measured; more than 64 partial sums are added in groups, since one "
        "after another they would stop growing, and a softmax over a vocabulary would be wrong without an error; so "
        "with matmuls",
        "emulator.reductions",
        "D6.5",
    ),
    Area(
        "Special functions: floor of exp, form of gelu, range of silu",
        "exact where measured",
        "emulator.pointwise",
        "D1.5",
    ),
    Area("Stick layouts, padding lanes, element arrangement", "exact", "compiler.layouts", "D2.1, D2.2"),
    Area(
        "Legal sticks, and where restickifies go",
        "exact rules, placement by our own search",
        "compiler.restickify",
        "D2.4 to D2.6",
    ),
    Area("Decompositions and lowering of aten operators", "exact by release", "compiler.lowering", "D4, D5"),
    Area(
        "Work division: span limit, divisors, split score of matmuls",
        "exact, weights of the score uncertain",
        "compiler.division",
        "D4.4, D7.5",
    ),
    Area(
        "Products of 8-bit floats",
        "modelled: operands become DL16 exactly and add up as DL16, scales follow in fp32; no two-dimensional sticks",
        "compiler.decompositions",
        "D1.6, D5.1",
    ),
    Area("Rows looked up and stored by index", "exact rules", "compiler.lowering_indexed", "D2.4, D5.4, D6.9"),
    Area("Tiles of what exceeds the span limit", "off by default, as on the card", "compiler.tiling", "D4.3, D4.8"),
    Area(
        "Scratchpad planning: residents, reuse in place, clones, relayout",
        "exact rules, own solvers",
        "compiler.scratchpad",
        "D4.5",
    ),
    Area("Bundles, temporaries in device memory", "exact", "compiler.bundle", "D4.6"),
    Area(
        "Execution of programs",
        "results as the formats above, order of accumulation as stated",
        "emulator.fast",
        "D6.5",
    ),
    Area("Device memory, copies, views", "exact in bytes", "device.module", "D3.2, D3.5"),
    Area("Streams, events, several devices", "asynchronous; times simulated", "device.streams", "D3.3"),
    Area("Launches: arguments, aliases, storage offsets", "exact", "runtime.launch", "D3.4"),
    Area("Time of bundles", "calibrated", "emulator.clock", "D7.1 to D7.6"),
    Area(
        "Time of launches and copies, direct or through graphs",
        "graph launch measured, the rest inferred",
        "emulator.clock",
        "D3.6, D7.8",
    ),
    Area(
        "A second, exact executor: bounded scratchpads, poisoned memory, checked lifetimes",
        "exact",
        "emulator.exact",
        "D4.5",
    ),
    Area("Independent cycle count, beside the clock", "modelled", "emulator.cycles", "D7.7"),
)

NOT_MODELLED = (
    ("Scratchpad banks and their conflicts", "no source documents them (D1.2)"),
    (
        "Coarse row tiling inside an operation, its efficiency and overflow of the scratchpads",
        "our compiler makes none (D7.2)",
    ),
    (
        "Operands that many cores read again, in the clock's matmul",
        "one figure without its formula (D7.5). The clock therefore gives less than #2407 for the cost model against "
        "greedy: 1.3 and 1.3 times instead of 2.6 and 2.1 with N = 4096 and 12800, and nothing instead of 1.8 with "
        "N = 1024, where reading the operands once bounds both divisions; see `make bench-device`",
    ),
    ("Chains of operations that take 5 to 16 % longer than the model", "not explained by the source (D7.1)"),
    ("Ring traffic of partial sums in the clock", "part of the calibrated matmul time (D7.5)"),
    ("Rates of fp8, int8 and int4", "only the kernels' existence is known (D8)"),
    ("Time of operators that run on the host", "depends on the host"),
    ("Hangs, lost wake-ups and backend crashes by chance", "not reproducible (D3.3)"),
    (
        "Device layouts between programs",
        "what enters a program has the default layout of its own shape and strides: a view made outside of a graph is "
        "refused if it begins inside a stick, but not for how its base lies (D2.7)",
    ),
    ("Collectives between cards (`spyreccl`)", "one model runs on one card; in a graph they are refused (D3.1, D6.9)"),
    (
        "Layouts that the caller chooses (`device_layout=`, `require_layout`)",
        "every tensor of a caller has the default layout, and what needs another is refused: `index_copy_` into slots "
        "runs where the indexed dim is at device position 0 by default (D2.2, D6.9)",
    ),
    (
        "Compile failures that are only named: broadcast, reduction and transpose in one bundle (#3164), `*=` on a "
        "transposed slice, `getitem` of [1, 64, 4096] (#1690)",
        "the trigger is not stated; taken as it is written, the first would refuse every attention layer (D6.7)",
    ),
    ("The binary format of programs", "closed; a program here is plain data (D4.7)"),
)

_CONSTANTS = """\
## Constants of the clock

In `spyre_backend/emulator/clock_constants.py`. `SPYRE_CLOCK_DISPATCH` chooses between direct launches and graphs,
`SPYRE_CLOCK_NOISE` (a seed) adds the error that the sources report for the model.
"""

_SILENT_BUGS = """\
## Silent bugs

Wrong numbers without an error. Off, so that a sweep measures the release and not its worst day, unless a file or
`SPYRE_BACKEND_SILENT_BUGS` (names, separated by commas) switches them on; in Python, `capabilities.silent_bugs(name)`
for a block. Where a source gives no more than "wrong", the effect is the simplest wrong access with that trigger.
"""

_LIMITS = (
    "num_cores",
    "lx_bytes",
    "lx_usable_bytes",
    "span_limit_bytes",
    "loop_count_max",
    "segment_bytes",
    "pool_bytes_max",
    "dram_bytes",
    "dma_maps_max",
    "external_tensors_max",
    "tensor_rank_max",
    "topk_max_k",
)


def render() -> str:
    """The whole document."""
    releases = [capabilities.load(name) for name in capabilities.available()]
    parts = [
        _INTRODUCTION,
        "## What, and how truly\n",
        _table(("modelled", "fidelity", "module", "source"), _areas()),
        "## What is not modelled\n",
        _table(("what", "why"), NOT_MODELLED),
        "## Limits\n\nOf D1.4; 0 is none.\n",
        _table(("limit", *(r.release for r in releases)), _limits(releases)),
        _SILENT_BUGS,
        _table(("name", "issue", "trigger", "effect", "emulated", *(r.release for r in releases)), _bugs(releases)),
        "## Compiler switches\n",
        _table(("setting", "environment", "default"), _switches()),
        _CONSTANTS,
        _table(("constant", "value", "unit", "how sure", "source", "meaning"), _constants()),
    ]
    return "\n".join(parts)


def _table(header: tuple[str, ...], rows: Iterator[tuple[str, ...]] | tuple[tuple[str, ...], ...]) -> str:
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


def _areas() -> Iterator[tuple[str, ...]]:
    for area in AREAS:
        yield area.what, area.fidelity, f"`{area.module}`", area.source


def _limits(releases: list[Capabilities]) -> Iterator[tuple[str, ...]]:
    for name in _LIMITS:
        yield (name, *(f"{getattr(release.limits, name):,}" for release in releases))


def _bugs(releases: list[Capabilities]) -> Iterator[tuple[str, ...]]:
    for name, bug in sorted(releases[-1].settings.silent_bugs.items()):
        states = ("on" if release.settings.bug(name) else "off" for release in releases)
        emulated = "yes" if bug.emulated else f"no: {bug.missing}"
        yield (f"`{name}`", bug.issue, bug.trigger, bug.effect, emulated, *states)


def _switches() -> Iterator[tuple[str, ...]]:
    plain = Settings()
    for field in fields(Settings):
        yield f"`{field.name}`", f"`{ENVIRONMENT.get(field.name, '-')}`", str(getattr(plain, field.name))


def _constants() -> Iterator[tuple[str, ...]]:
    for fact in FACTS.values():
        value = (
            ", ".join(f"{key}: {item:g}" for key, item in fact.value.items()) if isinstance(fact.value, dict) else None
        )
        if value is None:
            items = fact.value if isinstance(fact.value, tuple) else (fact.value,)
            value = ", ".join(f"{item:g}" for item in items)
        yield f"`{fact.name}`", value, fact.unit, fact.mark, fact.source, fact.meaning


def main(arguments: list[str] | None = None) -> None:
    """Print the document, or write it to `--output`."""
    parser = argparse.ArgumentParser(
        prog="python -m spyre_backend.reference", description="Write what the emulator models as Markdown."
    )
    parser.add_argument("--output", type=Path, help="file to write, e.g. docs/device.md; printed when absent")
    output: Path | None = parser.parse_args(arguments).output
    if output is None:
        print(render(), end="")
    else:
        output.write_text(render(), encoding="utf-8")


if __name__ == "__main__":
    main()
