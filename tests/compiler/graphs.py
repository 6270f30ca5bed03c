"""Builds the compiler's own graphs by hand, and runs the stages after lowering on them."""

from __future__ import annotations

from spyre_backend.compiler import bundle, division, restickify
from spyre_backend.compiler.bundle import Bundle
from spyre_backend.compiler.graph import Buffer, Graph, contiguous_strides
from spyre_backend.program import Const, Op, Operand


class Builder:
    """A graph under construction; tensors are named, and contiguous unless an access says otherwise."""

    def __init__(self) -> None:
        self.graph = Graph(name="test")

    def input(self, *size: int, dtype: str = "float16") -> str:
        return self._buffer(f"arg{len(self.graph.buffers)}", size, dtype, external=True)

    def _buffer(self, name: str, size: tuple[int, ...], dtype: str, *, external: bool = False) -> str:
        self.graph.buffers[name] = Buffer(
            name=name, dtype=dtype, size=size, stride=contiguous_strides(size), external=external
        )
        return name

    def size(self, name: str) -> tuple[int, ...]:
        return self.graph.buffers[name].size

    def read(self, name: str, order: tuple[int | None, ...] | None = None, offset: int = 0) -> Operand:
        """An access whose dim ``i`` walks the tensor's dim ``order[i]`` (None: broadcast)."""
        buffer = self.graph.buffers[name]
        chosen = tuple(range(len(buffer.size))) if order is None else order
        strides = tuple(0 if d is None or buffer.size[d] == 1 else buffer.stride[d] for d in chosen)
        return Operand(tensor=name, strides=strides, offset=offset, dtype=buffer.dtype)

    def op(
        self,
        name: str,
        dims: tuple[int, ...],
        *inputs: Operand | float,
        reduced: int = 0,
        size: tuple[int, ...] | None = None,
        dtype: str = "float16",
    ) -> str:
        """Append an operation with a fresh contiguous result over the dims that are not reduced."""
        kept = dims[: len(dims) - reduced]
        out = self._buffer(f"buf{len(self.graph.buffers)}", kept if size is None else size, dtype)
        strides = tuple(s if n > 1 else 0 for s, n in zip(contiguous_strides(kept), kept, strict=True))
        target = Operand(tensor=out, strides=(*strides, *[0] * reduced), offset=0, dtype=dtype)
        given = tuple(i if isinstance(i, Operand) else Const(value=i, dtype="float16") for i in inputs)
        self.graph.ops.append(Op(name=name, dims=dims, reduced=reduced, inputs=given, output=target))
        return out

    def unary(self, name: str, x: str, order: tuple[int, ...] | None = None) -> str:
        """A pointwise operation on ``x``, transposed by ``order`` on the way."""
        dims = self.size(x) if order is None else tuple(self.size(x)[d] for d in order)
        return self.op(name, dims, self.read(x, order))

    def matmul(self, a: str, b: str) -> str:
        """[M, K] @ [K, N]."""
        (m, k), (_, n) = self.size(a), self.size(b)
        return self.op("batchmatmul", (m, n, k), self.read(a, (0, None, 1)), self.read(b, (None, 1, 0)), reduced=1)

    def reduce(self, name: str, x: str) -> str:
        """Over the last dim, kept with size 1."""
        dims = self.size(x)
        order = (*range(len(dims) - 1), None, len(dims) - 1)
        return self.op(name, (*dims[:-1], 1, dims[-1]), self.read(x, order), reduced=1)

    def add(self, x: str, y: str) -> str:
        """With the broadcast of size-1 dims of ``y``."""
        return self.op("add", self.size(x), self.read(x), self.read(y))

    def divided(self) -> list[Op]:
        """The operations after layouts, restickify and work division."""
        written = [op.output.tensor for op in self.graph.ops]
        restickify.place(self.graph, frozenset(written[-1:]))
        division.divide(self.graph)
        return self.graph.ops

    def build(self) -> Bundle:
        """The bundle whose only result is the last operation's."""
        kept = {b.name for b in self.graph.buffers.values() if b.external} | {self.graph.ops[-1].output.tensor}
        return bundle.build_program("test", self.graph, self.divided(), frozenset(kept))


def by_name(ops: list[Op] | tuple[Op, ...], name: str) -> list[Op]:
    return [op for op in ops if op.name == name]
