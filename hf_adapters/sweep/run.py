"""A whole sweep: plan, execute, record, report."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console

from hf_adapters.sweep.fingerprint import Fingerprint, fingerprint
from hf_adapters.sweep.messages import Outcome, Task
from hf_adapters.sweep.options import SweepOptions
from hf_adapters.sweep.plan import Plan, load, plan
from hf_adapters.sweep.progress import Display, Tally, display
from hf_adapters.sweep.record import adapter_records, verdict_record
from hf_adapters.sweep.supervisor import Supervisor
from hf_adapters.sweep.surroundings import check_caches

if TYPE_CHECKING:
    from hf_adapters.store.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResult:
    """How a sweep ended.

    Attributes:
        plan: what was to be done.
        identity: fingerprint that the verdicts carry.
        run_id: row of the run.
        done: structures that got a verdict.
        elsewhere: structures left to other sweeps that run on the same database.
        interrupted: whether Ctrl-C ended it.
    """

    plan: Plan
    identity: Fingerprint
    run_id: int
    done: int
    elsewhere: int
    interrupted: bool


def sweep(store: Store, options: SweepOptions, console: Console) -> SweepResult:
    """Judge what the options ask for; every verdict is on disk as soon as it is known.

    Ctrl-C ends the sweep: workers are killed, what was recorded stays, and the same command continues.

    Args:
        store: an upgraded store.
        options: what to do.
        console: where progress is shown.

    Raises:
        SurroundingsUnusable: a cache cannot be written; what was recorded before stays.
    """
    identity = fingerprint(options.release, options.dtype)
    source, date = load(store, options)
    since = store.newest_verdict()
    planned = plan(store, options, identity, source, date)
    _announce(planned, options, console)
    if planned.todo:
        check_caches()
    run_id = store.begin_run(
        release=options.release,
        fingerprint=identity.value,
        source=source,
        source_date=date,
        command=options.command,
        top=options.top,
        options=_plain_options(options),
        versions=identity.versions,
    )
    store.record_unbuildable(
        run_id,
        source=source,
        release=identity.release,
        release_fingerprint=identity.release_fingerprint,
        fingerprint=identity.value,
        top=options.top,
    )
    tally, state = _tally(planned), "interrupted"
    interrupted = False
    try:
        with display(tally, console) as shown:
            _execute(store, run_id, planned, options, identity, tally, shown, since)
        state = "finished"
    except KeyboardInterrupt:
        interrupted = True
    finally:
        store.end_run(run_id, state)
    return SweepResult(
        plan=planned,
        identity=identity,
        run_id=run_id,
        done=tally.done,
        elsewhere=tally.elsewhere,
        interrupted=interrupted,
    )


def _execute(
    store: Store,
    run_id: int,
    planned: Plan,
    options: SweepOptions,
    identity: Fingerprint,
    tally: Tally,
    shown: Display,
    since: int,
) -> None:
    def claim(task: Task) -> bool:
        return store.claim(task.key, release=options.release, fingerprint=identity.value, since=since)

    environment = {"SPYRE_BACKEND_RELEASE": options.release}
    supervisor = Supervisor(options.work, limits=options.limits, env=environment, claim=claim)
    counted = _counted(planned)
    with contextlib.closing(supervisor.run(planned.tasks(options.release, options.dtype))) as events:
        for event in events:
            task, outcome = event.task, event.outcome
            if event.kind == "started":
                tally.start(task.label)
                shown.update()
            elif event.kind == "skipped":
                tally.skip()
                shown.update()
            elif event.kind == "retrying":
                shown.update(f"{task.label}: {event.reason}; again at the end, alone")
            elif outcome is not None:
                store.put_adapters(adapter_records(outcome))
                record = verdict_record(outcome, identity, signature=task.key)
                store.record_verdict(run_id, record)
                store.unclaim(task.key, release=options.release)
                seconds = tally.finish(task.label, record.verdict, *counted.get(task.key, (0, 0)))
                shown.update(f"{task.label}: {_describe(record.verdict, record.reason, outcome)} in {seconds:.0f} s")


def _describe(verdict: str, reason: str, outcome: Outcome) -> str:
    multiple = outcome.result.get("multiple")
    figures = f" ({multiple:.2g} x noise floor)" if isinstance(multiple, float) else ""
    short = " ".join(reason.split())
    return f"{verdict}{figures}" + (f": {short[:160]}" if short and verdict not in ("native", "adapted") else "")


def _counted(planned: Plan) -> dict[str, tuple[int, int]]:
    """For each structure the models and downloads that it would add to the coverage (stand-ins do not count)."""
    counted: dict[str, tuple[int, int]] = {}
    for row in planned.rows:
        if row.signature is not None and not row.stand_in:
            models, downloads = counted.get(row.signature, (0, 0))
            counted[row.signature] = (models + 1, downloads + row.model.downloads)
    return counted


def _tally(planned: Plan) -> Tally:
    again = {item.signature for item in planned.todo}
    accepted = [row for row in planned.rows if row.accepted and not row.stand_in and row.signature not in again]
    return Tally(
        total=len(planned.todo),
        models=len(planned.rows),
        downloads=sum(row.model.downloads for row in planned.rows),
        accepted_models=len(accepted),
        accepted_downloads=sum(row.model.downloads for row in accepted),
    )


def _announce(planned: Plan, options: SweepOptions, console: Console) -> None:
    if planned.source == "bundled":
        origin = f"the bundled snapshot of {planned.date} (no ranking was pulled from the Hub)"
    else:
        origin = f"the ranking {planned.source!r} of {planned.date}"
    console.print(
        f"Ranking: {origin}, {len(planned.rows):,} models. Emulated release: {options.release}.",
        soft_wrap=True,
        highlight=False,
    )
    parts = [f"{planned.structures} structures stand for them", f"{planned.settled} already have a current verdict"]
    parts.append(f"{len(planned.todo)} to try with {options.limits.workers()} workers")
    if planned.left_out:
        parts.append(f"{planned.left_out} left for later (--limit, --only)")
    console.print("; ".join(parts) + ".", soft_wrap=True, highlight=False)


def _plain_options(options: SweepOptions) -> dict[str, object]:
    return {
        "families": sorted(options.families),
        "limit": options.limit,
        "retry": sorted(options.retry),
        "dtype": options.dtype or "auto",
        "jobs": options.limits.workers(),
        "timeout": options.limits.timeout,
        "memory": options.limits.worker_memory(),
    }
