"""From a form that does not lower to the cheapest one that was found to."""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from torch import Tensor, fx

from hf_adapters.agents.rewrite.candidate import Candidate, Rule, agree, text_of
from hf_adapters.agents.rewrite.device import Lowering, lower
from hf_adapters.agents.rewrite.rules import IMPROVEMENTS, RULES, weaker
from hf_adapters.agents.rewrite.trace import Traced

Say = Callable[[str], None]
_MORE = 3
"""Other forms that are compiled after one was found that lowers."""
_STUCK = 30
"""Compilations one after the other that are refused as forms before were; then nothing is found any more."""
_SINGLE = 1.5
"""Added to a form's weight before its rules are tried at single places: most fit everywhere or nowhere."""
_FAR = 8
"""Steps along the graph's edges from the refused operation to where a rule may still help."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """A form that lowers.

    Attributes:
        candidate: the form.
        us: simulated microseconds of its programs.
        broken: rules of the device that the forms on the way broke.
    """

    candidate: Candidate
    us: float
    broken: tuple[str, ...]


@dataclass(kw_only=True)
class Search:
    """A best-first search over the rule book.

    Attributes:
        traced: the module.
        release: torch-spyre release.
        compilations: how many candidates may be compiled.
        deadline: `time.monotonic()` at which it stops.
        say: told about each candidate.
        compiled: how many were.
        inside: whether what the stock form is refused for is inside a child, or the compiler does not say where.
    """

    traced: Traced
    release: str
    compilations: int = 40
    deadline: float = float("inf")
    say: Say = lambda _: None
    compiled: int = 0
    inside: bool = False
    _seen: set[str] = field(default_factory=set)
    _expected: list[list[Tensor]] | None = None
    _refusals: set[tuple[object, ...]] = field(default_factory=set)
    _stuck: int = 0

    def run(self) -> list[Found]:
        """What was found, cheapest first; empty when no form lowers."""
        stock = Candidate.stock(self.traced)
        found: list[Found] = []
        order = itertools.count()
        first = self._lower(stock)
        refused = next((n for n in stock.graph.nodes if n.name == first.node), None)
        self.inside = refused is None or refused.op == "call_module"
        queue = [(0.0, next(order), True, stock, first, _rule(first))]
        self._seen.add(stock.key())
        enough = self.compilations
        while queue and self._may_go_on():
            weight, _, everywhere, candidate, lowering, broken = heapq.heappop(queue)
            if everywhere:
                heapq.heappush(queue, (weight + _SINGLE, next(order), False, candidate, lowering, broken))
            for distance, changed in self._changes(candidate, lowering, stock, everywhere):
                if not self._may_go_on() or (found and self.compiled >= enough):
                    break
                result = self._lower(changed)
                if result.error is not None:
                    continue
                here = tuple(dict.fromkeys((*broken, *_rule(result))))
                if result.us is not None:
                    found += self._improved(Found(candidate=changed, us=result.us, broken=here), stock)
                    enough = self.compiled + _MORE
                    continue
                stuck = result.node == lowering.node and _rule(result) == _rule(lowering)
                weight = len(changed.steps) + 0.1 * distance + (1.0 if stuck else 0.0)
                heapq.heappush(queue, (weight, next(order), True, changed, result, here))
            if found:
                break
        return sorted(found, key=lambda f: f.us)

    def _may_go_on(self) -> bool:
        left = self.compiled < self.compilations and self._stuck < _STUCK
        return left and time.monotonic() < self.deadline

    def _lower(self, candidate: Candidate) -> Lowering:
        self.compiled += 1
        result = lower(candidate, self.release)
        refusal = (result.node, result.refused and result.refused.detail, result.elsewhere, result.error)
        known = result.us is None and refusal in self._refusals
        self._refusals.add(refusal)
        self._stuck = self._stuck + 1 if known else 0
        what = "; ".join(candidate.steps) or "the stock form"
        if result.us is not None:
            self.say(f"{what}: lowers, {result.us:.2f} us")
        else:
            reason = result.error or (result.refused and result.refused.detail) or f"on the CPU: {result.elsewhere}"
            self.say(f"{what}: {reason} at {result.node}")
        return result

    def _changes(
        self, candidate: Candidate, lowering: Lowering, stock: Candidate, everywhere: bool
    ) -> Iterator[tuple[int, Candidate]]:
        """Candidates one rule away, those that touch the refused operation first."""
        copies = _Copies(candidate)
        for distance, node in _around(candidate.graph, lowering.node):
            for rule in RULES:
                changed = self._applied(rule, copies, node, stock, everywhere)
                if changed is not None:
                    yield distance, changed

    def _applied(
        self, rule: Rule, copies: _Copies, node: fx.Node, stock: Candidate, everywhere: bool
    ) -> Candidate | None:
        """The candidate after a rule at this place, or at every place where it takes the same step.

        None when the rule does not fit here, gives nothing new, or something else than the stock form.
        """
        step = ""
        try:
            done, copied = copies.tried(rule, node)
            if done is None:
                return None
            step = done
            if everywhere:
                _repeat(rule, copied, step)
            return self._verified(copied.with_step(step, weaker(rule)), step, stock)
        except Exception as error:  # A rule that does not fit shows in the evaluation; that is what it is for.
            self.say(f"{step or rule.__name__}: {type(error).__name__}: {str(error)[:160]}")
            return None

    def _verified(self, changed: Candidate, step: str, stock: Candidate) -> Candidate | None:
        """The candidate when it is new and gives the same as the stock form."""
        key = changed.key()
        if key in self._seen:
            return None
        self._seen.add(key)
        changed.graph.lint()
        changed.annotate()
        if self._expected is None:
            self._expected = stock.results()
        if not agree(changed.results(), self._expected):
            self.say(f"{step}: gives something else")
            return None
        return changed

    def _improved(self, start: Found, stock: Candidate) -> list[Found]:
        """A form that lowers, and cheaper ones that follow from it."""
        found, best = [start], start
        going = True
        while going and self._may_go_on():
            going = False
            copies = _Copies(best.candidate)
            for node in [n for n in best.candidate.graph.nodes if n.op != "output"]:
                for rule in IMPROVEMENTS:
                    if not self._may_go_on():
                        return found
                    changed = self._applied(rule, copies, node, stock, True)
                    result = self._lower(changed) if changed is not None else None
                    if changed is not None and result is not None and result.us is not None and result.us < best.us:
                        best = Found(candidate=changed, us=result.us, broken=best.broken)
                        found.append(best)
                        going = True
                        break
                if going:
                    break
        return found


class _Copies:
    """Copies of a candidate for rules to change; one that a rule left as it was is given to the next."""

    def __init__(self, candidate: Candidate) -> None:
        self.candidate, self.state = candidate, _state(candidate)
        self._spare: tuple[Candidate, dict[fx.Node, fx.Node]] | None = None

    def tried(self, rule: Rule, node: fx.Node) -> tuple[str | None, Candidate]:
        """What a rule says it did at a node of the candidate, and the copy where it did."""
        copied, places = self._spare or self.candidate.copied()
        self._spare = None
        step = rule(copied, places[node]) or None
        if step is None and _state(copied) == self.state:
            # A rule may have run the graph as a module, whose attributes the next one's tables are none of.
            copied.graph.owning_module = None
            self._spare = (copied, places)
        return step, copied


def _state(candidate: Candidate) -> tuple[object, ...]:
    return text_of(candidate.graph), tuple(candidate.tables), candidate.relies, candidate.eager


def _repeat(rule: Rule, candidate: Candidate, step: str) -> None:
    """The same step at every other place of the graph where the rule takes it; the last first, as regions end there."""
    copies = _Copies(candidate)
    for node in reversed(list(candidate.graph.nodes)):
        if node.op in ("output", "placeholder") or "value" not in node.meta or node not in set(candidate.graph.nodes):
            continue
        if copies.tried(rule, node)[0] == step:
            rule(candidate, node)
            copies = _Copies(candidate)


def _rule(lowering: Lowering) -> tuple[str, ...]:
    if lowering.refused is not None:
        return (lowering.refused.rule,)
    return ("op-fallback",) if lowering.elsewhere else ()


def _around(graph: fx.Graph, name: str | None) -> list[tuple[int, fx.Node]]:
    """Nodes with their distance from the refused one; every node when the compiler named none."""
    start = next((n for n in graph.nodes if n.name == name), None)
    if start is None:
        return [(index, node) for index, node in enumerate(graph.nodes) if node.op != "output"]
    distances, frontier = {start: 0}, [start]
    while frontier:
        following = []
        for node in frontier:
            for near in (*node.all_input_nodes, *node.users):
                if near not in distances and distances[node] < _FAR:
                    distances[near] = distances[node] + 1
                    following.append(near)
        frontier = following
    return sorted(((d, n) for n, d in distances.items() if n.op != "output"), key=lambda item: item[0])
