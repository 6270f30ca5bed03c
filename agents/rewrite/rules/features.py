"""Features that are no whole sticks, between the linears that make them and the one that sums over them."""

from __future__ import annotations

from typing import Any

from torch import fx, nn
from torch.nn import functional as F

from hf_adapters.agents.rewrite import tables
from hf_adapters.agents.rewrite.candidate import Candidate
from hf_adapters.agents.rewrite.forms import POINTWISE, STICK, cone, replace_with


def _linear(candidate: Candidate, node: fx.Node) -> nn.Linear | None:
    """The linear that a node calls."""
    if node.op != "call_module" or len(node.args) != 1 or node.kwargs:
        return None
    child = candidate.traced.module.get_submodule(str(node.target))
    return child if type(child) is nn.Linear else None


def whole_features(candidate: Candidate, node: fx.Node) -> str | None:
    """Zeros after the outputs of linears, up to a whole stick; the sum over them multiplies what they become by zeros.

    What is between may be any function of each element: it is finite at 0, or the result shows it.
    """
    summing = _linear(candidate, node)
    if summing is None or summing.in_features % STICK == 0 or not isinstance(node.args[0], fx.Node):
        return None
    _, sources = cone(node.args[0], POINTWISE)
    making = {source: _linear(candidate, source) for source in sources}
    if not making or any(m is None or m.out_features != summing.in_features for m in making.values()):
        return None
    width, extra = summing.in_features, -summing.in_features % STICK
    about = f"with {extra} rows of zeros: {width + extra} outputs are whole sticks."
    for source, linear in making.items():
        assert linear is not None
        _padded_call(candidate, source, linear, (0, 0, 0, extra), about)
    _padded_call(candidate, node, summing, (0, extra), f"with {extra} columns of zeros, for inputs of whole sticks.")
    places = [str(node.target), *(str(source.target) for source in making)]
    features = [f"{places[0]}.in_features", *(f"{place}.out_features" for place in places[1:])]
    candidate.relies = tuple(dict.fromkeys((*candidate.relies, *features)))
    return f"{width} features followed by zeros up to {width + extra}, whole sticks, in the weights of the linears"


def _padded_call(candidate: Candidate, node: fx.Node, linear: nn.Linear, sides: tuple[int, ...], about: str) -> None:
    """The call of a linear with a padded weight, and a padded bias where rows are added to the weight."""
    path, graph = str(node.target), candidate.graph
    stem = path.replace(".", "_")
    with graph.inserting_before(node):
        weight = tables.add(
            candidate, f"{stem}_weight", _padded(sides), (f"{path}.weight",), f"`{path}.weight` {about}"
        )
        bias: Any = None
        if linear.bias is not None and len(sides) == 2:
            bias = graph.get_attr(f"{path}.bias")
        elif linear.bias is not None:
            text = f"`{path}.bias` {about.replace('rows of ', '')}"
            bias = tables.add(candidate, f"{stem}_bias", _padded(sides[2:]), (f"{path}.bias",), text)
        new = graph.call_function(F.linear, (node.args[0], weight, *((bias,) if bias is not None else ())))
    new.meta = dict(node.meta)
    replace_with(graph, node, new)


def _padded(sides: tuple[int, ...]) -> fx.Graph:
    graph = fx.Graph()
    stock = graph.placeholder("stock")
    graph.output(graph.call_function(F.pad, (stock, sides)))
    return graph


RULES = (whole_features,)
