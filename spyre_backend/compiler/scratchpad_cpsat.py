"""The optimal scratchpad planner: the residents that save the most traffic, found by OR-Tools' CP-SAT (D4.5).

OR-Tools is optional; the extra ``planner``.  The search is deterministic (one worker, fixed seed, limited work) and
begins at the greedy solution, so it never does worse.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Sequence
from typing import Any

from spyre_backend.compiler.lx_solvers import ALIGNMENT, Group, Item, Solver, greedy, may_replace, meet, saved_bytes
from spyre_backend.compiler.settings import SettingError

WORK_LIMIT = 20.0
"""Deterministic seconds of CP-SAT; the best solution so far is taken when they are used up."""


def load() -> Solver:
    """The solver; raises SettingError if OR-Tools is not installed."""
    try:
        cp_model: Any = importlib.import_module("ortools.sat.python.cp_model")
    except ImportError as error:
        raise SettingError(
            f"scratchpad planner cp_sat needs OR-Tools ({error}): pip install 'hf-adapters[planner]', or choose greedy"
        ) from error

    def solve(groups: Sequence[Group], capacity: int) -> dict[str, int]:
        return _solve(cp_model, groups, capacity)

    return solve


def _solve(cp_model: Any, groups: Sequence[Group], capacity: int) -> dict[str, int]:
    """Addresses in units of sticks; an item is present when its group is."""
    start = greedy(groups, capacity)
    if len(start) == sum(len(group.items) for group in groups):
        return start
    model = cp_model.CpModel()
    room = capacity // ALIGNMENT
    present: dict[str, Any] = {}
    address: dict[str, Any] = {}
    for group in groups:
        stays = model.new_bool_var(f"{group.name} stays")
        model.add_hint(stays, int(group.items[0].name in start))
        for item in group.items:
            present[item.name] = stays
            highest = room - item.num_bytes // ALIGNMENT
            if highest < 0:
                model.add(stays == 0)
            address[item.name] = model.new_int_var(0, max(highest, 0), item.name)
            model.add_hint(address[item.name], start.get(item.name, 0) // ALIGNMENT)
    for a, b in itertools.combinations([item for group in groups for item in group.items], 2):
        if meet(a, b):
            _separate(model, a, b, present, address)
    model.maximize(sum(group.saved // ALIGNMENT * present[group.items[0].name] for group in groups))
    search = cp_model.CpSolver()
    search.parameters.num_workers = 1
    search.parameters.random_seed = 0
    search.parameters.max_deterministic_time = WORK_LIMIT
    status = search.solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return start
    found = {
        name: int(search.value(place)) * ALIGNMENT
        for name, place in address.items()
        if search.boolean_value(present[name])
    }
    return found if saved_bytes(groups, found) >= saved_bytes(groups, start) else start


def _separate(model: Any, a: Item, b: Item, present: dict[str, Any], address: dict[str, Any]) -> None:
    """Of two items that live together, one lies below the other, or they share their place lawfully."""
    both = [present[a.name], present[b.name]]
    below = model.new_bool_var(f"{a.name} below {b.name}")
    above = model.new_bool_var(f"{b.name} below {a.name}")
    model.add(address[a.name] + a.num_bytes // ALIGNMENT <= address[b.name]).only_enforce_if(below)
    model.add(address[b.name] + b.num_bytes // ALIGNMENT <= address[a.name]).only_enforce_if(above)
    ways = [below, above]
    if may_replace(a, b):
        shared = model.new_bool_var(f"{a.name} in place of {b.name}")
        model.add(address[a.name] == address[b.name]).only_enforce_if(shared)
        ways.append(shared)
    model.add_bool_or([*ways, *(stays.negated() for stays in both)])
