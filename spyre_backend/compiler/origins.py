"""From an FX node to the place in the user's model it came from."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch.fx import Node

from spyre_backend.program import Origin

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)(?:\n\s+(?P<text>[^\n]+))?')


def origin_of(node: Node) -> Origin:
    """The aten op, module path and innermost user source line of ``node`` (each None where PyTorch kept no record)."""
    target = node.target
    aten = str(target) if isinstance(target, torch._ops.OpOverload) else str(getattr(target, "__name__", target))
    return Origin(aten=aten, module_path=_module_path(node), source_line=_source_line(node.meta.get("stack_trace")))


def _module_path(node: Node) -> str | None:
    stack = node.meta.get("nn_module_stack")
    if not stack:
        return None
    path, kind = list(stack.values())[-1]
    path = re.sub(r"^L\['self'\]\.?", "", str(path))
    path = re.sub(
        r"\._modules\['([^']+)'\]|\['([^']+)'\]|\[(\d+)\]", lambda m: "." + next(g for g in m.groups() if g), path
    )
    name = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"
    return f"{path.strip('.') or '<root>'} ({name.rsplit('.', 1)[-1]})"


def _source_line(trace: str | None) -> str | None:
    frames = list(_FRAME.finditer(trace or ""))
    if not frames:
        return None
    torch_root = str(Path(torch.__file__).parent)
    outside = [f for f in frames if not f["file"].startswith(torch_root)] or frames
    frame = outside[-1]
    text = f": {frame['text'].strip()}" if frame["text"] else ""
    return f"{frame['file']}:{frame['line']} in {frame['function']}{text}"
