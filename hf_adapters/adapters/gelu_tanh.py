"""The tanh form of gelu asked for by argument, and gelu written with erf."""

from __future__ import annotations

import functools

from torch import nn

from hf_adapters.adapters._activations import (
    ErfGelu,
    TanhGelu,
    activation,
    activations,
    computes,
    tails,
    tanh_gelu,
)
from hf_adapters.protocols import Adapter, Example, PatcherProtocol, Site


def _sites(model: nn.Module) -> list[Site]:
    found = []
    for path, module, names in activations(model):
        if "pow" not in names and "tanh" not in names and computes(module, tanh_gelu):
            before, after = "gelu(approximate='tanh')", "tanh form with products"
            found.append(Site(path=path, kind="tanh", before=before, after=after))
        elif "erf" in names and computes(module, nn.functional.gelu):
            found.append(Site(path=path, kind="erf", before="x * (1 + erf(x / sqrt(2))) / 2", after="native gelu"))
    return found


def _apply(patcher: PatcherProtocol, model: nn.Module, site: Site) -> None:
    patcher.swap_class(model.get_submodule(site.path), TanhGelu if site.kind == "tanh" else ErfGelu)


def _examples() -> list[Example]:
    names = ("gelu_pytorch_tanh", "gelu_python")
    return [Example(name, functools.partial(activation, name), tails) for name in names]


ADAPTER = Adapter(
    name="gelu_tanh",
    summary="The device ignores the argument that asks for the tanh form of gelu, so the form is written out.",
    rules=("op-unsupported",),
    equivalence="exact",
    sites=_sites,
    apply=_apply,
    examples=_examples,
    order=20,
)
