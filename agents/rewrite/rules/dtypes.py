"""Moves between dtypes."""

from __future__ import annotations

import torch
from torch import Tensor, fx

from hf_adapters.agents.rewrite.candidate import Candidate
from hf_adapters.agents.rewrite.forms import argument, is_float, kind, replace_with, value


def _widens(node: fx.Node) -> bool:
    if kind(node) != "to" or not is_float(node) or not is_float(node.args[0]):
        return False
    return node.target == "float" or torch.float32 in (*node.args[1:], *node.kwargs.values())


def stay_narrow(candidate: Candidate, node: fx.Node) -> str | None:
    """Computes in the dtype of the inputs what the stock form casts to float32; the device's matmuls take 16 bits."""
    if not _widens(node) and not any(_widens(n) for n in node.all_input_nodes):
        return None
    graph = candidate.graph
    for each in list(graph.nodes):
        if _widens(each):
            replace_with(graph, each, each.args[0])
        elif argument(each, 99, "dtype") is torch.float32 and is_float(each) and kind(each) != "to":
            _in_input_dtype(candidate, each)
    return "casts to float32 left out: the device multiplies 16-bit operands"


def _in_input_dtype(candidate: Candidate, node: fx.Node) -> None:
    """Leave out that a result is float32; what makes a tensor out of numbers is told the dtype of the inputs."""
    others = {key: item for key, item in node.kwargs.items() if key != "dtype"}
    source = next((n for n in candidate.graph.nodes if n.op == "placeholder" and is_float(n)), None)
    if not any(isinstance(value(n), Tensor) for n in node.all_input_nodes) and source is not None:
        with candidate.graph.inserting_before(node):
            others["dtype"] = candidate.graph.call_function(getattr, (source, "dtype"))
    node.kwargs = others


def stay_narrow_here(candidate: Candidate, node: fx.Node) -> str | None:
    """The same for the operands of one operation; its result is cast instead."""
    wide = [n for n in node.all_input_nodes if _widens(n)]
    if not wide:
        return None
    for each in wide:
        node.replace_input_with(each, each.args[0])  # type: ignore[arg-type]
    with candidate.graph.inserting_after(node):
        back = candidate.graph.call_method("to", (node, torch.float32))
    node.replace_all_uses_with(back, delete_user_cb=lambda user: user is not back)
    return "operands kept in 16 bits, the result cast to float32"


RULES = (stay_narrow_here, stay_narrow)
