"""`hf-adapters sweep`: judge the models of a ranking."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hf_adapters.commands._common import (
    DEFAULT_DATABASE,
    Database,
    Dtype,
    Release,
    UserError,
    console,
    dtype_name,
    friendly,
    open_store,
    release_name,
)
from hf_adapters.store.address import command_line, hide_password, sqlite_file

if TYPE_CHECKING:
    from rich.console import Console

    from hf_adapters.store.store import Store
    from hf_adapters.sweep.options import SweepOptions
    from hf_adapters.sweep.run import SweepResult

_INTERRUPTED = 130


Limit = Annotated[
    int | None, typer.Option("--limit", min=1, help="Try at most N structures, those with the highest impact.")
]
Only = Annotated[
    list[str] | None,
    typer.Option("--only", metavar="FAMILY", help="Only structures of this model_type; repeatable."),
]
Jobs = Annotated[int, typer.Option("--jobs", min=0, help="Worker processes; 0 takes what cores and memory allow.")]
Memory = Annotated[
    str | None,
    typer.Option("--memory", metavar="SIZE", help="Memory limit of a worker, such as 8G; by default a share of all."),
]
Retry = Annotated[
    list[str] | None,
    typer.Option(
        "--retry",
        metavar="VERDICT",
        help="Try structures with this verdict again; repeatable; 'failed' means all not accepted.",
    ),
]
Source = Annotated[
    str | None, typer.Option("--source", help="Ranking to use: bundled, or one that was pulled or imported.")
]
Html = Annotated[
    Path | None,
    typer.Option("--html", metavar="FILE", help="Where the HTML report goes; next to the database by default."),
]


@friendly
def sweep(
    top: Annotated[int, typer.Option("--top", min=1, help="Judge the N most downloaded models.")] = 10_000,
    db: Database = DEFAULT_DATABASE,
    backend_release: Release = None,
    limit: Limit = None,
    only: Only = None,
    jobs: Jobs = 0,
    timeout: Annotated[float, typer.Option("--timeout", min=1, help="Seconds for one structure.")] = 900.0,
    memory: Memory = None,
    retry: Retry = None,
    source: Source = None,
    dtype: Dtype = "auto",
    html: Html = None,
    # The work function is replaced in tests only, therefore it is no part of the help.
    work: Annotated[str | None, typer.Option("--work", hidden=True)] = None,
) -> None:
    """Judge the most downloaded embedding models, one structure at a time, and record every verdict.

    Stopping it loses nothing: the same command continues. A finished sweep is recognised in seconds.

    Example: hf-adapters sweep --top 1000 --jobs 2 --db sweep.db
    """
    from hf_adapters.sweep.limits import parse_size
    from hf_adapters.sweep.options import WORK, SweepOptions
    from hf_adapters.sweep.run import sweep as run_sweep
    from hf_adapters.sweep.supervisor import Limits

    try:
        memory_bytes = parse_size(memory) if memory is not None else 0
    except ValueError as error:
        raise UserError(f"--memory: {error}") from None
    releases = [release_name(name) for name in _split([backend_release or ""])] or [release_name(None)]
    options = SweepOptions(
        top=top,
        release=releases[0],
        source=source,
        families=frozenset(_split(only)),
        limit=limit,
        retry=_verdicts(_split(retry)),
        dtype=dtype_name(dtype),
        limits=Limits(jobs=jobs, timeout=timeout, memory=memory_bytes),
        report=html or _default_report(db),
        command=command_line(["hf-adapters", *sys.argv[1:]]),
        work=work or WORK,
    )
    shown = console()
    with open_store(db, create=True) as store, _terminated_like_interrupted():
        result = run_sweep(store, options, shown)
        _conclude(store, options, result, shown, db)
        for release in releases[1:]:
            if not result.interrupted:
                options = _of_release(options, release)
                result = run_sweep(store, options, shown)
                _conclude(store, options, result, shown, db)
        if len(releases) > 1 and not result.interrupted:
            _compare(store, options, releases, result, shown)
    if result.interrupted:
        raise typer.Exit(_INTERRUPTED)


def _of_release(options: SweepOptions, release: str) -> SweepOptions:
    """The same sweep of another release, with an HTML report of its own."""
    assert options.report is not None
    report = options.report.with_name(f"{options.report.stem}-{release}{options.report.suffix}")
    return replace(options, release=release, report=report)


def _compare(store: Store, options: SweepOptions, releases: list[str], result: SweepResult, shown: Console) -> None:
    from hf_adapters.report.load import load_summary
    from hf_adapters.report.terminal import beside

    source = result.plan.source
    summaries = [load_summary(store, release=release, source=source, top=options.top) for release in releases]
    shown.print(beside(summaries))


@contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    """Let SIGTERM (a batch system's end of time) end the sweep as Ctrl-C does: workers stopped, run closed."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _split(values: list[str] | None) -> list[str]:
    return [part for value in values or () for part in value.split(",") if part]


def _verdicts(names: list[str]) -> frozenset[str]:
    from hf_adapters.store.models import ACCEPTED, VERDICTS

    failed = [name for name in VERDICTS if name not in ACCEPTED]
    chosen = {verdict for name in names for verdict in (failed if name == "failed" else [name])}
    if unknown := sorted(chosen - set(VERDICTS)):
        raise UserError(f"--retry: {', '.join(unknown)} is no verdict: choose among failed, {', '.join(VERDICTS)}")
    return frozenset(chosen)


def _default_report(db: str) -> Path:
    path = sqlite_file(db)
    return path.with_suffix(".html") if path is not None else Path("hf-adapters.html")


def _conclude(store: Store, options: SweepOptions, result: SweepResult, shown: Console, db: str) -> None:
    from hf_adapters.report import render
    from hf_adapters.report.load import load_summary
    from hf_adapters.report.terminal import renderable

    summary = load_summary(store, release=options.release, source=result.plan.source, top=options.top)
    shown.print(renderable(summary, most=12))
    assert options.report is not None
    if result.done or not options.report.exists():
        options.report.write_text(render(summary, "html"), encoding="utf-8")
    shown.print(f"HTML report: {options.report.resolve()}", soft_wrap=True)
    if result.elsewhere:
        shown.print(f"{result.elsewhere} structures were left to other sweeps on this database.", soft_wrap=True)
    if result.interrupted:
        shown.print(
            f"Interrupted after {result.done} of {len(result.plan.todo)} structures; all of them are recorded.",
            soft_wrap=True,
        )
        shown.print(
            f"Continue with: {options.command or f'hf-adapters sweep --db {hide_password(db)}'}", soft_wrap=True
        )
