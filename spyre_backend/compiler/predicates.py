"""Checks for operators that the device supports in part: one function for each predicate that the operator table names.

A predicate raises a refusal, raises :class:`Fallback` where the release runs this call on the host, or returns.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from spyre_backend import capabilities
from spyre_backend.capabilities import OperatorEntry
from spyre_backend.compiler.errors import CompileRefusal, refuse
from spyre_backend.compiler.origins import origin_of

aten = torch.ops.aten
SPLITS = (aten.split.Tensor, aten.split_with_sizes.default)


class Fallback(Exception):
    """This call runs on the host."""


def arguments(node: Node) -> dict[str, Any]:
    """The node's arguments by their schema names; tensors as fake tensors."""
    assert isinstance(node.target, torch._ops.OpOverload)
    args = torch.fx.node.map_arg(node.args, lambda n: n.meta.get("val"))
    kwargs = torch.fx.node.map_arg(node.kwargs, lambda n: n.meta.get("val"))
    names = [a.name for a in node.target._schema.arguments]
    defaults = {a.name: a.default_value for a in node.target._schema.arguments if a.has_default_value()}
    return {**defaults, **dict(zip(names, args, strict=False)), **kwargs}


def _refusal(node: Node, rule: str, detail: str) -> CompileRefusal:
    values = [v for v in arguments(node).values() if isinstance(v, torch.Tensor)]
    return refuse(
        rule,
        op=str(node.target),
        detail=detail,
        shapes=[v.shape for v in values],
        dtypes=[v.dtype for v in values],
        origin=origin_of(node),
    )


def matmul(node: Node, entry: OperatorEntry) -> None:
    """D6.11: K a multiple of 64, N >= 2, fp16 or bf16 operands; K == 1 becomes a multiplication (D5.1)."""
    tensors = [v for v in arguments(node).values() if isinstance(v, torch.Tensor)][-2:]
    a, b = tensors
    width, columns = a.shape[-1], b.shape[-1]
    allowed = {getattr(torch, name) for name in entry.params["dtypes"]}
    if a.dtype not in allowed or b.dtype not in allowed:
        raise _refusal(
            node, "matmul-dtype", f"matmul of {a.dtype} and {b.dtype}: only {sorted(entry.params['dtypes'])}"
        )
    if width <= 1 or node.meta["val"].numel() == 0:
        return
    if columns < entry.params["min_out_features"]:
        raise _refusal(
            node,
            "matmul-out-one",
            f"cannot restickify any input layout of {node.args[0]} to carry x_var=d1: N={columns}",
        )
    multiple = entry.params["k_multiple"]
    if width % multiple:
        raise _refusal(
            node,
            "matmul-k-stick",
            f"Could not find any suitable dimension mapping: K={width} is not a multiple of {multiple}",
        )


def power(node: Node, entry: OperatorEntry) -> None:
    """Scalar exponents: the integers of ``params`` by squaring, nothing else."""
    exponent = arguments(node)["exponent"]
    if entry.compiled == "unsupported":
        raise _refusal(
            node, entry.rule, f"pow(x, {exponent}) is not lowered in release {capabilities.current().release}"
        )
    whole = float(exponent).is_integer() and entry.params["exponent_min"] <= exponent <= entry.params["exponent_max"]
    if not whole:
        raise _refusal(node, entry.rule, f"pow(x, {exponent}): exponents 1 to {entry.params['exponent_max']} only")


def compare(node: Node, entry: OperatorEntry) -> None:
    """D5.2: an int64 tensor against a Python integer is refused; int32 comparisons cannot make a bool."""
    given = arguments(node)
    x, other = given["self"], given["other"]
    if x.dtype == torch.int64 and not isinstance(other, torch.Tensor):
        raise _refusal(node, "int64-compare-scalar", f"Constant(value={other}, dtype=torch.int64) to {entry.device_op}")
    rule = capabilities.current().dtypes.rule_for(entry.device_op or "equal", str(x.dtype).removeprefix("torch."))
    if rule is not None and x.dtype != torch.bool:
        raise _refusal(node, rule, f"{entry.device_op} on {x.dtype}")


