"""Restickify placement by search: the options that together cost the least time in moves (D2.6, D7.3).

Upstream places moves with a dynamic program of beam width 200 over the sticks of tensors (D2.6).  Here, operations are
taken in order; a state is the sticks of the tensors that are still to be read and the moves that are still of use, and
of states that agree only the cheapest lives on.  Whatever costs more than the operation-by-operation rule of D2.6 is
dropped, so the result is never worse than that rule, and it is the optimum over :meth:`Choices.options` unless a graph
has more than :func:`width_for` states at once, when only the cheapest go on (``Plan.exact`` is then False).  Moves that
every plan needs, such as those of weights in another stick, are paid for before the search begins.

What the rule refuses is searched too, but among the sticks that the rule would consider: demanding a layout only to
make an access legal is what the device does not do (D6.11).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from spyre_backend.compiler.errors import CompileRefusal
from spyre_backend.compiler.graph import operands
from spyre_backend.compiler.restickify_choices import Choices
from spyre_backend.compiler.restickify_cost import padded_bytes
from spyre_backend.compiler.restickify_options import Move, Option

WORK = 16_384
"""States that a search may keep in all; transformer layers need fewer than a hundred."""

Cost = tuple[int, int, int]
"""Picoseconds of moves, number of moves, device bytes of the results: compared in this order."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One option for each operation, what its moves cost, and what the operation-by-operation rule would have cost
    (None if that rule finds no legal placement)."""

    options: tuple[Option, ...]
    cost: Cost
    by_rule: Cost | None
    states: int
    exact: bool


@dataclass(slots=True)
class State:
    """A partial plan: sticks of the tensors that later operations read, moves they may use, cost so far."""

    sticks: dict[str, int | None]
    moved: frozenset[Move]
    cost: Cost
    option: Option | None = None
    before: State | None = None

    def options(self) -> tuple[Option, ...]:
        """The options taken, in order."""
        found: list[Option] = []
        state: State | None = self
        while state is not None and state.option is not None:
            found.append(state.option)
            state = state.before
        return tuple(reversed(found))


class _Walk:
    """Steps from state to state along the operations of a graph."""

    def __init__(self, choices: Choices) -> None:
        self.choices = choices
        self.ops = choices.ops
        self.last_read: dict[str, int] = {}
        for index, op in enumerate(self.ops):
            for operand in operands(op):
                self.last_read[operand.tensor] = index
        self.needed = choices.needed()

    def start(self) -> State:
        """Before the first operation, with the moves that every plan needs paid for."""
        return State({}, frozenset(), (sum(m.cost for m in self.needed), len(self.needed), 0))

    def step(self, index: int, state: State, option: Option) -> State:
        """The state after operation ``index`` has run as ``option`` says."""
        op = self.ops[index]
        name = op.output.tensor
        new = {move for move in option.moves if move not in state.moved and move not in self.needed}
        time = sum(move.cost for move in new) + option.extra
        buffer = self.choices.graph.buffers[name]
        room = padded_bytes(buffer.size, buffer.eps, option.layout)
        moved = {m for m in (*state.moved, *new) if m.tensor != name and self.last_read[m.tensor] > index}
        if option.gives is not None and self.last_read.get(name, -1) > index:
            moved.add(option.gives)
        sticks = {t: s for t, s in state.sticks.items() if self.last_read[t] > index}
        if name not in self.choices.pinned and self.last_read.get(name, -1) > index:
            sticks[name] = option.layout
        cost = (state.cost[0] + time, state.cost[1] + len(new) + option.through, state.cost[2] + room)
        return State(sticks, frozenset(moved), cost, option, state)


def by_rule(choices: Choices) -> State:
    """The placement that the practical rule of D2.6 gives, operation by operation.

    Raises:
        CompileRefusal: an operation finds no legal placement.
    """
    walk = _Walk(choices)
    state = walk.start()
    for index in range(len(choices.ops)):
        options = [o for o in choices.options(index, state.sticks) if o.rank is not None]
        state = walk.step(index, state, min(options, key=lambda o: o.rank or (0, 0)))
    return state


def width_for(operations: int) -> int:
    """States kept at each operation of a graph: fewer in graphs of many operations, so that the work stays bounded."""
    return max(32, min(512, WORK // max(operations, 1)))


def search(choices: Choices, width: int | None = None) -> Plan:
    """The cheapest plan for the graph of ``choices``; ``width`` overrides :func:`width_for`.

    Raises:
        CompileRefusal: there is no legal placement; the refusal is the one of the rule of D2.6.
    """
    width = width_for(len(choices.ops)) if width is None else width
    try:
        rule = by_rule(choices)
    except CompileRefusal as refusal:
        best, states, exact = _best(choices, None, width)
        if best is None:
            raise refusal from None
        return Plan(best.options(), best.cost, None, states, exact)
    if rule.cost[0] == sum(move.cost for move in choices.needed()):
        return Plan(rule.options(), rule.cost, rule.cost, len(choices.ops), True)
    choices.widen()
    found, states, exact = _best(choices, rule.cost[0], width)
    best = rule if found is None or found.cost >= rule.cost else found
    return Plan(best.options(), best.cost, rule.cost, states, exact)


def _best(choices: Choices, limit: int | None, width: int) -> tuple[State | None, int, bool]:
    """The cheapest state after the last operation, the states visited, and whether none had to be dropped."""
    walk = _Walk(choices)
    frontier = [walk.start()]
    visited, exact = 0, True
    for index in range(len(choices.ops)):
        reached: dict[object, State] = {}
        for state in frontier:
            for option in _options(choices, index, state.sticks):
                after = walk.step(index, state, option)
                if limit is not None and after.cost[0] > limit:
                    continue
                key = (tuple(after.sticks.items()), after.moved)
                known = reached.get(key)
                if known is None or after.cost < known.cost:
                    reached[key] = after
        frontier = list(reached.values())
        visited += len(frontier)
        if len(frontier) > width:
            exact = False
            frontier = sorted(frontier, key=lambda s: s.cost)[:width]
    return min(frontier, key=lambda s: s.cost, default=None), visited, exact


def _options(choices: Choices, index: int, sticks: Mapping[str, int | None]) -> Iterable[Option]:
    try:
        return choices.options(index, sticks)
    except CompileRefusal:
        return ()
