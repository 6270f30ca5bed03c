"""Which models fail, which resemble them, and which pass and must go on passing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from hf_adapters.agents.protocol import Failure
from hf_adapters.agents.subject import Subject
from hf_adapters.errors import HfAdaptersError
from hf_adapters.store import ACCEPTED, Store
from hf_adapters.store.records import CurrentVerdict, StructureWork
from hf_adapters.sweep.work import budget_for

WORKED_ON = ("uncovered", "mismatch", "fallback")
"""Verdicts that an adapter can change."""


class UnknownStructure(HfAdaptersError, ValueError):
    """There is no such structure to work on."""

    code = "E_UNKNOWN_STRUCTURE"


class Portfolio(Protocol):
    """The models that a case is about."""

    def find(self, key: str) -> Subject:
        """One subject by its key, or by a name that people know it by.

        Raises:
            UnknownStructure: there is none.
        """
        ...

    def failing(self) -> Sequence[Subject]:
        """Failing subjects, highest impact first."""
        ...

    def siblings(self, subject: Subject, failure: Failure) -> Sequence[Subject]:
        """Other subjects that fail for the same rule."""
        ...

    def passing(self) -> Sequence[Subject]:
        """Subjects that passed before: the regression set."""
        ...


@dataclass(frozen=True, kw_only=True)
class ListPortfolio:
    """Subjects given as lists (benchmarks, tests); impact decides the order."""

    subjects: tuple[Subject, ...]
    related: tuple[Subject, ...] = ()
    regression: tuple[Subject, ...] = ()

    def find(self, key: str) -> Subject:
        """See `Portfolio`."""
        for subject in self.subjects:
            if key in (subject.key, subject.label):
                return subject
        raise UnknownStructure(f"no structure {key!r}; there are {', '.join(s.key for s in self.subjects)}")

    def failing(self) -> Sequence[Subject]:
        """See `Portfolio`."""
        return sorted(self.subjects, key=lambda s: -s.impact)

    def siblings(self, subject: Subject, failure: Failure) -> Sequence[Subject]:
        """See `Portfolio`."""
        return [s for s in self.related if s.key != subject.key]

    def passing(self) -> Sequence[Subject]:
        """See `Portfolio`."""
        return self.regression


@dataclass(frozen=True, kw_only=True)
class StorePortfolio:
    """The structures of a ranking, by their current verdicts."""

    store: Store
    release: str
    source: str
    top: int | None = None

    def find(self, key: str) -> Subject:
        """See `Portfolio`; a signature, a profile id or a model id."""
        found = self.store.find(key, release=self.release)
        signature = next((row.signature for row in found if row.signature), None)
        works = {work.signature: work for work in self._structures()}
        if signature is None or signature not in works:
            raise UnknownStructure(
                f"no structure of the ranking is called {key!r}; "
                "give a signature, a profile id or a model id, as hf-adapters show prints them"
            )
        return self._subject(works[signature])

    def failing(self) -> Sequence[Subject]:
        """See `Portfolio`."""
        return self._with(lambda row: row.verdict in WORKED_ON)

    def siblings(self, subject: Subject, failure: Failure) -> Sequence[Subject]:
        """See `Portfolio`."""
        rule = failure.diagnosis.rule

        def same(row: CurrentVerdict) -> bool:
            return row.evidence is not None and row.verdict in WORKED_ON and row.evidence.rule == rule

        return [found for found in self._with(same) if found.key != subject.key]

    def passing(self) -> Sequence[Subject]:
        """See `Portfolio`."""
        return self._with(lambda row: row.verdict in ACCEPTED)

    def _structures(self) -> Sequence[StructureWork]:
        return self.store.structures(release=self.release, source=self.source, top=self.top)

    def _with(self, wanted: Callable[[CurrentVerdict], bool]) -> list[Subject]:
        rows = self.store.current(release=self.release, source=self.source, top=self.top)
        signatures = {row.signature for row in rows if row.signature and not row.stand_in and wanted(row)}
        works = (work for work in self._structures() if work.signature in signatures)
        return [self._subject(work) for work in works]

    def _subject(self, work: StructureWork) -> Subject:
        return Subject(
            key=work.signature,
            label=str(work.profile.get("profile_id", work.signature)),
            release=self.release,
            kind="profile",
            profile=dict(work.profile),
            max_elements=budget_for(work.models, work.downloads),
            models=work.models,
            downloads=work.downloads,
        )


def without(subjects: Iterable[Subject], adapters: tuple[str, ...]) -> tuple[Subject, ...]:
    """The same subjects with these adapters left out."""
    return tuple(replace(subject, without=adapters) for subject in subjects)
