"""The workflow as a langgraph graph.

    pick -> reproduce -> diagnose -> draft -> screen -> validate -> generalise -> review -> land
                            ^         ^         |         | |            |           |
                            |         +---------+---------+-+------------+-----------+   rejected: next attempt
                            +-----------------------------+   right for its module, and the model fails elsewhere

The state is checkpointed before every step; a process killed anywhere goes on with the step it was in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from langgraph.graph import END, START, StateGraph

from hf_adapters.agents.state import CaseState
from hf_adapters.agents.steps import deciding, drafting, finding, proving
from hf_adapters.agents.workshop import Workshop

Step = Callable[[Workshop, CaseState], CaseState]

STEPS: dict[str, Step] = {
    "pick": finding.pick,
    "reproduce": finding.reproduce,
    "diagnose": finding.diagnose,
    "draft": drafting.draft,
    "screen": drafting.screen,
    "validate": proving.validate,
    "generalise": proving.generalise,
    "review": deciding.review,
    "land": deciding.land_,
}
"""Name -> step, in the order in which a case that succeeds at once takes them."""

_NEXT = {"pick": "reproduce", "reproduce": "diagnose", "draft": "screen"}
"""Steps after which a case may be over."""
_GATES = {"screen": "validate", "generalise": "review", "review": "land"}
"""Steps that send a rejected draft back."""


def build(workshop: Workshop | None) -> StateGraph[CaseState, None, CaseState, CaseState]:
    """The graph over a workshop; None only draws it."""
    graph: StateGraph[CaseState, None, CaseState, CaseState] = StateGraph(CaseState)
    for name, step in STEPS.items():
        graph.add_node(name, _bound(step, workshop))
    graph.add_edge(START, "pick")
    for name, after in _NEXT.items():
        graph.add_conditional_edges(name, _over, {True: END, False: after})
    graph.add_edge("diagnose", "draft")
    for name, after in _GATES.items():
        graph.add_conditional_edges(name, _proven, {True: after, False: "draft"})
    graph.add_conditional_edges("validate", _validated, ["generalise", "diagnose", "draft"])
    graph.add_edge("land", END)
    return graph


def mermaid() -> str:
    """The graph as a Mermaid diagram."""
    return str(build(None).compile().get_graph().draw_mermaid())


def _bound(step: Step, workshop: Workshop | None) -> Any:
    def run(state: CaseState) -> CaseState:
        assert workshop is not None, "a graph that is only drawn does not run"
        return step(workshop, state)

    return run


def _over(state: CaseState) -> bool:
    return bool(state.get("ended"))


def _validated(state: CaseState) -> str:
    if state.get("onward"):
        return "diagnose"
    return "generalise" if _proven(state) else "draft"


def _proven(state: CaseState) -> bool:
    return bool(state.get("proven"))
