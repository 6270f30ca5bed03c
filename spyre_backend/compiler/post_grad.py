"""Stage 2, post-grad passes: the operator table (D5) is applied to the aten graph, before anything is lowered.

Every aten op on a device tensor must be in the table or take the table's default.  Ops that run on the host are marked
and become counted fallbacks; what the device cannot do is refused here, where the module path and the user's source
line are still known.
"""

from __future__ import annotations

import functools
import hashlib
from dataclasses import replace
from pathlib import Path

import torch
from torch._inductor.custom_graph_pass import CustomGraphModulePass
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.fx.node import Argument, map_arg

from spyre_backend import capabilities, program, slices
from spyre_backend.compiler import decisions, settings, stages
from spyre_backend.compiler.errors import refuse, refusing
from spyre_backend.compiler.lowering import _touches_device
from spyre_backend.compiler.origins import origin_of
from spyre_backend.compiler.predicates import PREDICATES, Fallback

TRANSPARENT = frozenset(
    {
        "aten.sym_size.int",
        "aten.sym_numel.default",
        "aten.sym_stride.int",
        "prims.device_put.default",
        "aten._assert_tensor_metadata.default",
        "prims.inductor_force_stride_order.default",
    }
)
"""Ops that say nothing to the device: sizes, checks and moves between devices."""
OFFSETS = frozenset(
    {"aten.slice.Tensor", "aten.slice_scatter.default", "aten.select.int", "aten.select_scatter.default"}
)
"""Ops whose numbers say where a view begins: Inductor would keep them symbolic in its index."""


class OperatorTable(CustomGraphModulePass):
    """The post-grad pass registered for device ``spyre``."""

    def __call__(self, gm: GraphModule) -> None:
        self.graph_index = getattr(self, "graph_index", -1) + 1
        name = str(self.graph_index)
        specialise(gm)
        followed = decisions.active()
        if followed is not None:
            followed.graphs += 1
        stages.record("decompositions", name, lambda: gm.print_readable(print_output=False))
        lines = []
        for node in gm.graph.nodes:
            if node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload) and _touches_device(node):
                with refusing(str(node.target), origin_of(node)):
                    check_operator(node)
                lines.append(f"{node.name}: {node.target} -> {'host' if node.meta.get('spyre_fallback') else 'device'}")
        stages.record("post-grad", name, lambda: "\n".join(lines))

    def uuid(self) -> str:
        """Part of the compile cache's key: another release, numeric or compiler setting compiles anew."""
        return (
            f"spyre-{capabilities.current().fingerprint}-{settings.current().key}-{decisions.key()}-{source_digest()}"
        )


def specialise(gm: GraphModule) -> None:
    """Fix every size of a graph on the device at its present value: dynamic shapes compile as static ones (D4.1).

    Each size becomes a guard, so another shape compiles anew (D6.8).
    """
    nodes = gm.graph.nodes
    if not any(isinstance(n.meta.get("val"), torch.SymInt) or _is_symbolic(n.meta.get("val")) for n in nodes):
        return
    if not any(n.op == "call_function" and _touches_device(n) for n in nodes):
        return
    for node in gm.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        sizes = (*value.shape, *value.stride(), value.storage_offset()) if isinstance(value, torch.Tensor) else (value,)
        for size in sizes:
            if isinstance(size, torch.SymInt):
                try:
                    int(size)
                except GuardOnDataDependentSymNode:
                    detail = f"size {size} of {node.name} depends on data"
                    raise refuse("dynamic-shape", op=node.name, detail=detail, origin=origin_of(node)) from None
    for node in nodes:
        if str(node.target) in OFFSETS:
            _fix_offset(node)


def _fix_offset(node: Node) -> None:
    """Put the present value of each number in the place of the number; see :func:`_refuse_moving_store`."""
    numbers = [n for n in node.all_input_nodes if isinstance(n.meta.get("val"), torch.SymInt)]
    if not numbers:
        return
    start = [*node.args, *node.kwargs.values()][3:4]
    if str(node.target).partition(".")[2].endswith("_scatter.default") and start and start[0] in numbers:
        _refuse_moving_store(node)

    def present(argument: Node) -> Argument:
        return int(argument.meta["val"]) if argument in numbers else argument

    node.args, node.kwargs = map_arg(node.args, present), map_arg(node.kwargs, present)


