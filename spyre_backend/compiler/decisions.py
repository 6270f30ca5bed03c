"""Decisions that the compiler takes one by one, and could take otherwise: what diagnosis bisects over.

Inside :func:`following`, every decision is written down, and those that the caller declines are taken the other way:

=========== ==================================================== ====================================================
kind        taken                                                declined
=========== ==================================================== ====================================================
pass        an optimisation of :mod:`~.settings` runs            it is switched off
resident    a temporary stays in the scratchpads (D4.5)          it goes through device memory
bundle      an operation joins the bundle before it (D4.6)       it begins a bundle of its own
binding     a launch binds an argument that is a view (D3.4)     it gets a copy of the view's elements
layout      an operation reads through a view, or another order  it reads a contiguous copy, made by the copy engine
operation   an operation runs on the device                      the host computes it
=========== ==================================================== ====================================================

Outside of it nothing is written down and everything is taken. Keys are made of the order of the graphs and of names
inside them, so that one decision has the same key in every run of the same program.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["pass", "resident", "bundle", "binding", "layout", "operation"]
KINDS: tuple[Kind, ...] = ("pass", "resident", "bundle", "binding", "layout", "operation")
"""From what changes a program least to what changes it most."""


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision: `key` tells it from all others of a run, `what` says it in words."""

    kind: Kind
    key: str
    what: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.what}"


@dataclass(slots=True)
class Followed:
    """What was decided since the block was entered.

    Attributes:
        declined: keys of decisions that are taken the other way.
        taken: all decisions, in order, the declined ones included.
        graphs: graphs compiled so far.
        on_host: calls of eager kernels that belong to declined operations.
    """

    declined: Collection[str]
    serial: int
    taken: dict[str, Decision] = field(default_factory=dict)
    graphs: int = 0
    on_host: set[Hashable] = field(default_factory=set)


_followed: Followed | None = None
_serial = 0


@contextmanager
def following(declined: Collection[str] = ()) -> Iterator[Followed]:
    """Write the decisions of the block down, and decline some; what is compiled inside is never taken from a cache.

    Functions that Dynamo has compiled already keep their program: call ``torch._dynamo.reset()`` first.
    """
    global _followed, _serial
    _serial += 1
    before, _followed = _followed, Followed(declined, _serial)
    try:
        yield _followed
    finally:
        _followed = before


@contextmanager
def ignored() -> Iterator[None]:
    """Take every decision of the block as usual, unwritten: the program of one eager call is one decision."""
    global _followed
    before, _followed = _followed, None
    try:
        yield
    finally:
        _followed = before


def active() -> Followed | None:
    """The innermost :func:`following`, None outside."""
    return _followed


def key() -> str:
    """Part of the keys of compile caches; empty when nobody follows."""
    return "" if _followed is None else f"followed-{_followed.serial}"


def take(kind: Kind, name: str, what: Callable[[], str]) -> bool:
    """Whether a decision is taken as usual.

    Args:
        kind: see the table of the module.
        name: tells it from the others of its kind in the graph under way.
        what: the decision in words.
    """
    if _followed is None:
        return True
    made = f"{kind}/{_followed.graphs}/{name}"
    if made not in _followed.taken:
        _followed.taken[made] = Decision(kind, made, what())
    return made not in _followed.declined


def call(op: object, shapes: Sequence[tuple[int, ...]]) -> Hashable:
    """What tells a call of an eager kernel from others: the operator and the shapes of its tensors."""
    return str(op), tuple(shapes)


def on_host(op: object, shapes: Sequence[tuple[int, ...]]) -> bool:
    """Whether an eager kernel is asked for a declined operation, which the host computes."""
    return _followed is not None and call(op, shapes) in _followed.on_host


__all__ = ["KINDS", "Decision", "Followed", "Kind", "active", "call", "following", "ignored", "key", "on_host", "take"]
