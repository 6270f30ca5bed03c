"""How much was multiplied on the device: who computes elsewhere, or not at all, multiplies less than stock.

Rewrites that are right keep the matrix products of the stock model or enlarge them (padding), so fewer
multiplications mean that work was skipped or done where no device program sees it. Work without products that is moved
to the CPU in a compiled region shows in the graph that is compiled.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, fx

MATMUL = "batchmatmul"
"""Device function of a matrix product, and the prefix of its low-precision forms (D4.7)."""

LEAST_SHARE = 0.9
"""Share of the stock multiplications that a candidate has to do on the device."""


@dataclass(slots=True)
class Work:
    """Multiplications done so far."""

    multiplications: int = 0


@contextmanager
def device_work() -> Iterator[Work]:
    """Count the multiplications of the matrix products that are launched on the device inside the block."""
    from spyre_backend.runtime.launch import LoadedProgram

    done = Work()
    sizes: dict[str, int] = {}
    stock = LoadedProgram.launch

    def launch(self: LoadedProgram, *args: Any) -> None:
        stock(self, *args)
        if self.digest not in sizes:
            sizes[self.digest] = sum(math.prod(op.dims) for op in self.program.ops if op.name.startswith(MATMUL))
        done.multiplications += sizes[self.digest]

    LoadedProgram.launch = launch  # type: ignore[method-assign]
    try:
        yield done
    finally:
        LoadedProgram.launch = stock  # type: ignore[method-assign]


_MOVES = {
    "alias", "as_strided", "broadcast_to", "cat", "chunk", "clone", "concat", "concatenate", "contiguous", "copy",
    "cpu", "cuda", "detach", "diagonal", "double", "embedding", "expand", "expand_as", "flatten", "flip", "float",
    "gather", "getitem", "half", "index", "index_select", "moveaxis", "movedim", "narrow", "pad", "permute",
    "ravel", "repeat", "repeat_interleave", "reshape", "roll", "select", "slice", "split", "split_with_sizes",
    "squeeze", "stack", "swapaxes", "t", "take_along_dim", "tensor_split", "tile", "to", "transpose", "type",
    "type_as", "unbind", "unflatten", "unfold", "unsqueeze", "view",
}  # fmt: skip
"""Operations that only move or convert values, such as the look-up of a table."""


@dataclass(slots=True)
class HostWork:
    """Operations that compiled regions do on the CPU -> how often they were compiled."""

    operations: Counter[str] = field(default_factory=Counter)


@contextmanager
def host_work() -> Iterator[HostWork]:
    """Note what is compiled for the CPU inside the block, of what is computed from a region's floating-point inputs.

    No fallback is counted for it: Inductor writes a C++ kernel. The preparation of integers and of masks made of
    them is not noted. Graphs are read as Dynamo hands them over, before any cache of compiled ones is asked.
    """
    from torch._inductor import compile_fx

    found = HostWork()
    stock = compile_fx.compile_fx

    def compiled(model: Any, *args: Any, **options: Any) -> Any:
        if isinstance(model, fx.GraphModule):
            found.operations.update(_on_host(model.graph))
        return stock(model, *args, **options)

    compile_fx.compile_fx = compiled  # type: ignore[assignment]
    try:
        yield found
    finally:
        compile_fx.compile_fx = stock


@dataclass(slots=True)
class Reads:
    """Elements of floating-point tensors that were copied from the device to the host."""

    inside: int = 0
    """By the model's forward itself, in those calls that fetched more than one for each token."""
    others: int = 0
    """By the recording, and by the compiler, which folds constants."""


@contextmanager
def host_reads() -> Iterator[Reads]:
    """Count what the forward of a compiled model fetches from the device while it runs in the block.

    What lies outside of compiled regions runs call by call, so values that an adapter moves to the CPU there, computes
    with and moves back leave no fallback and no graph; but they have to be fetched. Results that the caller gets, and
    those that a recording keeps, are not fetched by the forward. A mask in floating point may be, because it says what
    the caller's integers say.
    """
    from torch._inductor import compile_fx

    from hf_adapters import _execution
    from hf_adapters.validation import recording
    from spyre_backend import _C

    found = Reads()
    stock_forward, stock_copy, stock_compile = _execution._stock_forward, recording.to_host, compile_fx.compile_fx

    def forward(model: Any, state: Any) -> Any:
        inner = stock_forward(model, state)

        def called(*args: Any, **kwargs: Any) -> Any:
            before = _C.values_read() - found.others
            try:
                return inner(*args, **kwargs)
            finally:
                fetched = _C.values_read() - found.others - before
                found.inside += fetched if fetched > _tokens((*args, *kwargs.values())) else 0

        return called

    def apart(stock: Any) -> Any:
        def called(*args: Any, **kwargs: Any) -> Any:
            # The compiler calls itself: what the inner call counted is not counted again.
            before = _C.values_read() - found.others
            try:
                return stock(*args, **kwargs)
            finally:
                found.others += _C.values_read() - found.others - before

        return called

    _execution._stock_forward = forward
    recording.to_host, compile_fx.compile_fx = apart(stock_copy), apart(stock_compile)
    try:
        yield found
    finally:
        _execution._stock_forward, recording.to_host, compile_fx.compile_fx = stock_forward, stock_copy, stock_compile


def _tokens(arguments: Iterable[Any]) -> int:
    """Rows times positions of the largest batch among a model's arguments."""
    return max((math.prod(v.shape[:2]) for v in arguments if isinstance(v, Tensor) and v.dim() >= 2), default=0)


def _on_host(graph: fx.Graph) -> Iterator[str]:
    """Names of the operations on the CPU whose operands come from floating-point inputs of the graph."""
    derived: set[fx.Node] = set()
    for node in graph.nodes:
        value = node.meta.get("example_value")
        values = [v for v in (value if isinstance(value, (tuple, list)) else [value]) if _is_floating(v)]
        if node.op in ("placeholder", "get_attr") and any(v.numel() > 1 for v in values):
            derived.add(node)
        elif values and derived.intersection(node.all_input_nodes):
            derived.add(node)
            if any(v.device.type == "cpu" for v in values) and (name := _name(node.target)) not in _MOVES:
                yield name


def _is_floating(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _name(target: Any) -> str:
    """`sigmoid` of a function, a method or an overload of an operator."""
    return str(target if isinstance(target, str) else getattr(target, "__name__", target)).partition(".")[0]