def where(node: Node, entry: OperatorEntry) -> None:
    """D5.2: scalar branches in fp16 only; no double broadcast [.., L, 1] x [.., 1, L]."""
    values = [v for v in arguments(node).values() if isinstance(v, torch.Tensor)]
    scalars = [v for v in arguments(node).values() if isinstance(v, (int, float))] + [v for v in values if v.dim() == 0]
    result = node.meta["val"]
    if scalars and result.dtype not in (torch.float16, torch.bfloat16, torch.bool):
        raise _refusal(node, "dtype-fp32-op", f"where with a scalar branch in {result.dtype}: fp16 only")
    rank = result.dim()
    shapes = [(1,) * (rank - v.dim()) + tuple(v.shape) for v in values if v.dim()]
    for a in shapes:
        for b in shapes:
            if a[-1] == 1 < b[-1] and any(
                x > 1 and y == 1 and n > 1 for x, y, n in zip(a[:-1], b[:-1], result.shape[:-1], strict=True)
            ):
                raise _refusal(node, "double-broadcast", f"no stick scatter: {list(a)} x {list(b)}")


def cast(node: Node, entry: OperatorEntry) -> None:
    """D1.6: casts of the table run on the device, all others on the host."""
    given = arguments(node)
    source = next(v for v in given.values() if isinstance(v, torch.Tensor)).dtype
    target = given.get("dtype") or source
    names = [str(d).removeprefix("torch.") for d in (source, target)]
    if capabilities.current().dtypes.cast(names[0], names[1]) is None:
        raise Fallback


def creation(node: Node, entry: OperatorEntry) -> None:
    """D5.2: full, zeros, ones are native in floating point; other dtypes are made on the host and copied."""
    dtype = str(node.meta["val"].dtype).removeprefix("torch.")
    if dtype not in entry.params["dtypes"]:
        raise Fallback


def total(node: Node, entry: OperatorEntry) -> None:
    """D5.3: a bool tensor cannot be summed."""
    if arguments(node)["self"].dtype == torch.bool:
        raise _refusal(node, "bool-sum", "sum of a bool tensor")


def max_dim(node: Node, entry: OperatorEntry) -> None:
    """D5.3: max with indices needs argmax, which runs on the host."""
    raise Fallback


def topk(node: Node, entry: OperatorEntry) -> None:
    """D1.4: k <= 128, largest, along the last dim."""
    given = arguments(node)
    rank = given["self"].dim()
    bad = given["k"] > entry.params["max_k"] or not given["largest"] or given["dim"] % max(rank, 1) != rank - 1
    if bad:
        raise _refusal(node, entry.rule, f"topk with k={given['k']}, largest={given['largest']}, dim={given['dim']}")


def layer_norm(node: Node, entry: OperatorEntry) -> None:
    """D5.3, D6.11: one normalised dim."""
    shape = arguments(node)["normalized_shape"]
    if len(shape) != entry.params["normalized_dims"]:
        raise _refusal(node, entry.rule, f"{node.target} with normalized_shape={list(shape)}")


def select(node: Node, entry: OperatorEntry) -> None:
    """D6.11: an element of a 1-D tensor cannot be selected (#2017)."""
    given = arguments(node)
    if given["self"].dim() < entry.params["min_rank"]:
        raise _refusal(node, entry.rule, f"Unexpected stick expression {given.get('index', 0)}")


def slice_scatter(node: Node, entry: OperatorEntry) -> None:
    """D2.7: unit step only."""
    step = arguments(node)["step"]
    if step != entry.params["step"]:
        detail = (
            f"slice_scatter with step={step} is not supported on Spyre (only unit step maps to a SliceView mutation)"
        )
        raise _refusal(node, entry.rule, detail)


