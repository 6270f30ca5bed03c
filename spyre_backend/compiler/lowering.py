"""Stage 3, lowering: from aten ops to Inductor IR with one buffer for each device operation (D4.1).

:func:`install` puts one layer around ``GraphLowering.call_function``: in graphs that hold device tensors, ops of
:data:`LOWERINGS` are lowered here, ops that the release runs on the host become calls to their eager kernel (a counted
fallback that breaks the bundle, D4.6), everything else takes PyTorch's own lowering, and every result is realised.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._inductor import config as inductor_config
from torch._inductor import ir
from torch._inductor import lowering as stock
from torch._inductor.graph import GraphLowering
from torch._inductor.ir import TensorBox
from torch.utils import _pytree as pytree

from spyre_backend.compiler import decisions
from spyre_backend.compiler.errors import refusing
from spyre_backend.compiler.lowering_forms import LOWERINGS
from spyre_backend.compiler.origins import origin_of
from spyre_backend.compiler.trace import declare_functions

aten = torch.ops.aten

CONFIG: dict[str, Any] = {
    "comprehensive_padding": False,
    "split_reductions": False,
    "unroll_reductions_threshold": 1,
    "permute_fusion": False,
    "pattern_matcher": True,
    "benchmark_harness": False,
    "size_asserts": False,
    "alignment_asserts": False,
    "keep_output_stride": True,
    "layout_optimization": False,
    "memory_planning": False,
    "allow_buffer_reuse": False,
    "inplace_buffers": False,
}
"""Inductor settings in force while a device graph is lowered and generated (D4.1 names most of them)."""


def fall_back(target: Any, args: Any, kwargs: Any) -> Any:
    """Leave ``target`` to its eager kernel: it runs on the host and is counted when the graph runs."""
    handler: Callable[..., Any] = stock.fallback_handler(target, add_to_fallback_set=False)  # type: ignore[no-untyped-call]
    return handler(*args, **kwargs)


def is_device_graph(graph: GraphLowering) -> bool:
    """Whether the graph holds any tensor on the device."""
    return any(_on_device(node.meta.get("val")) for node in fx_graph(graph).nodes)


def fx_graph(graph: GraphLowering) -> torch.fx.Graph:
    """The FX graph that Inductor lowers."""
    found = graph.module.graph
    assert isinstance(found, torch.fx.Graph)
    return found


def _on_device(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.device.type == "spyre"
    return isinstance(value, (list, tuple)) and any(_on_device(v) for v in value)


def _realize_results(value: Any) -> None:
    for item in value if isinstance(value, (list, tuple)) else (value,):
        if isinstance(item, TensorBox) and isinstance(item.data, ir.StorageBox):
            item.realize()


def _call_function(self: GraphLowering, stock_call: Callable[..., Any], target: Any, args: Any, kwargs: Any) -> Any:
    node = self.current_node
    if not isinstance(target, torch._ops.OpOverload) or not _touches_device(node):
        return stock_call(self, target, args, kwargs)
    lower = LOWERINGS.get(target)
    if decisions.active() is not None and not _is_view(target):
        args, kwargs = _laid_out(node, args), _laid_out(node, kwargs)
    if node.meta.get("spyre_fallback"):
        return fall_back(target, args, kwargs)
    with refusing(str(target), origin_of(node)):
        result = stock_call(self, target, args, kwargs) if lower is None else lower(*args, **kwargs)
        _realize_results(result)
    return result


def _is_view(target: torch._ops.OpOverload) -> bool:
    return any(r.alias_info is not None and not r.alias_info.is_write for r in target._schema.returns)


def _laid_out(node: torch.fx.Node, given: Any) -> Any:
    """Arguments of which those that are read through a view are contiguous copies, where that decision is declined."""
    leaves, spec = pytree.tree_flatten(given, is_leaf=lambda item: isinstance(item, TensorBox))
    return pytree.tree_unflatten([_contiguous(node, i, leaf) for i, leaf in enumerate(leaves)], spec)


def _contiguous(node: torch.fx.Node, index: int, item: Any) -> Any:
    if not isinstance(item, TensorBox) or item.get_device().type != "spyre":  # type: ignore[union-attr]
        return item
    view = isinstance(item.data, ir.BaseView)
    if not view and (item.maybe_get_stride() is None or ir.is_contiguous_storage_and_layout(item)):
        return item

    def what() -> str:
        origin = origin_of(node)
        place = " at ".join(part for part in (origin.aten, origin.module_path, origin.source_line) if part)
        through = "a view" if view else "another order of its dims than the default one"
        return f"{place} reads operand {index} {list(map(int, item.get_size()))} through {through}"

    if decisions.take("layout", f"{node.name}.{index}", what):
        return item
    return fall_back(aten.clone.default, (item,), {"memory_format": torch.contiguous_format})


def _touches_device(node: torch.fx.Node) -> bool:
    return _on_device(node.meta.get("val")) or any(_on_device(n.meta.get("val")) for n in node.all_input_nodes)


@contextlib.contextmanager
def _settings(graph: GraphLowering) -> Iterator[None]:
    if not is_device_graph(graph):
        yield
        return
    with inductor_config.patch(CONFIG), refusing("graph"):
        yield


def install() -> None:
    """Put our layer around ``GraphLowering`` (idempotent)."""
    if getattr(GraphLowering, "_spyre_installed", False):
        return
    declare_functions()
    stock_call, stock_run, stock_module = (
        GraphLowering.call_function,
        GraphLowering.run,
        GraphLowering.compile_to_module,
    )

    def call_function(self: GraphLowering, target: Any, args: Any, kwargs: Any) -> Any:
        return _call_function(self, stock_call, target, args, kwargs)

    def run(self: GraphLowering, *args: Any) -> Any:
        with _settings(self):
            return stock_run(self, *args)

    def compile_to_module(self: GraphLowering) -> Any:
        with _settings(self):
            return stock_module(self)

    for name, method in (("call_function", call_function), ("run", run), ("compile_to_module", compile_to_module)):
        setattr(GraphLowering, name, method)
    GraphLowering._spyre_installed = True  # type: ignore[attr-defined]


__all__ = ["CONFIG", "LOWERINGS", "fall_back", "fx_graph", "install", "is_device_graph"]
