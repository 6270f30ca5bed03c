"""pow with a small integer exponent written as products: in activations and in root-mean-square norms."""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn

from hf_adapters.adapters import _probe
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
from hf_adapters.adapters._norms import ProductRMSNorm
from hf_adapters.adapters._rms import variant_of
from hf_adapters.adapters.layer_norm import probe_rows
from hf_adapters.protocols import Adapter, Example, PatcherProtocol, Site


def _sites(model: nn.Module) -> list[Site]:
    return [*_activation_sites(model), *_norm_sites(model)]


def _activation_sites(model: nn.Module) -> list[Site]:
    found = []
    for path, module, names in activations(model):
        if not names & {"pow", "square"}:
            continue
        if computes(module, tanh_form):
            found.append(Site(path=path, kind="cube", before="pow(x, 3)", after="x * x * x"))
        elif computes(module, squared_relu):
            found.append(Site(path=path, kind="square", before="pow(relu(x), 2)", after="relu(x) * relu(x)"))
    return found


def _norm_sites(model: nn.Module) -> list[Site]:
    found = []
    for path, module in _probe.leaves(model):
        variant = variant_of(module)
        if variant is not None:
            after = "x * rsqrt(mean(x * x) + eps) in float32"
            found.append(Site(path=path, kind="rms norm", before=type(module).__name__, after=after, meta=variant))
    return found


def _apply(patcher: PatcherProtocol, model: nn.Module, site: Site) -> None:
    module = model.get_submodule(site.path)
    if site.kind == "rms norm":
        patcher.swap_class(module, ProductRMSNorm, **site.meta)
    else:
        patcher.swap_class(module, TanhGelu if site.kind == "cube" else SquaredRelu)


def _norm(family: str) -> nn.Module:
    from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
    from transformers.models.llama.modeling_llama import LlamaRMSNorm
    from transformers.models.t5.modeling_t5 import T5LayerNorm

    classes = {"llama": LlamaRMSNorm, "gemma3": Gemma3RMSNorm, "t5": T5LayerNorm}
    norm = nn.RMSNorm(70, eps=1e-6) if family == "torch" else classes[family](70, eps=1e-6)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        norm.weight.copy_(torch.randn(70, generator=generator))
    return nn.Sequential(norm).double().eval()


def _norm_inputs() -> dict[str, Tensor]:
    return {"input": torch.cat([probe_rows(70), torch.zeros(1, 4, 70, dtype=torch.float64)])}


def _norm_examples() -> list[Example]:
    return [
        Example(name=f"{family}_norm", build=functools.partial(_norm, family), inputs=_norm_inputs)
        for family in ("llama", "gemma3", "t5", "torch")
    ]


def _examples() -> list[Example]:
    names = ("gelu_new", "gelu_accurate", "gelu_python_tanh", "relu2")
    return [*(Example(name, functools.partial(activation, name), tails) for name in names), *_norm_examples()]


ADAPTER = Adapter(
    name="small_powers",
    summary="pow with a small integer exponent as products: in activations (gelu_new, relu2) and RMS norms.",
    rules=("pow-scalar-exponent",),
    equivalence="reassociated",
    sites=_sites,
    apply=_apply,
    examples=_examples,
    releases=("2026.07",),
    order=20,
)
