"""Which axes of a model have a width that does not fill whole sticks, and what has to be padded with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hf_adapters._classes import split_class
from hf_adapters.adapters import _probe
from hf_adapters.adapters._heads import COUNTS, SIZES
from hf_adapters.adapters._norms import ProductRMSNorm, TwoPassLayerNorm
from hf_adapters.adapters._rms import variant_of
from hf_adapters.adapters._sticks import STICK, Spread, features, has_plan, is_whole, round_up
from hf_adapters.adapters.layer_norm import layer_norm_of


@dataclass
class WidthPlan:
    """What has to be padded, all of it or nothing.

    Attributes:
        linears: path -> (plan of the output features, plan of the input features).
        norms: path -> width.
        tables: path -> width.
        padded: every width that is padded -> the width it gets.
    """

    linears: dict[str, tuple[Spread | None, Spread | None]] = field(default_factory=dict)
    norms: dict[str, int] = field(default_factory=dict)
    tables: dict[str, int] = field(default_factory=dict)
    padded: dict[int, int] = field(default_factory=dict)


def padded_widths(model: nn.Module, crooked: set[int]) -> dict[int, int]:
    """The whole number of sticks that each width gets.

    The width alone tells, where features leave the model, whether they were padded; so no two widths get the same, and
    none gets a width that the model has itself.
    """
    taken: set[int] = set()
    for module in model.modules():
        sizes = features(module)
        if sizes is not None:
            taken |= set(sizes)
        else:
            taken |= {p.shape[-1] for p in module._parameters.values() if p is not None and p.dim()}
    chosen: dict[int, int] = {}
    for width in sorted(crooked):
        padded = round_up(width)
        while padded in taken:
            padded += STICK
        chosen[width] = padded
        taken.add(padded)
    return chosen


def plan_widths(model: nn.Module) -> WidthPlan | None:
    """What to pad so that every product contracts over whole sticks; None when nothing has to or not all of it can.

    A width is padded wherever it occurs: in the residual stream, or between two projections of a feed-forward network.
    Zeros stay zeros through norms (with the true count), residual additions and products, and meet zero columns.
    """
    products = [(m, size) for m in model.modules() if (size := features(m)) is not None]
    crooked = {size[0] for m, size in products if not is_whole(size[0]) and not has_plan(m, 1)}
    if not crooked or not _heads_settled(model, crooked):
        return None
    plan = WidthPlan(padded=padded_widths(model, crooked))
    for path, module in model.named_modules():
        size = features(module)
        if size is not None:
            rows, columns = _rows(model, path, size[1], plan.padded), _columns(module, size[0], plan.padded)
            if rows or columns:
                plan.linears[path] = (rows, columns)
        elif not _add_other(plan, path, module, crooked) or _mixes_features(module, crooked):
            return None
    made = {rows[1] for rows, _ in plan.linears.values() if rows} | set(plan.tables.values())
    return plan if crooked <= made else None  # what comes from outside, or is put together, stays as narrow as it is


def _heads_settled(model: nn.Module, crooked: set[int]) -> bool:
    """Projections into heads of such a width are padded head by head, or their heads fill sticks already.

    Attention that nobody padded splits its features into heads by sizes of its own, so zeros at the end of all of them
    would fall into the wrong heads.
    """
    for module in model.modules():
        size = next((module.__dict__[n] for n in SIZES if isinstance(module.__dict__.get(n), int)), None)
        counted = any(isinstance(module.__dict__.get(n), int) for n in COUNTS)
        if is_whole(size) if size is not None else not counted:
            continue
        direct = [child for child in module.children() if (features(child) or (0, 0))[1] in crooked]
        if any(not has_plan(child, 0) and not has_plan(child, 1) for child in direct):
            return False
    return True


def _rows(model: nn.Module, path: str, width: int, padded: dict[int, int]) -> Spread | None:
    if has_plan(model.get_submodule(path), 0):
        return None
    if width in padded:
        return (1, width, padded[width])
    half, rest = divmod(width, 2)
    parent = model.get_submodule(path.rpartition(".")[0])
    if not rest and half in padded and "chunk" in _probe.code_names(type(parent).forward):
        return (2, half, padded[half])
    return None


def _columns(module: nn.Module, width: int, padded: dict[int, int]) -> Spread | None:
    return None if has_plan(module, 1) or width not in padded else (1, width, padded[width])


def _add_other(plan: WidthPlan, path: str, module: nn.Module, crooked: set[int]) -> bool:
    """Adds a table or a norm to the plan; False when the module holds such a width in a way nobody knows."""
    own = [p for p in module._parameters.values() if p is not None]
    sizes = {p.shape[-1] for p in own if p.dim()} & crooked
    shape = module.__dict__.get("normalized_shape")
    if isinstance(shape, tuple):
        sizes = set(shape[-1:]) & crooked
    if not sizes:
        return True
    width = sizes.pop()
    if isinstance(module, nn.Embedding):
        plan.tables[path] = width
        return nn.Embedding in type(module).__mro__ and _plain_table(module)
    if isinstance(module, (TwoPassLayerNorm, ProductRMSNorm)) or layer_norm_of(module) or variant_of(module):
        plan.norms[path] = width
        return getattr(module, "weight", None) is not None
    return False


def _mixes_features(module: nn.Module, crooked: set[int]) -> bool:
    """A module without weights whose features depend on how many there are (FNet's transform)."""
    if next(module.children(), None) is not None or next(module.parameters(), None) is not None:
        return False
    if not crooked or len(_probe.required_arguments(module)) != 1:
        return False
    width = min(crooked)
    rows = torch.randn(1, 3, width, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    alone, padded = (_probe.run(_first(module), x) for x in (rows, F.pad(rows, (0, round_up(width) - width))))
    kept = alone is not None and alone.shape == rows.shape
    return kept and not _probe.same(None if padded is None else padded[..., :width], alone)


def _first(module: nn.Module) -> Callable[[Tensor], Any]:
    twin = _probe.double_copy(module)

    def call(x: Tensor) -> Any:
        result = twin(x)
        return result[0] if isinstance(result, tuple) else result

    return call


def _plain_table(module: nn.Embedding) -> bool:
    """The table only looks rows up (scaled or otherwise changed ones are left alone)."""
    stock: Any = split_class(type(module))[0]
    if stock.forward is not nn.Embedding.forward:
        return False
    return not any(b is not None for b in module._buffers.values()) and module.max_norm is None
