"""The drafter `rewrite`: needs no network and no model, and the same task gives the same draft."""

from __future__ import annotations

import time
import warnings
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from hf_adapters.agents.protocol import BudgetSpent, Cost, Draft, DraftTask, NoDraft
from hf_adapters.agents.rewrite.calls import Called, bare, recorded
from hf_adapters.agents.rewrite.emit import Emitted, emit
from hf_adapters.agents.rewrite.modules import changed_inside, openable
from hf_adapters.agents.rewrite.search import Found, Search
from hf_adapters.agents.rewrite.trace import Untraceable, trace

_COMPILATIONS = 40
"""Candidates of one draft that the compiler is asked about."""
_TRIALS = 3
"""Forms that are tried on the emulated device before the best is handed in."""


class RewriteDrafter:
    """Searches a rule book of equalities for the cheapest form of the failing module that lowers."""

    name = "rewrite"

    def __init__(self, *, compilations: int = _COMPILATIONS, trials: int = _TRIALS) -> None:
        """`trials` of 0 hands the cheapest form in without trying it."""
        self.compilations, self.trials = compilations, trials

    def draft(self, task: DraftTask) -> Draft:
        """See `Drafter`."""
        steps: list[Mapping[str, Any]] = []

        def say(text: str) -> None:
            steps.append({"step": "search", "text": text})
            task.journal.entry(steps[-1])

        started, limit = time.monotonic(), task.allowance.seconds
        deadline = started + limit if limit else float("inf")
        kept: tuple[Emitted, Found, list[Found]] | None = None
        for found in self._search(task, deadline, say):
            drafts = self._written(task, found, say)
            best = self._best(task, drafts, say)
            if best is not None:
                kept = (*best, found)
                break
            if drafts and kept is None:
                kept = (*drafts[0], found)
        if kept is None and time.monotonic() >= deadline:
            raise BudgetSpent(f"no form was found in {limit:.0f} seconds")
        if kept is None:
            raise NoDraft("no form that the rule book reaches lowers, or each was rejected or cannot be written")
        emitted, form, others = kept
        return Draft(
            source=emitted.source,
            notes=_notes(form, others),
            cost=Cost(seconds=time.monotonic() - started),
            transcript=steps,
        )

    def _search(self, task: DraftTask, deadline: float, say: Any) -> Iterator[list[Found]]:
        """Forms of the failing module that lower, then of the modules around it."""
        for path in _paths(task):
            try:
                found = self._of_module(task, path, deadline, say)
            except LookupError as error:
                say(f"{path or 'the model'}: {error}")
                continue
            if found:
                yield found
            if time.monotonic() >= deadline:
                return

    def _of_module(self, task: DraftTask, path: str, deadline: float, say: Any) -> list[Found]:
        """Forms of the module as other adapters leave it, and of the one without what they do there."""
        called = recorded(task.subject, path)
        found, inside = self._forms(task, path, called, (), deadline, say)
        variants = [(called, openable(called.module))] if inside else []
        stock = None if found else bare(called, task.subject, path)
        if stock is not None:
            # What others changed inside is closed to the rules, so the stock module has a better chance.
            at = 0 if changed_inside(called.module) else len(variants)
            variants.insert(at, (stock, openable(stock.module)))
        for form, opened in variants:
            if found or time.monotonic() >= deadline:
                break
            if opened or form is stock:
                found, _ = self._forms(task, path, form, opened, deadline, say)
        return found

    def _forms(
        self, task: DraftTask, path: str, called: Called, opened: Collection[str], deadline: float, say: Any
    ) -> tuple[list[Found], bool]:
        """Forms of one module that lower, and whether the refused operation is inside one of its children."""
        what = f", with {len(opened)} modules inside it" if opened else ""
        what += "" if called.module is called.placed else ", without what other adapters do there"
        name = f"{path or 'the model'} ({type(called.module).__name__})"
        try:
            traced = trace(called.module, called.calls, opened, called.placed)
        except Untraceable as error:
            say(f"{name}{what}: {error}")
            return [], True
        say(f"{name}: {len(list(traced.graph.nodes))} operations{what}")
        if traced.foreign:
            say(f"it reads what another adapter put there: {', '.join(traced.foreign)}")
            return [], False
        search = Search(traced=traced, release=task.release, compilations=self.compilations, deadline=deadline, say=say)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return search.run(), search.inside

    def _written(self, task: DraftTask, found: list[Found], say: Any) -> list[tuple[Emitted, Found]]:
        from hf_adapters.agents.screening.policy import screen

        model = task.subject.build()
        drafts: list[tuple[Emitted, Found]] = []
        rejected = {r.source.strip() for r in task.rejections}
        broken = task.failure.diagnosis.rule
        for form in found:
            rules = tuple(dict.fromkeys((*((broken,) if broken else ()), *form.broken)))
            try:
                emitted = emit(
                    form, model, rules=rules, release=task.release, path=task.failure.path, taken=set(task.earlier)
                )
            except ValueError as error:
                say(f"{'; '.join(form.candidate.steps)}: {error}")
                continue
            screened = screen(emitted.source)
            if not screened.ok:
                say("the screen refuses it: " + "; ".join(screened.violations[:5]))
            elif emitted.source.strip() not in rejected:
                drafts.append((emitted, form))
        return drafts

    def _best(self, task: DraftTask, drafts: list[tuple[Emitted, Found]], say: Any) -> tuple[Emitted, Found] | None:
        """The first of the cheapest few that passes on the public inputs; the cheapest when none is tried."""
        if not self.trials and drafts:
            return drafts[0]
        for emitted, form in drafts[: self.trials]:
            trial = task.workbench.try_out(emitted.source)
            say(f"{emitted.name} on the public inputs: {trial.stage}, {trial.reason}")
            if trial.stage == "passed":
                return emitted, form
        return None


def _paths(task: DraftTask) -> list[str]:
    """The failing module, then the modules around it."""
    parts = task.failure.path.split(".") if task.failure.path else []
    return [".".join(parts[:end]) for end in range(len(parts), 0, -1)] or [""]


def _notes(form: Found, found: list[Found]) -> str:
    lines = ["Equalities applied, each compared with the stock form in float64:"]
    lines += [f"- {step}" for step in form.candidate.steps]
    lines.append(f"Simulated time of the module: {form.us:.2f} us; forms that lower: {len(found)}.")
    return "\n".join(lines)