def _refuse_moving_store(node: Node) -> None:
    """D5.4, D6.9 (#3508): rows cannot be set at an offset that the graph does not know; they may be read there."""
    shapes = [tuple(int(n) for n in v.shape) for v in _values(node)]
    raise refuse(
        "dynamic-shape",
        op=str(node.target),
        detail=f"shape error in scatter op, can not broadcast {list(shapes[1])} to a slice at a symbolic offset",
        shapes=shapes,
        dtypes=[v.dtype for v in _values(node)],
        origin=origin_of(node),
    )


def _is_symbolic(value: object) -> bool:
    return isinstance(value, torch.Tensor) and any(isinstance(n, torch.SymInt) for n in value.shape)


@functools.cache
def source_digest() -> str:
    """Hash of the compiler's own sources: a changed compiler never reuses an older one's graphs."""
    digest = hashlib.sha256()
    for path in [*sorted(Path(__file__).parent.glob("*.py")), Path(program.__file__), Path(slices.__file__)]:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def check_operator(node: Node) -> None:
    """Refuse ``node``, mark it as a host fallback, or let it pass."""
    target = node.target
    assert isinstance(target, torch._ops.OpOverload)
    if str(target) in TRANSPARENT:
        return
    if str(target) == "spyre.refused.default":
        _, op, rule, detail = node.args
        values = _values(node)
        origin = replace(origin_of(node), aten=str(op))
        shapes, dtypes = [v.shape for v in values], [v.dtype for v in values]
        raise refuse(str(rule), op=str(op), detail=str(detail), shapes=shapes, dtypes=dtypes, origin=origin)
    _check_dtypes(node)
    _check_ranks(node)
    entry = capabilities.current().operator(target)
    if entry is None and _is_view(target):
        return
    policy = capabilities.current().policy(target)
    support = policy.compiled
    if policy.predicate is not None and support != "fallback" and policy.predicate in PREDICATES:
        try:
            PREDICATES[policy.predicate](node, policy)
        except Fallback:
            support = "fallback"
    if support == "unsupported":
        raise refuse(
            policy.rule,
            op=str(target),
            detail=f"{target} has no lowering in release {capabilities.current().release} ({policy.source})",
            shapes=[v.shape for v in _values(node)],
            dtypes=[v.dtype for v in _values(node)],
            origin=origin_of(node),
        )
    if support == "fallback" or not _taken(node):
        node.meta["spyre_fallback"] = True


def _taken(node: Node) -> bool:
    """Whether the operation stays on the device (see :mod:`~spyre_backend.compiler.decisions`)."""
    followed = decisions.active()
    if followed is None or decisions.take("operation", node.name, lambda: f"the device computes {_place(node)}"):
        return True
    followed.on_host.add(decisions.call(node.target, [tuple(value.shape) for value in _values(node)]))
    return False


def _place(node: Node) -> str:
    origin = origin_of(node)
    return " at ".join(part for part in (origin.aten, origin.module_path, origin.source_line) if part)


def _check_dtypes(node: Node) -> None:
    """D1.6: float64 and complex have no format on the device, not even between two operations of a graph."""
    value = node.meta.get("val")
    formats = capabilities.current().dtypes.formats
    for tensor in value if isinstance(value, (list, tuple)) else (value,):
        if not isinstance(tensor, torch.Tensor) or tensor.device.type != "spyre":
            continue
        name = str(tensor.dtype).removeprefix("torch.")
        if name not in formats or formats[name].refused:
            detail = f"Spyre backend does not support dtype {tensor.dtype}"
            values = _values(node)
            raise refuse(
                "dtype-unsupported",
                op=str(node.target),
                detail=detail,
                shapes=[v.shape for v in values],
                dtypes=[v.dtype for v in values],
                origin=origin_of(node),
            )


def _check_ranks(node: Node) -> None:
    """D1.4: releases that bound the rank of a device layout; 0 is no limit."""
    most = capabilities.current().limits.tensor_rank_max
    values = [*_values(node), node.meta.get("val")]
    rank = max((v.dim() for v in values if isinstance(v, torch.Tensor)), default=0)
    if most and rank > most:
        raise refuse(
            "rank-limit",
            op=str(node.target),
            detail=f"Unsupported tensor rank: {rank}",
            shapes=[v.shape for v in _values(node)],
            dtypes=[v.dtype for v in _values(node)],
            origin=origin_of(node),
        )


def _is_view(target: torch._ops.OpOverload) -> bool:
    return any(r.alias_info is not None and not r.alias_info.is_write for r in target._schema.returns)


def _values(node: Node) -> list[torch.Tensor]:
    values = [n.meta.get("val") for n in node.all_input_nodes]
    return [v for v in values if isinstance(v, torch.Tensor)]
