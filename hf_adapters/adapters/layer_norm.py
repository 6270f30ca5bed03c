"""Layer norms with a two-pass variance in float32."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hf_adapters.adapters import _probe
from hf_adapters.adapters._norms import TwoPassLayerNorm
from hf_adapters.protocols import Adapter, Example, PatcherProtocol, Site


def probe_rows(width: int) -> Tensor:
    """Rows ``[2, 4, width]`` whose scales go from far above to far below any epsilon."""
    generator = torch.Generator().manual_seed(11)
    rows = torch.randn(2, 4, width, generator=generator, dtype=torch.float64) + 0.3
    return rows * torch.tensor([1.0, 30.0, 1e-3, 1e-6], dtype=torch.float64)[:, None]


def norm_width(module: nn.Module) -> int | None:
    """Length of the last dimension that a norm-like leaf module works on; None when it cannot be one."""
    parameters = [p for p in module._parameters.values() if p is not None]
    shapes = {tuple(p.shape) for p in parameters}
    if len(shapes) > 1 or any(len(shape) != 1 for shape in shapes) or set(module._parameters) - {"weight", "bias"}:
        return None
    if shapes:
        return int(next(iter(shapes))[0])
    declared = getattr(module, "normalized_shape", None)
    if isinstance(declared, (tuple, list)):
        return int(declared[0]) if len(declared) == 1 else None
    return 8 if eps_names(module) else None


def eps_names(module: nn.Module) -> list[str]:
    """Attributes of a module that can be its epsilon."""
    small = [n for n, v in module.__dict__.items() if isinstance(v, float) and v > 0.0]
    return small + [n for n in ("eps",) if module.__dict__.get(n, 0) is None]


class _InFloat32(TwoPassLayerNorm):
    """The form that always normalises in float32, to compare a stock module with."""

    always_float32 = True

    def __init__(self, stock: nn.Module, eps: float) -> None:
        super().__init__()
        self.weight, self.bias = getattr(stock, "weight", None), getattr(stock, "bias", None)
        self.eps, self.eps_name = eps, "eps"


def layer_norm_of(module: nn.Module) -> dict[str, Any] | None:
    """How a stock module normalises (attributes of :class:`TwoPassLayerNorm`); None when it is no such norm."""
    width = norm_width(module)
    if width is None or isinstance(module, TwoPassLayerNorm) or len(_probe.required_arguments(module)) != 1:
        return None
    twin, rows = _probe.double_copy(module), probe_rows(width)
    result = _probe.run(twin, rows)
    for name in eps_names(module):
        eps = getattr(twin, name)
        weight, bias = getattr(twin, "weight", None), getattr(twin, "bias", None)
        if eps is None:
            continue
        if _probe.same(result, F.layer_norm(rows, (width,), weight, bias, eps)):
            return {"eps_name": name, "always_float32": False}
        if _probe.same(result, _probe.run(_InFloat32(twin, eps), rows)):
            return {"eps_name": name, "always_float32": True}
    return None


def _sites(model: nn.Module) -> list[Site]:
    found = []
    for path, module in _probe.leaves(model):
        form = layer_norm_of(module)
        if form is not None:
            after = "mean, deviation, mean of squares, rsqrt in float32"
            found.append(Site(path=path, kind="layer norm", before=type(module).__name__, after=after, meta=form))
    return found


def _apply(patcher: PatcherProtocol, model: nn.Module, site: Site) -> None:
    patcher.swap_class(model.get_submodule(site.path), TwoPassLayerNorm, **site.meta)


def _build(affine: bool, bias: bool, eps: float) -> nn.Module:
    norm = nn.LayerNorm(70, eps=eps, elementwise_affine=affine, bias=bias).double()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return nn.Sequential(norm).eval()


def _deberta() -> nn.Module:
    from transformers.models.deberta.modeling_deberta import DebertaLayerNorm

    return nn.Sequential(DebertaLayerNorm(70, 1e-7)).double().eval()


def _inputs() -> dict[str, Tensor]:
    rows = torch.cat([probe_rows(70), torch.zeros(1, 4, 70, dtype=torch.float64)])
    return {"input": torch.cat([rows, torch.full((1, 4, 70), 3.0, dtype=torch.float64)])}


def _examples() -> list[Example]:
    cases = {"affine": (True, True, 1e-12), "no_bias": (True, False, 1e-5), "plain": (False, False, 1e-5)}
    made = [
        Example(name=name, build=functools.partial(_build, affine=a, bias=b, eps=e), inputs=_inputs)
        for name, (a, b, e) in cases.items()
    ]
    return [*made, Example("always_float32", _deberta, _inputs)]


ADAPTER = Adapter(
    name="layer_norm",
    summary="Layer norms with a two-pass variance in float32, which stays finite where the native one turns NaN.",
    rules=("layer-norm-shape", "op-unsupported"),
    equivalence="reassociated",
    sites=_sites,
    apply=_apply,
    examples=_examples,
    order=30,
)
