"""Activations whose usual form the device does not have, or computes with several roundings."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor, nn

from hf_adapters.adapters._activations import (
    ROOT,
    SHORT_ROOT,
    SHORTER_ROOT,
    ErfGelu,
    Mish,
    QuickGelu,
    TanhGelu,
    activation,
    activations,
    computes,
    erf_gelu,
    functions,
    mish,
    quick_gelu,
    tails,
    tanh_form,
)
from hf_adapters.protocols import Adapter, Example, PatcherProtocol, Site

_FORMS: dict[str, tuple[Callable[[Tensor], Tensor], type, str]] = {
    "tanh gelu": (tanh_form, TanhGelu, "x * sigmoid(2u) in float32"),
    "fast gelu": (functools.partial(tanh_form, root=SHORT_ROOT), TanhGelu, "x * sigmoid(2u) in float32"),
    "faster gelu": (functools.partial(tanh_form, root=SHORTER_ROOT), TanhGelu, "x * sigmoid(2u) in float32"),
    "quick gelu": (quick_gelu, QuickGelu, "x * sigmoid(1.702 x) in float32"),
    "mish": (mish, Mish, "x * n / (n + 2) with n = e^x (e^x + 2) in float32"),
}
"""kind -> (formula that recognises it, mixin, what is done). The native gelu ignores its argument (D5.2), tanh and
softplus have 16-bit kernels only (D1.6)."""


_ROOTS = {"tanh gelu": ROOT, "fast gelu": SHORT_ROOT, "faster gelu": SHORTER_ROOT}


def _sites(model: nn.Module) -> list[Site]:
    found = []
    for path, module, names in activations(model):
        if "pow" in names:
            continue
        if "erf" in names and computes(module, nn.functional.gelu):
            found.append(Site(path=path, kind="erf gelu", before="x * (1 + erf(x / sqrt(2))) / 2", after="native gelu"))
        kind = next((k for k, (formula, _, _) in _FORMS.items() if computes(module, formula)), None)
        if kind is not None:
            found.append(Site(path=path, kind=kind, before=type(module).__name__, after=_FORMS[kind][2]))
    for path, name, function in functions(model):
        if computes(function, nn.functional.gelu):
            meta = {"name": name}
            found.append(
                Site(path=path, kind="erf function", before=f"{name}() with erf", after="native gelu", meta=meta)
            )
    return found


def _apply(patcher: PatcherProtocol, model: nn.Module, site: Site) -> None:
    module = model.get_submodule(site.path)
    if site.kind == "erf function":
        patcher.rebind(module, {site.meta["name"]: erf_gelu})
        return
    if site.kind == "erf gelu":
        patcher.swap_class(module, ErfGelu)
        return
    patcher.swap_class(module, _FORMS[site.kind][1])
    if site.kind in _ROOTS:
        patcher.set_attr(module, "root", _ROOTS[site.kind])


def _esm() -> nn.Module:
    from transformers import EsmConfig
    from transformers.models.esm.modeling_esm import EsmIntermediate

    torch.manual_seed(1)
    module: nn.Module = EsmIntermediate(EsmConfig(hidden_size=64, intermediate_size=64))
    return module.double().eval()


def _bloom() -> nn.Module:
    from transformers.models.bloom.modeling_bloom import BloomGelu

    return nn.Sequential(BloomGelu()).eval()


def _examples() -> list[Example]:
    names = ("gelu_pytorch_tanh", "gelu_fast", "gelu_python", "quick_gelu", "mish")
    made = [Example(name, functools.partial(activation, name), tails) for name in names]
    made.append(Example("esm", _esm, lambda: {"hidden_states": tails()["input"][:128].view(2, 64)}))
    return [*made, Example("bloom", _bloom, lambda: {"input": tails()["input"]})]


ADAPTER = Adapter(
    name="activation_forms",
    summary="Gelu asked for in another form, and mish, from operations that the device has in float32.",
    rules=("op-unsupported", "dtype-fp32-op"),
    equivalence="reassociated",
    sites=_sites,
    apply=_apply,
    examples=_examples,
    order=20,
)
