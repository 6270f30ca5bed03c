"""Controls: each adapter is left out in turn, and models must be lost, otherwise it is not needed.

A structure that a sweep accepted with an adapter is built small and judged twice, with all adapters and with all but
this one. Only a structure that passes with all of them can be lost. One that passes layer by layer without the adapter
is also compiled whole, twice again: what the host prepares ahead of the layers has to lower there (see `whole.py`).
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import nn

    from hf_adapters.validation.types import Validation
    from spyre_backend.errors import SpyreUnsupported

ACCEPTED = ("native", "adapted")
SMALL = 30_000_000
"""Parameter elements of a structure as it is built here: two layers of a base model and a small vocabulary."""

Say = Callable[[str], None]


class Row(Protocol):
    """What is read of a ranking's row with its current verdict: `hf_adapters.report.rows.ModelRow`."""

    @property
    def rank(self) -> int:
        """Position in the ranking, from 1."""
        ...

    @property
    def counted(self) -> bool:
        """Whether an accepted verdict counts as coverage."""
        ...

    @property
    def structure(self) -> str | None:
        """Structural signature."""
        ...

    @property
    def profile_id(self) -> str | None:
        """Profile that was judged for the model."""
        ...

    @property
    def family(self) -> str:
        """`model_type` of the config."""
        ...

    @property
    def adapters(self) -> tuple[str, ...]:
        """Names of the adapters that were applied."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One structure that was accepted with an adapter.

    Attributes:
        profile_id: bundled profile that describes it.
        family: `model_type`.
        models: accepted models of this structure.
        adapters: all adapters that were applied to it.
    """

    profile_id: str
    family: str
    models: int
    adapters: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """What leaving out one adapter did to one structure.

    Attributes:
        adapter: the adapter that was left out.
        candidate: the structure.
        verdict: the verdict without it; "unusable" when the small structure does not even pass with all adapters.
        rule: the device rule that stopped it, if it was refused.
        reason: one sentence for people.
        whole: it was lost only when the model was compiled whole.
    """

    adapter: str
    candidate: Candidate
    verdict: str
    rule: str | None
    reason: str
    whole: bool = False

    @property
    def lost(self) -> bool:
        """Whether the structure is not accepted without the adapter."""
        return self.verdict not in (*ACCEPTED, "unusable")


def candidates(rows: Iterable[Row]) -> dict[str, list[Candidate]]:
    """Accepted structures by the adapters that were applied to them.

    One structure of each family comes first, then the second ones, those with most models ahead: what an adapter is
    needed for differs between families more than within one.
    """
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if row.counted and row.profile_id is not None and row.structure is not None:
            groups.setdefault(row.structure, []).append(row)
    found: dict[str, list[Candidate]] = {}
    for members in sorted(groups.values(), key=lambda group: (-len(group), group[0].rank)):
        first = members[0]
        assert first.profile_id is not None
        candidate = Candidate(
            profile_id=first.profile_id, family=first.family, models=len(members), adapters=first.adapters
        )
        for name in candidate.adapters:
            found.setdefault(name, []).append(candidate)
    return {name: _families_in_turn(group) for name, group in found.items()}


def _families_in_turn(group: list[Candidate]) -> list[Candidate]:
    seen: Counter[str] = Counter()
    turns = []
    for candidate in group:
        turns.append(seen[candidate.family])
        seen[candidate.family] += 1
    return [candidate for _, candidate in sorted(zip(turns, group, strict=True), key=lambda pair: pair[0])]


def run_controls(
    found: dict[str, list[Candidate]],
    names: Sequence[str],
    *,
    release: str,
    structures: int = 1,
    say: Say = lambda _: None,
) -> list[Control]:
    """Leave out each adapter in turn on its structures, until one of them is lost.

    Args:
        found: accepted structures by adapter, see `candidates`.
        names: adapters to leave out.
        release: torch-spyre release to emulate.
        structures: at most so many of each adapter.
        say: gets one line for each control.
    """
    controls = []
    for name in names:
        for candidate in found.get(name, ())[:structures]:
            control = _control(name, candidate, release)
            how = " when it is compiled whole" if control.whole else ""
            say(f"{name} left out of {candidate.profile_id}: {control.verdict}{how}")
            controls.append(control)
            if control.lost:
                break
    return controls


def _control(adapter: str, candidate: Candidate, release: str) -> Control:
    whole = _judge_profile(candidate.profile_id, None, release)
    if whole.verdict not in ACCEPTED:
        return _as_control(adapter, candidate, whole, verdict="unusable")
    control = _as_control(adapter, candidate, _judge_profile(candidate.profile_id, adapter, release))
    if control.lost:
        return control
    refused = _refused_whole(candidate.profile_id, adapter, release)
    if refused is None or _refused_whole(candidate.profile_id, None, release) is not None:
        return control
    return replace(control, verdict="uncovered", rule=refused.rule, reason=str(refused), whole=True)


def _as_control(adapter: str, candidate: Candidate, judged: Validation, verdict: str | None = None) -> Control:
    return Control(
        adapter=adapter,
        candidate=candidate,
        verdict=verdict or judged.verdict,
        rule=judged.rule,
        reason=judged.reason,
    )


@functools.cache
def _judge_profile(profile_id: str, without: str | None, release: str) -> Validation:
    from hf_adapters.corpus.build import build_model
    from hf_adapters.corpus.profiles import load_profiles

    built = build_model(load_profiles()[profile_id], max_elements=SMALL, release=release)
    return judge(built.model, without=without, release=release)


@functools.cache
def _refused_whole(profile_id: str, without: str | None, release: str) -> SpyreUnsupported | None:
    import hf_adapters
    from hf_adapters.corpus.build import build_model
    from hf_adapters.corpus.profiles import load_profiles
    from hf_adapters.sweep.whole import refusal

    built = build_model(load_profiles()[profile_id], max_elements=SMALL, release=release)
    names = [adapter.name for adapter in hf_adapters.catalogue() if adapter.name != without]
    return refusal(built.model, names, release)


def judge(model: nn.Module, *, without: str | None, release: str, **options: Any) -> Validation:
    """Judge a stock model on the device with all adapters but one.

    Args:
        model: as for `hf_adapters.validate`.
        without: name of the adapter to leave out; None leaves out none.
        release: torch-spyre release to emulate.
        **options: further ones of `hf_adapters.validate`.
    """
    import hf_adapters
    from hf_adapters.validation.runners import Device

    names = [adapter.name for adapter in hf_adapters.catalogue() if adapter.name != without]
    return hf_adapters.validate(
        model,
        release=release,
        reference="inline",
        patch=functools.partial(hf_adapters.patched, only=names, release=release),
        runner=Device(adapters=names, release=release),
        try_native=False,
        **options,
    )
