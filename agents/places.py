"""Which module of a model an operation that ran on the CPU belongs to."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from hf_adapters._classes import split_class
from hf_adapters._regions import find_regions
from hf_adapters.validation.conduct import ALLOWED_FALLBACKS
from hf_adapters.validation.functions import Call, Patch
from hf_adapters.validation.inputs import InputSet
from hf_adapters.validation.smallest import recorded_calls


def computed(fallbacks: Mapping[str, int]) -> str | None:
    """The first operation that may not run on the CPU and did, of a verdict's `op (category)` -> calls."""
    allowed = tuple(f" ({category})" for category in ALLOWED_FALLBACKS)
    return next((key.partition(" ")[0] for key in fallbacks if not key.endswith(allowed)), None)


def of_fallback(model: nn.Module, op: str, apply: Patch, batch: InputSet, release: str) -> str:
    """Path of the first module that runs an operation on the CPU when it is called alone; `""` when none does.

    Args:
        model: stock, float32, on the CPU; left as it was.
        op: such as `aten.cos.out`.
        apply: patches the model as it was when it ran.
        batch: the inputs of the calls.
        release: torch-spyre release.
    """
    with apply(model) as candidate:
        modules = dict(_branches(candidate))
        calls = recorded_calls(candidate, list(modules), batch)
        twins = {path: copy.deepcopy(module) for path, module in modules.items()}
    return next(
        (path for path, twin in twins.items() if path in calls and op in _on_cpu(twin, calls[path], release)), ""
    )


def _branches(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """One module of each class: those that hold nothing but tables, then those that are compiled."""
    regions = dict(find_regions(model))
    around = {parent for path in regions for parent in _parents(path)}
    seen: set[type[nn.Module]] = set()
    compiled = list(regions.items())
    tables = [
        (path, module)
        for path, module in model.named_modules()
        if path not in around and path not in regions and not any(parent in regions for parent in _parents(path))
    ]
    for path, module in (*tables, *compiled):
        kind = split_class(type(module))[0]
        if path and kind not in seen and not isinstance(module, (nn.Embedding, nn.ModuleList)):
            seen.add(kind)
            yield path, module


def _parents(path: str) -> list[str]:
    parts = path.split(".")
    return ["", *(".".join(parts[:end]) for end in range(1, len(parts)))]


def _on_cpu(module: nn.Module, call: Call, release: str) -> set[str]:
    """Operations that a module runs on the CPU and may not."""
    import hf_adapters

    spyre: Any = torch.spyre  # type: ignore[attr-defined]
    try:
        compiled = hf_adapters.compile(module.eval(), only=(), release=release)
        spyre.reset_fallback_counts()
        with torch.no_grad():
            compiled(*call.args, **call.kwargs)
    except Exception:  # what is refused is no fallback, and is told elsewhere
        return set()
    return {str(op) for op, category in spyre.fallback_counts() if category not in ALLOWED_FALLBACKS}
