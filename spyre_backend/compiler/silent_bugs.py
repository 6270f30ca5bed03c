"""Silent bugs as wrong accesses in a finished bundle: what the device computes is right, what it reads is not (D2.8).

Each function takes the operations of a bundle and returns them with the bug's effect.  None runs unless the release or
``SPYRE_BACKEND_SILENT_BUGS`` switches it on; ``capabilities/2026_07.toml`` describes triggers and effects.  Where a
source gives no more than "wrong", the effect is the simplest wrong access with that trigger; "(modelled)" marks these.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from spyre_backend import capabilities
from spyre_backend.compiler import decisions, settings
from spyre_backend.program import Const, Op, Operand, TensorSpec

Specs = Mapping[str, TensorSpec]
_STICK: Final = 64
_COPIES: Final = frozenset({"identity", "ReStickifyOpHBM"})
_LINEAR_BLOCK: Final = 2048


def apply(ops: Sequence[Op], specs: Specs) -> list[Op]:
    """The operations with the effects of the bugs that are on; ``specs`` are the bundle's tensors by name."""
    release, result = capabilities.current().settings, list(ops)
    for name, effect in EFFECTS.items():
        if release.bug(name):
            result = effect(result, specs)
    return result


def _with_inputs(op: Op, change: Callable[[Operand], Operand]) -> Op:
    return replace(op, inputs=tuple(x if isinstance(x, Const) else change(x) for x in op.inputs))


def column_slice(ops: Sequence[Op], specs: Specs) -> list[Op]:
    """#3264: a copy of columns that start on a later stick takes the first columns."""

    def change(x: Operand) -> Operand:
        spec = specs[x.tensor]
        width = spec.size[-1] if spec.size and spec.stride[-1] == 1 else 0
        column = x.offset % width if width else 0
        return replace(x, offset=x.offset - column) if column and column % _STICK == 0 else x

    return [_with_inputs(op, change) if op.name in _COPIES else op for op in ops]


def split_stick_slice(ops: Sequence[Op], specs: Specs) -> list[Op]:
    """#4260: of a view that splits the stick into (heads, D), the slice [..., :64] reads row 2 l instead of l.

    Rows past the end come round again: the source says nothing about them.
    """
    result: list[Op] = []
    for op in ops:
        row = next((r for x in op.inputs if isinstance(x, Operand) for r in _sliced_heads(op, x, specs)), None)
        if row is None or op.dims[row] % 2 or op.reduced:
            result.append(op)
            continue
        half = op.dims[row] // 2
        dims = tuple(half if i == row else n for i, n in enumerate(op.dims))
        for part in range(2):
            doubled = replace(op, inputs=tuple(_every_other(op, x, row, specs) for x in op.inputs))
            output = replace(op.output, offset=op.output.offset + part * half * op.output.strides[row])
            result.append(replace(doubled, dims=dims, output=output, split=(1,) * len(dims), core_order=()))
    return result


def _sliced_heads(op: Op, x: Operand, specs: Specs) -> list[int]:
    """The row dim, if this access takes 64 of more than 64 columns of each head of each row of the tensor."""
    spec = specs[x.tensor]
    width = spec.size[-1] if spec.size else 0
    inner = [i for i, (n, s) in enumerate(zip(op.dims, x.strides, strict=True)) if s == 1 and n == _STICK]
    heads = [s for n, s in zip(op.dims, x.strides, strict=True) if _STICK < s < width and n * s == width]
    rows = [i for i, (n, s) in enumerate(zip(op.dims, x.strides, strict=True)) if s == width and n > 1]
    return rows[:1] if inner and heads else []


def _every_other(op: Op, x: Operand | Const, row: int, specs: Specs) -> Operand | Const:
    if isinstance(x, Const) or not _sliced_heads(op, x, specs):
        return x
    return replace(x, strides=tuple(2 * s if i == row else s for i, s in enumerate(x.strides)))


def _in_memory_order(op: Op, x: Operand, sequence: int | None) -> Operand:
    """An access by (..., H, S, D) of memory in the order (..., S, H, D), as if nothing had been transposed."""
    dims = [i for i, n in enumerate(op.dims) if n > 1]
    for h, s, d in zip(dims, dims[1:], dims[2:], strict=False):
        width, rows = op.dims[d], op.dims[h] * op.dims[d]
        if (sequence or op.dims[s]) == op.dims[s] and (x.strides[h], x.strides[s], x.strides[d]) == (width, rows, 1):
            strides = list(x.strides)
            strides[h], strides[s] = op.dims[s] * width, width
            return replace(x, strides=tuple(strides))
    return x


