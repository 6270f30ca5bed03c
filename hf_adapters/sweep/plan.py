"""Which structures a sweep has to try: deduplicated, highest impact first, without those that are settled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hf_adapters.errors import HfAdaptersError
from hf_adapters.store.records import CurrentVerdict, StructureWork
from hf_adapters.sweep.fingerprint import Fingerprint
from hf_adapters.sweep.messages import Task
from hf_adapters.sweep.options import SweepOptions
from hf_adapters.sweep.record import BASE

if TYPE_CHECKING:
    from hf_adapters.store.store import Store

BUNDLED = "bundled"


class UnknownFamily(HfAdaptersError, ValueError):
    """`--only` names a family that no structure of the ranking has."""

    code = "E_UNKNOWN_FAMILY"


class UnknownSource(HfAdaptersError, ValueError):
    """`--source` names a ranking that the database does not hold."""

    code = "E_UNKNOWN_SOURCE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What one sweep does.

    Attributes:
        source: name of the ranking.
        date: its date.
        rows: current state of every model of ranks 1 to top.
        todo: structures to try, in this order.
        structures: number of structures that the ranking needs.
        settled: structures whose verdict still stands.
        left_out: structures that need a verdict but are outside `--only` or `--limit`.
    """

    source: str
    date: str
    rows: list[CurrentVerdict]
    todo: list[StructureWork]
    structures: int
    settled: int
    left_out: int

    def tasks(self, release: str, dtype: str | None = None) -> list[Task]:
        """One task for each structure to try; `dtype` as in `SweepOptions`."""
        return [task_for(item, release, dtype) for item in self.todo]


def task_for(item: StructureWork, release: str, dtype: str | None = None) -> Task:
    """The task that judges a structure; its payload holds all that the judge needs."""
    payload = {
        "signature": item.signature,
        "profile": dict(item.profile),
        "release": release,
        "dtype": dtype,
        "models": item.models,
        "downloads": item.downloads,
    }
    return Task(key=item.signature, label=str(item.profile.get("profile_id", item.signature)), payload=payload)


def choose_source(store: Store, wanted: str | None) -> str:
    """The ranking to sweep: the one asked for, else the largest that was pulled or imported, else the bundled snapshot.

    Raises:
        UnknownSource: the database does not hold the one asked for.
    """
    held = {name: count for name, count in store.sources().items() if name != BUNDLED}
    if wanted is None:
        return max(held, key=lambda name: held[name]) if held else BUNDLED
    if wanted != BUNDLED and wanted not in held:
        known = ", ".join(sorted({BUNDLED, *held}))
        raise UnknownSource(
            f"the database holds no ranking {wanted!r} (it has: {known}); run hf-adapters corpus pull or import first"
        )
    return wanted


def load(store: Store, options: SweepOptions) -> tuple[str, str]:
    """Make sure that the ranking is in the store; its name and date."""
    from hf_adapters.corpus import load_profiles, load_ranking

    source = choose_source(store, options.source)
    if source == BUNDLED:
        ranking = load_ranking(options.top)
        store.put_ranking(ranking, load_profiles(), release=options.release)
        return source, ranking.date
    rows = store.current(release=options.release, source=source, top=options.top)
    # The ranking may have been written for another release, under which other profiles share a structure.
    unplaced = {row.model.profile_id for row in rows if row.signature is None} - {None}
    if unplaced:
        store.put_profiles(
            [found for name, found in load_profiles().items() if name in unplaced], release=options.release
        )
    return source, (rows[0].model.source_date or "unknown") if rows else "unknown"


def plan(store: Store, options: SweepOptions, identity: Fingerprint, source: str, date: str) -> Plan:
    """Decide what is to be done.

    Raises:
        UnknownFamily: `options.families` has one that no structure of the ranking is of.
    """
    rows = store.current(release=options.release, source=source, top=options.top)
    structures = store.structures(release=options.release, source=source, top=options.top)
    known = {item.family for item in structures}
    if unknown := sorted(options.families - known):
        raise UnknownFamily(
            f"no structure of the ranking is of family {', '.join(unknown)}: choose among {', '.join(sorted(known))}"
        )
    pending = store.pending(
        release=options.release,
        source=source,
        fingerprint=_wanted_fingerprints(rows, identity),
        top=options.top,
        retry=options.retry,
    )
    todo = [item for item in pending if not options.families or item.family in options.families][: options.limit]
    return Plan(
        source=source,
        date=date,
        rows=rows,
        todo=todo,
        structures=len(structures),
        settled=len(structures) - len(pending),
        left_out=len(pending) - len(todo),
    )


def _wanted_fingerprints(rows: list[CurrentVerdict], identity: Fingerprint) -> dict[str, str]:
    """The fingerprint with which each structure counts as settled.

    A model that is accepted unpatched does not depend on the adapters, so its verdict survives a change of theirs.
    """
    wanted = {row.signature: identity.value for row in rows if row.signature is not None}
    for row in rows:
        evidence = row.evidence
        if row.signature and evidence and evidence.verdict == "native" and evidence.details.get(BASE) == identity.base:
            wanted[row.signature] = evidence.fingerprint
    return wanted