def pad(node: Node, entry: OperatorEntry) -> None:
    """D6.9: padding that begins inside a stick fails (setting ``pad_partial_stick``)."""
    given = arguments(node)
    extent = given["self"].shape[-1]
    if not given["pad"] or not any(given["pad"][:2]) or capabilities.current().settings.pad_partial_stick == "allow":
        return
    if extent % entry.params["stick_multiple"] or given["pad"][0] % entry.params["stick_multiple"]:
        raise _refusal(
            node, entry.rule, f"pad of a last dim of {extent} by {list(given['pad'][:2])} begins inside a stick"
        )


def cat(node: Node, entry: OperatorEntry) -> None:
    """D6.2 a, D2.8 (#3133): rotate-half by slices and cat of pieces below one stick.

    D6.11 would let such slices be restickified; the setting ``rope_half_by_slices`` takes the observed refusal.
    """
    if capabilities.current().settings.rope_half_by_slices != "reject" or node.target is not aten.cat.default:
        return
    pieces = node.args[0]
    value = node.meta["val"]
    dim = int(arguments(node)["dim"])
    if not isinstance(pieces, (list, tuple)) or dim % value.dim() != value.dim() - 1:
        return
    found = [_slice_sources(p) for p in pieces if isinstance(p, Node)]
    shared = set.intersection(*found) if len(found) == len(pieces) > 1 else set()
    widths = sorted({width for _, width in shared if width % 64})
    if widths:
        expression = f"d{value.dim()}"
        detail = (
            f"Could not find a host dimension matching stick expr {expression}: pieces of {widths} rotated in one stick"
        )
        raise _refusal(node, "rope-half-stick", detail)


POINTWISE = frozenset(
    {
        aten.neg.default,
        aten.clone.default,
        aten.mul.Tensor,
        aten.add.Tensor,
        aten.sub.Tensor,
        torch.ops.prims.convert_element_type.default,
    }
)
"""What a rotation does to its halves on the way to the cat."""


def _slice_sources(node: Node) -> set[tuple[Node, int]]:
    """(tensor, piece width) of the slices of a last dim that reach ``node`` through pointwise operations."""
    found: set[tuple[Node, int]] = set()
    waiting, seen = [node], set()
    while waiting:
        current = waiting.pop()
        if current in seen or current.op != "call_function":
            continue
        seen.add(current)
        if current.target in POINTWISE:
            waiting.extend(current.all_input_nodes)
            continue
        piece = _piece_of_last_dim(current)
        if piece is not None:
            found.add(piece)
    return found


def _piece_of_last_dim(node: Node) -> tuple[Node, int] | None:
    """(tensor, width) when ``node`` is a slice, or one result of a split, of the last dim."""
    value, cut = node.meta["val"], node
    if node.target is operator.getitem and isinstance(node.args[0], Node) and node.args[0].target in SPLITS:
        cut = node.args[0]
    elif node.target is not aten.slice.Tensor:
        return None
    source = cut.args[0]
    if int(arguments(cut).get("dim", 0)) % value.dim() != value.dim() - 1 or not isinstance(source, Node):
        return None
    return source, int(value.shape[-1])


def view(node: Node, entry: OperatorEntry) -> None:
    """D6.11: a view may cut the stick dim only into pieces of whole sticks.

    The stick dim is the last one of a tensor whose last dim has stride 1; views of other tensors are judged where they
    are read.
    """
    x = next(v for v in arguments(node).values() if isinstance(v, torch.Tensor))
    shape = [n for n in node.meta["val"].shape if n > 1]
    if not x.dtype.is_floating_point or x.dim() == 0 or x.numel() == 0 or not shape or x.stride(-1) != 1:
        return
    whole, piece = x.shape[-1], shape[-1]
    if 1 < piece < whole and whole % piece == 0 and piece % entry.params["inner_multiple"]:
        places = f"{piece}*d{len(shape) - 2} + d{len(shape) - 1}"
        raise _refusal(
            node,
            entry.rule,
            f"Could not find a host dimension matching stick expr {places}: {whole} in pieces of {piece}",
        )


