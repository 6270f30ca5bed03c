"""Whether a candidate lowers, and what it costs on the simulated card: asked from the compiler, not from its rules."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from hf_adapters._regions import strict_dynamo
from hf_adapters.agents.rewrite.candidate import Candidate
from hf_adapters.validation.conduct import ALLOWED_FALLBACKS
from hf_adapters.validation.unsupported import unsupported_in
from spyre_backend import capabilities
from spyre_backend.emulator.clock import program_time
from spyre_backend.errors import SpyreUnsupported

_LINE = re.compile(r"<eval_with_key>\.\d+:(\d+) in forward")


@dataclass(frozen=True, kw_only=True)
class Lowering:
    """What the compiler made of a candidate.

    Attributes:
        us: simulated microseconds of its programs; None when it does not lower.
        refused: what the device refused.
        node: name of the graph's node where it did, None when the compiler does not say.
        elsewhere: operations that ran on the CPU and may not.
        error: an error that is no refusal.
    """

    us: float | None = None
    refused: SpyreUnsupported | None = None
    node: str | None = None
    elsewhere: tuple[str, ...] = ()
    error: str | None = None


def lower(candidate: Candidate, release: str, call: int = 0) -> Lowering:
    """Compile a candidate for the device and run it on a recorded call.

    Args:
        candidate: the form.
        release: torch-spyre release.
        call: which of the recorded calls.
    """
    from spyre_backend.runtime.observed import launches

    module = candidate.root(torch.float32)
    arguments = [_place(value) for value in candidate.traced.arguments(call)]
    spyre: Any = torch.spyre  # type: ignore[attr-defined]
    with capabilities.use(release), strict_dynamo(), torch.no_grad():
        _to_device(module)
        torch._dynamo.reset()
        compiled: Any = _with_compiled_children(module) if candidate.eager else _compiled(module)
        spyre.reset_fallback_counts()
        try:
            with launches() as programs:
                compiled(*arguments)
        except Exception as error:
            return _refusal(error, module)
        elsewhere = {op for (op, category) in spyre.fallback_counts() if category not in ALLOWED_FALLBACKS}
        if elsewhere:
            return Lowering(elsewhere=tuple(sorted(map(str, elsewhere))), node=_named(module, elsewhere))
        return Lowering(us=sum(program_time(program).us for program in programs))


def _compiled(module: fx.GraphModule) -> Any:
    return torch.compile(module, backend="inductor", dynamic=False)


def _with_compiled_children(module: fx.GraphModule) -> fx.GraphModule:
    for child in module.children():
        if type(child) is not torch.nn.Embedding:
            child.forward = torch.compile(child.forward, backend="inductor", dynamic=False)
    return module


def _refusal(error: Exception, module: fx.GraphModule) -> Lowering:
    refused = unsupported_in(error)
    if refused is None:
        return Lowering(error=f"{type(error).__name__}: {error}"[:500])
    return Lowering(refused=refused, node=_at(refused.source_line, module))


def _at(line: str | None, module: fx.GraphModule) -> str | None:
    """The node that a line of the generated forward belongs to."""
    found = _LINE.search(line or "")
    if found is None:
        return None
    lines = module.code.splitlines()
    index = int(found[1]) - 1
    offset = 0
    for text in lines[min(index + offset, len(lines) - 1) :: -1]:
        name = text.strip().partition(" ")[0].partition(":")[0]
        if any(node.name == name for node in module.graph.nodes):
            return name
    return None


def _named(module: fx.GraphModule, operators: set[Any]) -> str | None:
    names = {str(op).removeprefix("aten.").removeprefix("aten::").partition(".")[0] for op in operators}
    for node in module.graph.nodes:
        target = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
        if target in names:
            return str(node.name)
    return None


def _place(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    # Cast on the host, then moved (D6.10).
    value = value.detach().contiguous()
    return (value.half() if value.is_floating_point() else value).to("spyre")


def _to_device(module: fx.GraphModule) -> None:
    for inner in module.modules():
        stores: tuple[dict[str, Any], ...] = (inner._parameters, inner._buffers)
        for store in stores:
            for name, tensor in store.items():
                if tensor is not None:
                    placed = _place(tensor)
                    keep = isinstance(tensor, torch.nn.Parameter)
                    store[name] = torch.nn.Parameter(placed, requires_grad=False) if keep else placed
        for name, value in list(vars(inner).items()):
            # Tables that adapters derived.
            if isinstance(value, Tensor):
                inner.__dict__[name] = _place(value)
