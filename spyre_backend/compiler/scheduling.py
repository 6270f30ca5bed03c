"""Inductor's scheduling and wrapper for device ``spyre``: consecutive nodes become one bundle and one launch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
from torch._inductor.codegen.common import DeviceOpOverrides
from torch._inductor.codegen.wrapper import PythonWrapperCodegen
from torch._inductor.scheduler import BaseSchedulerNode, BaseScheduling, Scheduler, SchedulerNode
from torch._inductor.virtualized import V

from spyre_backend import capabilities
from spyre_backend.compiler import bundle, decisions, division, restickify, stages
from spyre_backend.compiler.errors import refuse, refusing
from spyre_backend.compiler.graph import Graph, operands
from spyre_backend.compiler.lowering import fx_graph
from spyre_backend.compiler.trace import root_buffer
from spyre_backend.compiler.translate import Translator, node_origin
from spyre_backend.program import Op, Origin, Program
from spyre_backend.runtime.cache import ProgramCache
from spyre_backend.runtime.offsets import refusal_text, stick_coordinate

_graphs = 0


class SpyreScheduling(BaseScheduling):
    """Collects scheduled nodes until a host operator or the end of the graph, then compiles them as one bundle."""

    def __init__(self, scheduler: Scheduler | None) -> None:
        super().__init__(scheduler)
        global _graphs
        self.graph_name = str(_graphs)
        _graphs += 1
        self.pending: list[SchedulerNode] = []
        self.translator = Translator(self.graph_name)
        self.kernels: dict[str, str] = {}
        self.checked_inputs = False

    def can_fuse_vertical(self, node1: BaseSchedulerNode, node2: BaseSchedulerNode) -> bool:
        """Never: the device runs one operation at a time inside a bundle (D4.6)."""
        return False

    def can_fuse_horizontal(self, node1: BaseSchedulerNode, node2: BaseSchedulerNode) -> bool:
        """Never (D4.6)."""
        return False

    def group_fn(self, sizes: Sequence[Sequence[sympy.Expr]]) -> tuple[tuple[sympy.Expr, ...], ...]:
        """Products of the iteration sizes, as SIMDScheduling gives them."""
        return tuple(V.graph.sizevars.simplify(sympy.prod(s)) for s in sizes)

    def codegen_node(self, node: Any) -> None:
        """Take ``node`` into the bundle under way."""
        for each in node.get_nodes():
            if isinstance(each, SchedulerNode):
                if self.pending and not _joins(each):
                    self._compile()
                self.pending.append(each)

    def codegen_sync(self) -> None:
        """Nothing to do: launches are ordered on their stream."""

    def flush(self) -> None:
        """Compile the bundle under way and emit its launch; then free what nobody reads any more."""
        if self.pending:
            self._compile()
            assert self.scheduler is not None
            self.scheduler.free_buffers()

    def _compile(self) -> None:
        nodes, self.pending = self.pending, []
        if not self.checked_inputs:
            self.checked_inputs = True
            _check_inputs()
        graph = self.translator.graph
        graph.ops = [op for node in nodes for op in self._translated(node)]
        exported = self._exported(nodes)
        self._record("lowering", graph.describe)
        notes = restickify.place(graph, exported)
        self._record("stick-layouts", lambda: _layouts(graph))
        self._record("restickify", lambda: "\n".join(notes) or "nothing moved")
        division.divide(graph)
        self._record("work-division", lambda: division.describe(graph))
        kept = self._kept(graph.ops, nodes)
        built = bundle.build_program(f"sdsc_fused_{len(self.kernels)}", graph, graph.ops, kept)
        self._record("scratchpad", lambda: "\n".join(built.scratchpad_notes))
        self._record("bundling", lambda: "\n".join(built.notes))
        self._record("program", built.program.to_json)
        self._emit(nodes, built.program, kept)

    def _translated(self, node: SchedulerNode) -> list[Op]:
        origin = Origin() if node.node is None else node_origin(node.node)
        with refusing(origin.aten or node.get_name(), origin):
            return self.translator.translate(node)

    def _record(self, stage: str, text: Callable[[], str]) -> None:
        stages.record(stage, self.graph_name, text)

    def _users_outside(self, name: str, inside: set[str]) -> bool:
        assert self.scheduler is not None
        buffer = self.scheduler.name_to_buf.get(name)
        return buffer is None or any(user.get_name() not in inside for user in buffer.users)

    def _exported(self, nodes: Sequence[SchedulerNode]) -> frozenset[str]:
        """Buffers that leave the compiled graph or are read by host operators."""
        assert self.scheduler is not None
        device = {n.get_name() for n in self.scheduler.nodes if isinstance(n, SchedulerNode)}
        names = {b.get_name() for node in nodes for b in node.get_outputs()}
        return frozenset(root_buffer(n) for n in names if self._users_outside(n, device))

    def _kept(self, ops: Sequence[Op], nodes: Sequence[SchedulerNode]) -> frozenset[str]:
        """Buffers that must exist in device memory: everything but what only this bundle makes and reads."""
        inside = {node.get_name() for node in nodes}
        made = {b.get_name() for node in nodes for b in node.get_outputs()}
        internal = {n for n in made if root_buffer(n) == n and not self._users_outside(n, inside)}
        kept = set()
        for op in ops:
            for operand in (op.output, *operands(op)):
                known = V.graph.try_get_buffer(operand.tensor) is not None or operand.tensor in V.graph.constants
                if known and operand.tensor not in internal:
                    kept.add(operand.tensor)
        return frozenset(kept)

    def _emit(self, nodes: Sequence[SchedulerNode], program: Program, kept: frozenset[str]) -> None:
        wrapper = V.graph.wrapper_code
        for node in nodes:
            for output in node.get_outputs():
                if output.get_name() not in kept and root_buffer(output.get_name()) == output.get_name():
                    V.graph.removed_buffers.add(output.get_name())
            node.mark_run()
        digest = program.digest
        _cache().put(program)
        if digest not in self.kernels:
            self.kernels[digest] = f"spyre_program_{len(self.kernels)}"
            if len(self.kernels) == 1:
                wrapper.imports.writeline("from spyre_backend.runtime.launch import load_program")
            wrapper.header.writeline(f"{self.kernels[digest]} = load_program({program.to_json()!r})")
        call = f"{self.kernels[digest]}.launch({', '.join(program.arguments)})"
        wrapper.writeline(call)  # type: ignore[no-untyped-call]


def _joins(node: SchedulerNode) -> bool:
    """Whether an operation goes into the bundle under way (see :mod:`~spyre_backend.compiler.decisions`)."""

    def what() -> str:
        origin = Origin() if node.node is None else node_origin(node.node)
        place = " at ".join(p for p in (origin.aten or node.get_name(), origin.module_path, origin.source_line) if p)
        return f"{place} joins the bundle of the operations before it"

    return decisions.take("bundle", node.get_name(), what)


def _layouts(graph: Graph) -> str:
    return "\n".join(f"{b.name}: {b.size} {b.layout} padding={b.padding}" for b in graph.buffers.values() if b.layout)


@functools.cache
def _cache() -> ProgramCache:
    return ProgramCache()


def _check_inputs() -> None:
    """Graph inputs that are views beginning inside a stick are refused by releases that cannot take them (D2.7)."""
    if capabilities.current().settings.graph_input_mid_stick:
        return
    for node in fx_graph(V.graph).find_nodes(op="placeholder"):
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and value.device.type == "spyre" and stick_coordinate(value):
            text = refusal_text(node.name, value)
            raise refuse("storage-offset", op="graph input", detail=text, shapes=[value.shape], dtypes=[value.dtype])


class SpyrePythonWrapper(PythonWrapperCodegen):
    """The Python wrapper: allocations and launches; there is no C++ wrapper (D4.1)."""

    @staticmethod
    def create(
        is_subgraph: bool,
        subgraph_name: str | None,
        parent_wrapper: PythonWrapperCodegen | None,
        partition_signatures: Any = None,
    ) -> PythonWrapperCodegen:
        """Wrapper for a graph; subgraphs (control flow) take PyTorch's own."""
        if not is_subgraph:
            return SpyrePythonWrapper()  # type: ignore[no-untyped-call]
        made: PythonWrapperCodegen = PythonWrapperCodegen.create(
            is_subgraph, subgraph_name, parent_wrapper, partition_signatures
        )
        return made

    def make_allocation(self, name: str, device: torch.device, *args: Any, **kwargs: Any) -> str:
        line: str = super().make_allocation(name, device, *args, **kwargs)  # type: ignore[no-untyped-call]
        # PyTorch leaves the index to a device guard that it writes around kernels of its own only.
        return line.replace(f"device='{device.type}'", f"device='{device}'")


class SpyreOpOverrides(DeviceOpOverrides):
    """Text that generated wrappers need for device and stream handling."""

    def import_get_raw_stream_as(self, name: str) -> str:
        return f"def {name}(index):\n    return 0\n"

    def set_device(self, device_idx: int) -> str:
        return f"torch.spyre.set_device({device_idx})"

    def synchronize(self) -> str:
        return "torch.spyre.synchronize()"

    def device_guard(self, device_idx: int) -> str:
        return f"torch.spyre.device({device_idx})"

    def current_stream(self) -> str:
        return "torch.spyre.current_stream()"


__all__ = ["SpyreOpOverrides", "SpyrePythonWrapper", "SpyreScheduling"]
