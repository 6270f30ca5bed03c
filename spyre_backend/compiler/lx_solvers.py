"""Where scratchpad residents lie: solvers behind one interface (D4.5), and what a solution has to fulfil.

Nothing is evicted: an item has its bytes from its first to its last moment.  Two items that live at the same time do
not overlap, unless one takes the place of the other: it begins in the moment in which the other ends, at the same
address.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from spyre_backend.compiler.settings import Planner

ALIGNMENT = 128
"""Bytes of a stick: everything in the scratchpad consists of whole sticks (D4.5)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """Bytes on every core from moment ``first`` to moment ``last``, both included.

    ``replaces`` names items of the same size whose place this one may take, if they end when it begins.
    """

    name: str
    first: int
    last: int
    num_bytes: int
    replaces: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Items that stay all together or not at all, and the bytes of device memory traffic that they save."""

    name: str
    items: tuple[Item, ...]
    saved: int


class Solver(Protocol):
    """Chooses which groups stay, and the address of each of their items."""

    def __call__(self, groups: Sequence[Group], capacity: int) -> dict[str, int]:
        """Byte address of each item that stays; ``capacity`` in bytes."""


def solver(planner: Planner) -> Solver:
    """The solver of this name; raises SettingError if it needs a library that is not installed."""
    if planner == "greedy":
        return greedy
    from spyre_backend.compiler import scratchpad_cpsat

    return scratchpad_cpsat.load()


def greedy(groups: Sequence[Group], capacity: int) -> dict[str, int]:
    """First fit in the order given: every group stays for which there is room beside those before it."""
    placed: dict[str, tuple[Item, int]] = {}
    for group in groups:
        added = []
        for item in group.items:
            address = _first_fit(item, placed, capacity)
            if address is None:
                break
            placed[item.name] = (item, address)
            added.append(item.name)
        if len(added) < len(group.items):
            for name in added:
                del placed[name]
    return {name: address for name, (_, address) in placed.items()}


def saved_bytes(groups: Sequence[Group], addresses: dict[str, int]) -> int:
    """Device memory traffic that a solution saves, in bytes."""
    return sum(group.saved for group in groups if group.items[0].name in addresses)


def meet(a: Item, b: Item) -> bool:
    """Whether both live at some moment."""
    return a.first <= b.last and b.first <= a.last


def may_replace(a: Item, b: Item) -> bool:
    """Whether one of the two may take the place of the other."""
    return _succeeds(a, b) or _succeeds(b, a)


def _succeeds(later: Item, earlier: Item) -> bool:
    return earlier.name in later.replaces and earlier.last == later.first and earlier.num_bytes == later.num_bytes


def collides(item: Item, address: int, other: Item, other_address: int) -> bool:
    """Whether two placed items overlap in a way that is not allowed."""
    if not meet(item, other) or (address == other_address and may_replace(item, other)):
        return False
    return address < other_address + other.num_bytes and other_address < address + item.num_bytes


def _first_fit(item: Item, placed: dict[str, tuple[Item, int]], capacity: int) -> int | None:
    alive = [(other, address) for other, address in placed.values() if meet(item, other)]
    inherited = [address for other, address in alive if may_replace(item, other)]
    gaps = sorted({0, *(address + other.num_bytes for other, address in alive)})
    for address in (*inherited, *gaps):
        if address + item.num_bytes <= capacity and not any(collides(item, address, *other) for other in alive):
            return address
    return None