def transposed_heads(ops: Sequence[Op], specs: Specs) -> list[Op]:
    """#1783: view(B, S, H, D).transpose(1, 2) at S = 64 in fp16 is read as if nothing were transposed (modelled)."""
    return [_flattened(op, 64) for op in ops]


def norm_of_view(ops: Sequence[Op], specs: Specs) -> list[Op]:
    """#1781: the mean square of a transposed [B, H, S, D] view is that of the memory's order (modelled)."""
    means = ("mean", "exx2_mean", "exx2_meansq")
    return [_flattened(op, None) if op.name in means else op for op in ops]


def _flattened(op: Op, sequence: int | None) -> Op:
    return _with_inputs(op, lambda x: _in_memory_order(op, x, sequence) if x.dtype == "float16" else x)


def resident_slice(ops: Sequence[Op], specs: Specs) -> list[Op]:
    """#2062: the offset of a slice of a scratchpad resident is dropped.

    The planner leaves sliced temporaries in device memory, which is how the bug was fixed; with it, they count as
    residents.
    """

    if not settings.current().lx_planning:
        return list(ops)

    def change(x: Operand) -> Operand:
        sliced = specs[x.tensor].kind == "temp" and x.offset
        return replace(x, offset=0) if sliced and _is_resident(x.tensor) else x

    return [_with_inputs(op, change) for op in ops]


def _is_resident(name: str) -> bool:
    return decisions.take("resident", name, lambda: f"{name}, of which a slice is read, stays in the scratchpads")


def single_piece(ops: Sequence[Op], specs: Specs) -> list[Op]:
    """#1760: a piece of size 1 in a cat repeats its first element (modelled)."""

    def single(op: Op) -> bool:
        written, whole = math.prod(op.dims), specs[op.output.tensor].size
        cat = op.origin.aten is not None and op.origin.aten.startswith("aten.cat.")
        return cat and any(n > 1 and written * n == math.prod(whole) for n in whole)

    def change(x: Operand) -> Operand:
        return replace(x, strides=(0,) * len(x.strides))

    return [_with_inputs(op, change) if single(op) else op for op in ops]


def second_gather(ops: Sequence[Op], specs: Specs) -> list[Op]:
    """#3502: of two gathers in a bundle, the later one uses the indices of the first, as far as they go (modelled)."""
    first: Operand | None = None
    result = []
    for op in ops:
        index = op.inputs[1] if op.name == "gather" else None
        if not isinstance(index, Operand):
            result.append(op)
            continue
        if first is None:
            first = index
        elif specs[first.tensor].storage_elements >= specs[index.tensor].storage_elements:
            index = replace(index, tensor=first.tensor, dtype=first.dtype)
        result.append(replace(op, inputs=(op.inputs[0], index, *op.inputs[2:])))
    return result


def ragged_linear(ops: Sequence[Op], specs: Specs) -> list[Op]:
    """#1918: an eager linear computes the features beyond a multiple of 2048 from its first rows (modelled).

    Eager programs have one matmul and nothing else but copies.
    """
    if any(op.name not in (*_COPIES, "batchmatmul") for op in ops):
        return list(ops)
    result: list[Op] = []
    for op in ops:
        columns = len(op.dims) - 2
        rest = op.dims[columns] % _LINEAR_BLOCK if op.name == "batchmatmul" else 0
        full = op.dims[columns] - rest if rest else 0
        if not full:
            result.append(op)
            continue
        for width, start in ((full, 0), (rest, full)):
            dims = tuple(width if i == columns else n for i, n in enumerate(op.dims))
            output = replace(op.output, offset=op.output.offset + start * op.output.strides[columns])
            result.append(replace(op, dims=dims, output=output, split=(1,) * len(dims), core_order=()))
    return result


EFFECTS: dict[str, Callable[[Sequence[Op], Specs], list[Op]]] = {
    "issue-3264": column_slice,
    "issue-4260": split_stick_slice,
    "issue-1783": transposed_heads,
    "issue-1781": norm_of_view,
    "issue-2062": resident_slice,
    "issue-1760": single_piece,
    "issue-3502": second_gather,
    "issue-1918": ragged_linear,
}
