"""Activations that cube or square with pow, written as products."""

from __future__ import annotations

import functools

from torch import nn

from hf_adapters.adapters._activations import (
    SquaredRelu,
    TanhGelu,
    activation,
    activations,
    computes,
    squared_relu,
    tails,
    tanh_form,
)
from hf_adapters.protocols import Adapter, Example, PatcherProtocol, Site


def _sites(model: nn.Module) -> list[Site]:
    found = []
    for path, module, names in activations(model):
        if not names & {"pow", "square"}:
            continue
        if computes(module, tanh_form):
            found.append(Site(path=path, kind="cube", before="pow(x, 3)", after="x * x * x"))
        elif computes(module, squared_relu):
            found.append(Site(path=path, kind="square", before="pow(relu(x), 2)", after="relu(x) * relu(x)"))
    return found


def _apply(patcher: PatcherProtocol, model: nn.Module, site: Site) -> None:
    patcher.swap_class(model.get_submodule(site.path), TanhGelu if site.kind == "cube" else SquaredRelu)


def _examples() -> list[Example]:
    names = ("gelu_new", "gelu_accurate", "gelu_python_tanh", "relu2")
    return [Example(name, functools.partial(activation, name), tails) for name in names]


ADAPTER = Adapter(
    name="small_powers",
    summary="pow with a small integer exponent in activations (gelu_new, relu2) as products.",
    rules=("pow-scalar-exponent",),
    equivalence="reassociated",
    sites=_sites,
    apply=_apply,
    examples=_examples,
    releases=("2026.07",),
    order=20,
)
