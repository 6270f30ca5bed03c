"""Lowerings of stage 3 that look rows up by an index, or store them by one (D2.4, D5.4)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch._inductor import ir
from torch._inductor import lowering as stock
from torch._inductor.ir import TensorBox
from torch._inductor.virtualized import V, ops
from torch.fx import Node

aten = torch.ops.aten


def lower_index_select(x: TensorBox, dim: int, index: TensorBox) -> TensorBox:
    """aten.index_select along the outermost dim, where the release looks rows up on the device (D5.4)."""
    x.realize()
    index.realize()
    size = list(x.get_size())
    load, load_index = x.make_loader(), index.make_loader()

    def inner_fn(place: Sequence[Any]) -> Any:
        row = ops.indirect_indexing(load_index([place[dim]]), size[dim])
        return load([*place[:dim], row, *place[dim + 1 :]])

    return ir.Pointwise.create(
        device=x.get_device_or_error(),
        dtype=x.get_dtype(),
        inner_fn=inner_fn,
        ranges=[*size[:dim], index.get_size()[0], *size[dim + 1 :]],
    )


def lower_index_copy(x: TensorBox, dim: int, index: TensorBox, source: TensorBox) -> TensorBox:
    """aten.index_copy: rows of ``source`` are stored where ``index`` says (D5.4).

    A graph that writes the result back over ``x`` is what index_copy_ becomes without mutation: it stores into ``x``
    itself.  Any other one stores into a copy of ``x``, which has the default layout, as clones do (D2.4).
    """
    for tensor in (x, index, source):
        tensor.realize()
    size = list(x.get_size())
    where = dim % len(size)
    target = x if _is_given_up(V.graph.current_node) else stock.clone(x)
    target.realize()
    load_index, scalar = index.make_loader(), not index.get_size()

    def output_indexer(place: Sequence[Any]) -> Any:
        row = ops.indirect_indexing(load_index([] if scalar else [place[where]]), size[where])
        return [*place[:where], row, *place[where + 1 :]]

    scatter = ir.Scatter(
        device=x.get_device_or_error(),
        dtype=x.get_dtype(),
        inner_fn=source.make_loader(),
        ranges=list(source.get_size()),
        output_indexer=output_indexer,
        scatter_mode=None,
    )
    buffer = ir.ComputedBuffer(name=None, layout=ir.MutationLayoutSHOULDREMOVE(target), data=scatter)
    buffer.name = V.graph.register_buffer(buffer)
    V.graph.register_operation(buffer)
    return target


def _is_given_up(node: Node) -> bool:
    """Whether the first operand of ``node`` is a graph input whose old content nobody needs any more.

    The graph ends with a copy of the result to it; everything else that reads it comes before and makes no view of it.
    """
    target, _, *others = node.args
    if not isinstance(target, Node) or target.op != "placeholder" or target in others:
        return False
    order = {item: position for position, item in enumerate(node.graph.nodes)}
    written_back = False
    for user in target.users:
        if user is node:
            continue
        if user.target is aten.copy_.default and user.args[:2] == (target, node):
            written_back = True
        elif order[user] > order[node] or any(_aliases(user)):
            return False
    return written_back


def _aliases(node: Node) -> Iterator[bool]:
    if not isinstance(node.target, torch._ops.OpOverload):
        yield True
        return
    yield from (result.alias_info is not None for result in node.target._schema.returns)
