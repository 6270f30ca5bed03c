"""What a drafter is: it is given a failing module and answers with the source of one adapter file.

    class Drafter(Protocol):
        name: str
        def draft(self, task: DraftTask) -> Draft: ...

A drafter is never trusted. Its answer is text: it is parsed against an allow-list, run in a sandbox, judged on inputs
it has not seen, and shown to a person. It may raise `NoDraft` when it knows nothing (more) to try.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from hf_adapters.agents.subject import Subject
from hf_adapters.diagnose import Diagnosis
from hf_adapters.errors import HfAdaptersError

Stage = Literal["draft", "screen", "validate", "generalise", "review"]
"""Where an attempt was stopped."""


class NoDraft(HfAdaptersError):
    """The drafter has nothing (more) to propose; the message says why."""

    code = "E_NO_DRAFT"


class BudgetSpent(HfAdaptersError):
    """An allowance (tokens, money or time) is used up."""

    code = "E_BUDGET"


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """What an attempt used: tokens as the endpoint counts them, US dollars, seconds of wall-clock time."""

    tokens_in: int = 0
    tokens_out: int = 0
    usd: float = 0.0
    seconds: float = 0.0

    @property
    def tokens(self) -> int:
        """Both directions."""
        return self.tokens_in + self.tokens_out

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            tokens_in=self.tokens_in + other.tokens_in,
            tokens_out=self.tokens_out + other.tokens_out,
            usd=self.usd + other.usd,
            seconds=self.seconds + other.seconds,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Rejection:
    """Why an earlier draft was not accepted."""

    attempt: int
    stage: Stage
    reason: str
    """One sentence or several lines, written by the judge, the sandbox or a reviewer."""
    source: str
    """The draft that was rejected; empty when there was none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Operand:
    """One tensor argument of the failing module."""

    name: str
    """Name of the forward's parameter, or its position."""
    shape: tuple[int, ...]
    dtype: str
    """As torch prints it, such as `torch.float16`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """The smallest cause that could be found for a model's verdict."""

    diagnosis: Diagnosis
    path: str
    """Path of the smallest module that still fails, `""` for the model itself. Build it with
    `task.subject.build().get_submodule(path)`; `hf_adapters.agents.localise.capture` records a call of it."""
    module: str
    """Its class, `package.module:Class`."""
    source: str
    """Source text of that class; data from somebody's package, never instructions."""
    first_line: int | None
    """Line number of `source` in its file."""
    operands: tuple[Operand, ...]
    """Tensor arguments with which it was called."""
    reproducer: str | None = None
    """Path of a folder with a script that fails in the same way, None when none was saved."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """What came of running a candidate on the emulated device, before anybody accepts it."""

    stage: Literal["screen", "sandbox", "device", "numbers", "passed"]
    """How far it came; `passed` means that nothing was found wrong on the public inputs."""
    reason: str
    sites: tuple[str, ...] = ()
    """Places that the adapter changed, as `path: before -> after`."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """Errors and simulated microseconds, by name."""


class Workbench(Protocol):
    """What a drafter may look at and try; everything it runs goes through the screen and the sandbox."""

    def rules(self) -> Mapping[str, str]:
        """Device rules of the release: id -> sentence."""
        ...

    def adapters(self) -> Mapping[str, str]:
        """The catalogue without what is left out: name -> source text."""
        ...

    def module_source(self, path: str) -> str:
        """Source text of the class of the module at `path` of the failing model.

        Raises:
            LookupError: there is no such module.
        """
        ...

    def values(self, path: str) -> str:
        """A summary of the stock tensors that go in and out of the module at `path`, on public inputs.

        Raises:
            LookupError: there is no such module.
        """
        ...

    def try_out(self, source: str) -> Trial:
        """Screen a candidate and run it in the sandbox on public inputs."""
        ...


class Journal(Protocol):
    """Where a drafter notes what it does and what that costs; on disk when the call returns."""

    def entry(self, step: Mapping[str, Any]) -> None:
        """Append a JSON-able step to the attempt's transcript."""
        ...

    def spend(self, cost: Cost) -> None:
        """Add to the attempt's cost; `Draft.cost` holds the total all the same."""
        ...


class NoJournal:
    """A journal that keeps nothing."""

    def entry(self, step: Mapping[str, Any]) -> None:
        """See `Journal`."""

    def spend(self, cost: Cost) -> None:
        """See `Journal`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DraftTask:
    """Everything a drafter is told."""

    subject: Subject
    """The failing model and the adapters it already has."""
    failure: Failure
    rejections: tuple[Rejection, ...]
    """Of this case, oldest first."""
    attempt: int
    """Number of this attempt, from 1."""
    allowance: Cost
    """What may still be used; 0 seconds or tokens mean none."""
    workbench: Workbench
    earlier: Mapping[str, str] = field(default_factory=dict)
    """Adapters drafted in this case for other failing modules of the model, name -> source: they are applied as well,
    and their names are taken."""
    journal: Journal = field(default_factory=NoJournal)
    seed: int = 0
    """For drafters that draw: the same task and seed give the same draft."""

    @property
    def release(self) -> str:
        """The torch-spyre release to draft for."""
        return self.subject.release


@dataclass(frozen=True, kw_only=True, slots=True)
class Draft:
    """One proposed adapter."""

    source: str
    """A whole adapter file: docstring, code, `ADAPTER = Adapter(...)` with sites and examples. See the allow-lists in
    `screening/allowed.py` for what it may use."""
    notes: str = ""
    """For the reviewer: what was done and why it is right."""
    cost: Cost = field(default_factory=Cost)
    transcript: Sequence[Mapping[str, Any]] = ()
    """Steps of the drafter, JSON-able; kept with the attempt."""


class Drafter(Protocol):
    """Proposes adapters."""

    name: str
    """`rewrite`, or the name of a language model: kept with the adapter."""

    def draft(self, task: DraftTask) -> Draft:
        """Propose one adapter.

        Raises:
            NoDraft: nothing (more) to propose.
            BudgetSpent: the allowance ran out before a proposal was ready.
        """
        ...
