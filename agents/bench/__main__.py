"""`python -m hf_adapters.agents.bench`: both drafters, where an endpoint is configured; `make bench-agents` runs it.

Exit code 1 when an accepted draft turned out wrong: false accepts have to be 0; 2 for a database that cannot be used.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from hf_adapters.agents.bench.measure import Result, drafters, measure, read, summary
from hf_adapters.agents.bench.structures import drawn, kept
from hf_adapters.agents.bounds import Bounds
from hf_adapters.agents.drafters import make
from hf_adapters.agents.llm.settings import API_KEY, BASE_URL
from hf_adapters.agents.sandbox.run import Sandbox
from spyre_backend import capabilities
from spyre_backend.errors import DowncastWarning, FallbackWarning


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its table; the exit code."""
    options = _parser().parse_args(arguments)
    for noise in (DowncastWarning, FallbackWarning):
        warnings.simplefilter("ignore", noise)
    if options.figures:
        return _again(Path(options.figures))
    if options.database and Path(options.database).exists():
        print(f"error: {options.database} exists; each run needs a database of its own", file=sys.stderr)
        return 2
    release = options.backend_release or capabilities.DEFAULT_RELEASE
    subjects = [*kept(release), *drawn(release, options.seed, options.drawn)]
    subjects = [s for s in subjects if not options.only or s.label in options.only.split(",")][: options.limit]
    names = options.drafter.split(",") if options.drafter else _configured()
    bounds = Bounds(attempts=options.attempts, usd=options.budget_usd, seconds=options.hours * 3600)
    regression = [replace(s, without=()) for s in kept(release)[: options.regression]]
    everything: dict[str, object] = {}
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="hf-adapters-bench-") as folder:
        database = Path(options.database or Path(folder) / "bench.db")
        for name in names:
            results = measure(
                make(name, model=options.model),
                subjects,
                database,
                bounds=bounds,
                sandbox=Sandbox(),
                regression=regression,
                say=lambda text: print(text, flush=True),
                minutes=options.minutes,
            )
            found = {**summary(results), "not begun": len(subjects) - len(results)}
            wrong += int(found["false accepts"])
            everything[name] = {"summary": found, "results": [asdict(r) for r in results]}
            _print(name, results, found)
    if options.json:
        Path(options.json).write_text(json.dumps(everything, indent=2), encoding="utf-8")
    return 1 if wrong else 0


def _again(database: Path) -> int:
    """The figures of an earlier run, from its database."""
    if not database.is_file():
        print(f"error: there is no database {database}", file=sys.stderr)
        return 2
    wrong = 0
    for name in drafters(database):
        results = read(database, name)
        found = summary(results)
        wrong += int(found["false accepts"])
        _print(name, results, found)
    return 1 if wrong else 0


def _configured() -> list[str]:
    return ["rewrite", *(["openai"] if os.environ.get(API_KEY) or os.environ.get(BASE_URL) else [])]


def _print(name: str, results: Sequence[Result], found: dict[str, object]) -> None:
    print(f"\n{name}\n{'structure':24} {'left out':24} {'state':12} {'attempts':>8} {'seconds':>8} {'time':>6}  reason")
    for r in results:
        ratio = f"{r.simulated_us / r.hand_written_us:.2f}" if r.simulated_us and r.hand_written_us else "-"
        line = f"{r.structure:24} {','.join(r.without):24} {r.state:12} {r.attempts:8d} {r.seconds:8.0f} {ratio:>6}"
        print(f"{line}  {' '.join('; '.join(r.unknown or (r.reason,)).split())[:100]}")
    for key, value in found.items():
        print(f"{key}: {value}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m hf_adapters.agents.bench", description=__doc__)
    parser.add_argument("--drafter", help="rewrite, openai or both, with a comma; both where an endpoint is configured")
    parser.add_argument("--model", help="model that the drafter openai asks")
    parser.add_argument("--drawn", "--count", type=int, default=10, help="structures drawn from families")
    parser.add_argument("--seed", type=int, default=1, help="seed of those")
    parser.add_argument("--only", help="names of structures, with commas")
    parser.add_argument("--limit", type=int, help="at most this many structures")
    parser.add_argument("--minutes", type=float, help="begin no structure after this time; the figures say how many")
    parser.add_argument("--attempts", type=int, default=4, help="k of solved@k")
    parser.add_argument("--regression", type=int, default=2, help="structures that must go on passing")
    parser.add_argument("--budget-usd", type=float, default=2.0, help="US dollars for each structure")
    parser.add_argument("--hours", type=float, default=0.5, help="wall-clock hours for each structure")
    parser.add_argument("--backend-release", help="torch-spyre release to emulate")
    parser.add_argument("--json", help="file for all results")
    parser.add_argument("--database", help="SQLite file that keeps all cases and attempts; a new one each time")
    parser.add_argument("--figures", help="print the figures of an earlier run's --database, and run nothing")
    return parser


if __name__ == "__main__":
    sys.exit(main())
