"""Which options each operation of a graph has, by operation class (D2.4).

Pointwise operations run along any stick that all operands can share; matmul, layer norm and topk have fixed sticks;
other reductions take any; copies take any and give the default layout.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from spyre_backend.compiler.errors import CompileRefusal
from spyre_backend.compiler.graph import EPS_BY_DTYPE, Buffer, Graph, operands
from spyre_backend.compiler.layouts import IllegalAccess, default_stick_dim, layout_of, variable_along
from spyre_backend.compiler.restickify_cost import restickify_ps
from spyre_backend.compiler.restickify_options import (
    ANY_INPUT,
    Move,
    Option,
    Placed,
    Reason,
    access_error,
    along,
    depends,
    error,
    forms,
    host_dim,
    is_partial,
    make_move,
    output_dims,
    rebased,
)
from spyre_backend.program import Op, Operand

STICK_REDUCTIONS = frozenset({"exx2_mean", "exx2_meansq", "topkvalue", "topkindex"})
"""Reductions that want the reduced dim along the stick (D2.4)."""
COMBINATIONS = 64
"""Most combinations of operand forms that one operation is tried with."""

Sticks = Mapping[str, int | None]
Form = tuple[Placed, int | None]


class Choices:
    """The options of every operation of ``graph``, given the sticks of the tensors it reads.

    ``exported`` are buffers that leave the graph: they take the default layout unless a reduction made them sparse, a
    matmul gave them its N, or the default is one element in each stick: only copies scatter (D2.4), so the result of
    any other operation keeps the stick of its operands.
    """

    def __init__(self, graph: Graph, exported: frozenset[str]) -> None:
        self.graph = graph
        self.ops = graph.ops
        self.pinned = _pinned(graph)
        self.default = self._defaults(exported)
        self.exported = exported
        self._wide = False
        self._known: dict[tuple[object, ...], list[Option] | CompileRefusal] = {}
        self._reads = [tuple(dict.fromkeys(o.tensor for o in operands(op))) for op in graph.ops]

    def _defaults(self, exported: frozenset[str]) -> dict[str, int | None]:
        found: dict[str, int | None] = {}
        for op in self.ops:
            buffer = self.graph.buffers[op.output.tensor]
            if is_copy(op):
                found[buffer.name] = len(buffer.size) - 1 if buffer.size and buffer.size[-1] > 1 else None
            elif buffer.name in exported and not op.reduced and (stick := default_stick_dim(buffer)) is not None:
                found[buffer.name] = stick
        return found

    def widen(self) -> None:
        """Let operations also be tried along dims that the rule of D2.6 does not consider."""
        self._wide = True
        self._known.clear()

    def needed(self) -> frozenset[Move]:
        """Moves that every plan has: those of tensors that the graph only reads, for operations of a fixed stick."""
        written = {op.output.tensor for op in self.ops}
        found: set[Move] = set()
        for op in self.ops:
            for operand, (stick, reason) in zip(operands(op), _fixed_sticks(op), strict=False):
                if operand.tensor in written or operand.tensor not in self.pinned:
                    continue
                try:
                    given = forms(op, operand, self.graph.buffers[operand.tensor], self.pinned[operand.tensor])
                except CompileRefusal:
                    continue
                ways = self._along(op, operand, given, stick, {}, reason)
                if ways:
                    found |= set.intersection(*(set(placed.moves) for placed in ways))
        return frozenset(found)

    def stick(self, sticks: Sticks, name: str) -> int | None:
        """The host dim along the stick of ``name``: fixed, or as ``sticks`` has it."""
        return self.pinned[name] if name in self.pinned else sticks[name]

    def options(self, index: int, sticks: Sticks) -> list[Option]:
        """The options of operation ``index``, cheapest first among equals in a fixed order.

        Raises:
            CompileRefusal: there is none.
        """
        key = (index, *(self.stick(sticks, name) for name in self._reads[index]))
        known = self._known.get(key)
        if known is None:
            try:
                known = self._options(index, sticks)
            except CompileRefusal as refusal:
                known = refusal
            self._known[key] = known
        if isinstance(known, CompileRefusal):
            raise known
        return known

    def _options(self, index: int, sticks: Sticks) -> list[Option]:
        op = self.ops[index]
        ways: Callable[[Op, list[list[Form]], Sticks], list[Option]]
        if op.name == "batchmatmul":
            ways = self._matmul
            check_matmul(op, self.graph.buffers[op.inputs[0].tensor].eps if isinstance(op.inputs[0], Operand) else 64)
        elif op.name == "gather":
            ways = self._gather
            check_gather(op, self.graph)
        elif op.name == "scatter":
            ways = self._scatter
            check_scatter(op, self.graph, self.stick(sticks, op.output.tensor))
        elif op.name == "avgpoolfwd":
            return self._pool(op, sticks)
        elif op.reduced:
            ways = self._reduction
        elif is_copy(op):
            ways = self._copy
        else:
            ways = self._pointwise
        given = [forms(op, o, self.graph.buffers[o.tensor], self.stick(sticks, o.tensor)) for o in operands(op)]
        return ways(op, given, sticks)

    def _copy(self, op: Op, given: list[list[Form]], sticks: Sticks) -> list[Option]:
        return [self._finished(op, (placed,), stick, rank=(i, 0)) for i, (placed, stick) in enumerate(given[0])]

    def _gather(self, op: Op, given: list[list[Form]], sticks: Sticks) -> list[Option]:
        (table, stick), (row, _) = given[0][0], given[1][0]
        return [self._finished(op, (table, row), stick, rank=(0, 0))]

    def _scatter(self, op: Op, given: list[list[Form]], sticks: Sticks) -> list[Option]:
        """Values lie along the stick of the tensor that they go to; the index has sticks of its own (D2.4)."""
        buffer = self.graph.buffers[op.output.tensor]
        stick = self._written(op, buffer, self.stick(sticks, buffer.name))
        found = self._along(op, next(operands(op)), given[0], stick, sticks, "operands")
        if not found:
            raise self._no_scatter(op, [given[0][0]], stick)
        row = given[1][0][0]
        ranks = itertools.chain([(0, 0)], itertools.repeat(None))
        return [self._finished(op, (p, row), stick, rank=rank) for p, rank in zip(found, ranks, strict=False)]

    def _matmul(self, op: Op, given: list[list[Form]], sticks: Sticks) -> list[Option]:
        """K runs along the stick of A and N along that of B; what is constant there cannot carry it (D2.4, D2.7)."""
        columns = len(op.dims) - 2
        sides: list[list[Placed]] = []
        for operand, found, (stick, reason) in zip(operands(op), given, _fixed_sticks(op), strict=True):
            ways = self._along(op, operand, found, stick, sticks, reason)
            sides.append([placed for placed in ways if placed.operand.stick == stick])
            if not sides[-1]:
                raise self._no_scatter(op, [f[0] for f in given], stick)
        return self._combined(op, sides, columns, lambda first: (0, 0) if first else None)

    def _reduction(self, op: Op, given: list[list[Form]], sticks: Sticks) -> list[Option]:
        kept = len(op.dims) - op.reduced
        (operand,) = operands(op)
        if op.name in STICK_REDUCTIONS:
            found = self._along(op, operand, given[0], kept, sticks, "reduction")
            if not found:
                raise self._no_scatter(op, [given[0][0]], kept)
            result = kept if op.name.startswith("topk") else None
            return self._combined(op, [found], result, lambda first: (0, 0) if first else None)
        natural = [(placed, stick, (i, 0)) for i, (placed, stick) in enumerate(given[0])]
        if op.name == "prod" and all(stick is not None and stick >= kept for _, stick, _ in natural):
            raise error(op, "reduction-stick", "prod cannot reduce along the stick")
        options = [
            self._finished(op, (placed,), None if stick is None or stick >= kept else stick, rank=rank)
            for placed, stick, rank in natural
            if not (op.name == "prod" and stick is not None and stick >= kept)
        ]
        for stick in range(kept) if self._wide else ():
            if all(stick != s for _, s in given[0]):
                for placed in self._along(op, operand, given[0], stick, sticks, "operands"):
                    if placed.operand.stick == stick:
                        options.append(self._finished(op, (placed,), stick))
        return options

    def _pool(self, op: Op, sticks: Sticks) -> list[Option]:
        """Windows run over rows and columns; the channels, as in a direct convolution, along the stick (D2.4, D5.3).

        Windows overlap, so that the whole tensor moves and not the view.
        """
        (operand,) = operands(op)
        buffer, channel = self.graph.buffers[operand.tensor], len(op.dims) - op.reduced - 3
        host = self.stick(sticks, operand.tensor)
        if channel < 0 or op.dims[channel] == 1:
            raise error(op, "reduction-stick", f"{op.name} needs channels along the stick")
        try:
            if variable_along(operand, op.dims, buffer, host) == channel:
                return [self._finished(op, (Placed(replace(operand, stick=channel)),), channel, rank=(0, 0))]
        except IllegalAccess:
            pass
        moved = rebased(op, operand, buffer, host, range(len(buffer.size)))
        found = [placed for placed, stick in moved if stick == channel]
        if not found:
            raise error(op, "reduction-stick", f"{op.name}: failed to map stick_dims to host coords")
        return [self._finished(op, (replace(found[0], reason="pool"),), channel, rank=(0, 0))]

    def _pointwise(self, op: Op, given: list[list[Form]], sticks: Sticks) -> list[Option]:
        first = [found[0] for found in given]
        natural = self._natural(op, first)
        tensors = [*operands(op)]
        options: list[Option] = []
        others = range(len(op.dims)) if self._wide else ()
        for stick in [*natural, *(s for s in others if s not in natural)]:
            if stick not in natural and not (options and self._usable(op, stick)):
                continue
            sides = [self._along(op, o, f, stick, sticks, "operands") for o, f in zip(tensors, given, strict=True)]
            if not all(sides):
                continue
            rank = (self._elements_moved(op, first, stick), -(len(op.dims) if stick is None else stick))
            keep = rank if stick in natural else None
            options += self._combined(op, sides, stick, lambda is_first, keep=keep: keep if is_first else None)  # type: ignore[misc]
        if not options:
            raise self._no_scatter(op, first, None)
        return options

    def _natural(self, op: Op, given: Sequence[Form]) -> list[int | None]:
        """Sticks that the operands bring along, and the last dim of the result (D2.6)."""
        buffer = self.graph.buffers[op.output.tensor]
        if buffer.name in self.pinned:
            return [self._written(op, buffer, self.pinned[buffer.name])]
        last = next((i for i in reversed(range(len(op.dims))) if op.dims[i] > 1 and op.output.strides[i]), None)
        if op.name == "layernormnorm":
            return [len(op.dims) - 1 if op.dims[-1] > 1 else None]
        found: list[int | None] = []
        for stick in [*(s for _, s in given), last]:
            if self._usable(op, stick) and stick not in found:
                found.append(stick)
        return found

    def _usable(self, op: Op, stick: int | None) -> bool:
        """Whether a result can have iteration dim ``stick`` along its stick."""
        buffer = self.graph.buffers[op.output.tensor]
        return stick is None or (op.output.strides[stick] != 0 and host_dim(op, buffer, stick) is not None)

    def _elements_moved(self, op: Op, given: Sequence[Form], stick: int | None) -> int:
        total = 0
        for placed, current in given:
            if current != stick and depends(op, placed.operand, stick):
                total += math.prod(n for n, s in zip(op.dims, placed.operand.strides, strict=True) if s)
        return total

    def _along(
        self, op: Op, operand: Operand, given: Sequence[Form], stick: int | None, sticks: Sticks, reason: Reason
    ) -> list[Placed]:
        """Every form of ``operand`` with ``stick`` along its stick: moved as a view, or with its whole tensor."""
        buffer = self.graph.buffers[operand.tensor]
        host = self.stick(sticks, operand.tensor)
        found = [p for p in (along(op, form, stick, buffer, host, reason) for form in given) if p is not None]
        as_it_lies = [p for p in found if not p.moves]
        if as_it_lies:
            return as_it_lies
        if stick is not None and is_partial(op, operand, buffer) and not given[0][0].moves:
            whole = rebased(op, operand, buffer, host, range(len(buffer.size)))
            found += [placed for placed, current in whole if current == stick]
        return found

    def _combined(
        self,
        op: Op,
        sides: Sequence[Sequence[Placed]],
        stick: int | None,
        rank: Callable[[bool], tuple[float, int] | None],
    ) -> list[Option]:
        combinations = itertools.islice(itertools.product(*sides), COMBINATIONS)
        return [self._finished(op, inputs, stick, rank=rank(i == 0)) for i, inputs in enumerate(combinations)]

    def _finished(
        self, op: Op, inputs: tuple[Placed, ...], stick: int | None, *, rank: tuple[float, int] | None = None
    ) -> Option:
        """The option with its output: an output of another fixed layout is written through a temporary."""
        buffer = self.graph.buffers[op.output.tensor]
        if buffer.name in self.pinned:
            layout = self.pinned[buffer.name]
        elif buffer.name in self.default:
            layout = self.default[buffer.name]
        elif buffer.name in self.exported and op.reduced and op.name != "batchmatmul" and stick is not None:
            default = default_stick_dim(buffer)
            layout = host_dim(op, buffer, stick) if default is None else default
        else:
            layout = host_dim(op, buffer, stick)
        written = self._written(op, buffer, layout)
        if written == stick or written is None or op.name in ANY_INPUT:
            return Option(stick=stick, inputs=inputs, layout=layout, written=written, rank=rank)
        dims = op.dims[: len(op.dims) - op.reduced]
        extra = restickify_ps(dims, EPS_BY_DTYPE[op.output.dtype], stick, written)
        gives = None
        if stick is not None and op.output.strides[stick]:
            target = replace(op.output, strides=op.output.strides[: len(dims)])
            gives = make_move(target, dims, stick, buffer, layout)
        return Option(
            stick=stick, inputs=inputs, layout=layout, written=written, extra=max(extra, 1), gives=gives, rank=rank
        )

    def _written(self, op: Op, buffer: Buffer, layout: int | None) -> int | None:
        try:
            return variable_along(op.output, output_dims(op), buffer, layout, store=True)
        except IllegalAccess as problem:
            raise access_error(op, problem) from None

    def _no_scatter(self, op: Op, given: Sequence[Form], stick: int | None) -> CompileRefusal:
        places = [f"{p.operand.tensor} along {'nothing' if s is None else f'd{s}'}" for p, s in given]
        wanted = "" if stick is None else f" where d{stick} is wanted"
        text = f"no stick scatter, no mechanism to resolve stick incompatibility: {'; '.join(places)}{wanted}"
        return error(op, "double-broadcast", text)


def is_copy(op: Op) -> bool:
    """Whether ``op`` only copies a tensor (a fill has no tensor)."""
    return op.name in ANY_INPUT and not op.reduced and any(True for _ in operands(op))


def _pinned(graph: Graph) -> dict[str, int | None]:
    """Buffers whose layout is not ours to choose, and its stick dim: what comes from outside or from an earlier bundle,
    and what several operations write (cat), which begins as an empty tensor of the default layout."""
    writers: dict[str, int] = {}
    for op in graph.ops:
        writers[op.output.tensor] = writers.get(op.output.tensor, 0) + 1
    found: dict[str, int | None] = {}
    for name, buffer in graph.buffers.items():
        if buffer.external or (buffer.layout is None and writers.get(name, 0) > 1):
            found[name] = default_stick_dim(buffer)
        elif buffer.layout is not None:
            found[name] = buffer.layout.stick_dim
    return found


def _fixed_sticks(op: Op) -> tuple[tuple[int, Reason], ...]:
    """For each operand, the dim that the operation class puts along its stick (D2.4); empty if it leaves that open."""
    if op.name == "batchmatmul":
        return ((len(op.dims) - 1, "matmul-a"), (len(op.dims) - 2, "matmul-b"))
    return ((len(op.dims) - op.reduced, "reduction"),) if op.name in STICK_REDUCTIONS else ()


def check_matmul(op: Op, eps: int) -> None:
    """D6.11: K in whole sticks, at least two columns."""
    columns, width = op.dims[-2], op.dims[-1]
    if width % eps:
        raise error(op, "matmul-k-stick", f"Could not find any suitable dimension mapping: K={width}")
    if columns < 2:
        name = [*operands(op)][1].tensor
        text = f"cannot restickify any input layout of {name} to carry x_var=d{len(op.dims) - 2}"
        raise error(op, "matmul-out-one", text)


def check_gather(op: Op, graph: Graph) -> None:
    """D2.4: the indexed dim is the outermost one of the table."""
    buffer = graph.buffers[next(operands(op)).tensor]
    stride = int(op.attrs["index_stride"])
    if not buffer.stride or stride != max(s for s, n in zip(buffer.stride, buffer.size, strict=True) if n >= 1):
        raise error(op, "indirect-access", "the indexed dim is not at device position 0")


def check_scatter(op: Op, graph: Graph, stick: int | None) -> None:
    """D2.4, D5.4: the indexed dim is at device position 0 of the tensor that is written."""
    layout = layout_of(graph.buffers[op.output.tensor], stick)
    indexed = (int(op.attrs["index_extent"]), int(op.attrs["index_stride"]))
    if indexed[0] > 1 and indexed != (layout.device_size[0], layout.stride_map[0]):
        raise error(op, "indirect-access", "the indexed dim is not at device position 0")