def index(node: Node, entry: OperatorEntry) -> None:
    """D5.4: one row of int32 indices on the outermost dim; everything else is refused or unreliable."""
    given = arguments(node)
    indices = [i for i in given["indices"] if i is not None]
    good = len(indices) == 1 and given["indices"][0] is not None
    good = (
        good
        and str(indices[0].dtype) == f"torch.{entry.params['index_dtype']}"
        and indices[0].dim() == entry.params["index_rank"]
    )
    if not good:
        raise _refusal(node, entry.rule, f"index with {[(tuple(i.shape), str(i.dtype)) for i in indices]}")


def embedding(node: Node, entry: OperatorEntry) -> None:
    """D5.4: rows of a table of at least ``rows_min``, along dim 0."""
    given = arguments(node)
    table: torch.Tensor = given["weight"] if "weight" in given else given["self"]
    if table.shape[0] < entry.params["rows_min"] or given.get("dim", 0) != entry.params["dim"]:
        raise _refusal(node, entry.rule, f"a table of {table.shape[0]} rows asks for two incompatible sticks")


def index_copy(node: Node, entry: OperatorEntry) -> None:
    """D5.4, D6.11: the indexed dim must be the outermost on the device; elsewhere the wrong rows are written (#3705).

    The default layout of D2.2 puts dim 1 there if the tensor has three dims or more.
    """
    given = arguments(node)
    rank = given["self"].dim()
    dim = int(given["dim"]) % max(rank, 1)
    place = _device_position(dim, rank)
    if place == entry.params["device_dim"]:
        return
    where = "in the stick" if dim == rank - 1 else f"at device position {place}"
    detail = f"the indexed dim is {where} of the default layout, not at position {entry.params['device_dim']}"
    raise _refusal(node, entry.rule, detail)


def _device_position(dim: int, rank: int) -> int:
    """Where host dim ``dim`` lies in the default device layout (D2.2): dims 1 on, the stick count, dim 0, the lanes."""
    if dim == rank - 1 or rank <= 1:
        return rank
    return rank - 1 if dim == 0 else dim - 1


def avg_pool2d(node: Node, entry: OperatorEntry) -> None:
    """D5.3: no padding, no ceil mode; the divisor is the size of the window."""
    given = arguments(node)
    padded = any(given["padding"] if isinstance(given["padding"], (list, tuple)) else [given["padding"]])
    if padded or given["ceil_mode"] or given["divisor_override"] is not None:
        settings = {name: given[name] for name in ("padding", "ceil_mode", "divisor_override")}
        raise _refusal(node, entry.rule, f"avg_pool2d with {settings}")


def flip(node: Node, entry: OperatorEntry) -> None:
    """D5.4: flip is an index_select on a dim that is not the stick."""
    given = arguments(node)
    if any(d % given["self"].dim() == given["self"].dim() - 1 for d in given["dims"]):
        raise _refusal(node, "indirect-access", "flip along the stick")
    raise Fallback


def dropout(node: Node, entry: OperatorEntry) -> None:
    """D5.2: dropout does not lower."""
    raise _refusal(node, entry.rule, "dropout in a compiled graph; call model.eval()")


def prod(node: Node, entry: OperatorEntry) -> None:
    """D5.3: fp32 and int64, not along the stick."""
    given = arguments(node)
    x = given["self"]
    dim = given.get("dim")
    if dim is None or int(dim) % x.dim() == x.dim() - 1:
        raise _refusal(node, entry.rule, "prod along the stick")


PREDICATES: dict[str, Callable[[Node, OperatorEntry], None]] = {
    "matmul": matmul,
    "pow": power,
    "compare": compare,
    "where": where,
    "cast": cast,
    "creation": creation,
    "sum": total,
    "max_dim": max_dim,
    "topk": topk,
    "layer_norm": layer_norm,
    "select": select,
    "slice_scatter": slice_scatter,
    "pad": pad,
    "cat": cat,
    "index": index,
    "view": view,
    "embedding": embedding,
    "index_copy": index_copy,
    "avg_pool2d": avg_pool2d,
    "flip": flip,
    "dropout": dropout,
    "prod": prod,
}
