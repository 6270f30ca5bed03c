"""Activations built on pow or on the tanh form of gelu, written with products only.

``torch.pow`` with a scalar exponent does not lower in release 2026.07 (D5.2), and the device ignores the
``approximate`` argument of gelu (D5.2), which would silently give the erf form.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from hf_adapters.adapters import _probe
from hf_adapters.protocols import Adapter, Example, PatcherProtocol, Site

_SATURATED = 10.0
"""tanh(sqrt(2/pi) * (x + 0.044715 x^3)) is exactly +-1 in float64 from here on, so the cube can stay in range."""


def tanh_gelu(x: Tensor) -> Tensor:
    """The tanh form of gelu without pow; any shape, any floating dtype.

    The cube of a value beyond 2047 leaves the range of the device format (8.57e9, D1.5), hence the bound.
    """
    bounded = torch.clamp(x, -_SATURATED, _SATURATED)
    cube = bounded * bounded * bounded
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (bounded + 0.044715 * cube)))


def erf_gelu(x: Tensor) -> Tensor:
    """The erf form of gelu, as the native operation: erf itself has no kernel (D5.2)."""
    return nn.functional.gelu(x)


def squared_relu(x: Tensor) -> Tensor:
    """relu(x)^2 as a product."""
    positive = nn.functional.relu(x)
    return positive * positive


class TanhGelu(nn.Module):
    """Mixin: :func:`tanh_gelu` in place of a module that computes the same with pow or with ``approximate``."""

    def forward(self, input: Tensor) -> Tensor:
        """Elementwise; shape and dtype are kept."""
        return tanh_gelu(input)


class ErfGelu(nn.Module):
    """Mixin: :func:`erf_gelu` in place of a formula that calls erf."""

    def forward(self, input: Tensor) -> Tensor:
        """Elementwise; shape and dtype are kept."""
        return erf_gelu(input)


class SquaredRelu(nn.Module):
    """Mixin: :func:`squared_relu` in place of a formula that squares with pow."""

    def forward(self, input: Tensor) -> Tensor:
        """Elementwise; shape and dtype are kept."""
        return squared_relu(input)


_CANDIDATES: dict[str, tuple[type, str]] = {
    "tanh gelu": (TanhGelu, "0.5 * x * (1 + tanh(c * (x + 0.044715 * x*x*x)))"),
    "erf gelu": (ErfGelu, "native gelu"),
    "squared relu": (SquaredRelu, "relu(x) * relu(x)"),
}


def _recognise(module: nn.Module) -> str | None:
    names = _probe.code_names(type(module).forward)
    act = getattr(module, "act", None)
    if callable(act):
        names |= _probe.code_names(getattr(act, "func", act))
    grid = torch.cat([torch.linspace(-12, 12, 193), torch.tensor([-300.0, 300.0])]).double()[:, None]
    result = _probe.run(module, grid)
    if _probe.same(result, tanh_gelu(grid)) and not names <= {"tanh"}:
        return "tanh gelu"
    if "erf" in names and _probe.same(result, erf_gelu(grid)):
        return "erf gelu"
    if names & {"square", "pow"} and _probe.same(result, squared_relu(grid)):
        return "squared relu"
    return None


def _sites(model: nn.Module) -> list[Site]:
    found = []
    for path, module in _probe.leaves(model):
        stateless = not (module._parameters or module._buffers)
        if not stateless or isinstance(module, (nn.Identity, nn.modules.dropout._DropoutNd, *_mixins())):
            continue
        if len(_probe.required_arguments(module)) != 1:
            continue
        kind = _recognise(module)
        if kind is not None:
            after = _CANDIDATES[kind][1]
            found.append(Site(path=path, kind=kind, before=type(module).__name__, after=after))
    return found


def _mixins() -> tuple[type, ...]:
    return tuple(mixin for mixin, _ in _CANDIDATES.values())


def _apply(patcher: PatcherProtocol, model: nn.Module, site: Site) -> None:
    patcher.swap_class(model.get_submodule(site.path), _CANDIDATES[site.kind][0])


def _build(name: str) -> nn.Module:
    from transformers.activations import ACT2FN

    return nn.Sequential(ACT2FN[name]).double().eval()


def _inputs() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(3)
    body = torch.randn(64, 5, generator=generator, dtype=torch.float64) * 3
    tails = torch.tensor([0.0, -0.0, 1e-7, -1e-7, 40.0, -40.0, 3000.0, -3000.0, 9.9, -9.9], dtype=torch.float64)
    return {"input": torch.cat([body.flatten(), tails])}


def _build_gelu_new() -> nn.Module:
    return _build("gelu_new")


def _build_gelu_pytorch_tanh() -> nn.Module:
    return _build("gelu_pytorch_tanh")


def _build_gelu_accurate() -> nn.Module:
    return _build("gelu_accurate")


def _build_gelu_python() -> nn.Module:
    return _build("gelu_python")


def _build_relu2() -> nn.Module:
    return _build("relu2")


def _examples() -> list[Example]:
    builders = (_build_gelu_new, _build_gelu_pytorch_tanh, _build_gelu_accurate, _build_gelu_python, _build_relu2)
    return [Example(name=b.__name__.removeprefix("_build_"), build=b, inputs=_inputs) for b in builders]


ADAPTER = Adapter(
    name="gelu_tanh",
    summary="Activations that use pow, erf or the tanh form of gelu, written with products and native operations.",
    rules=("pow-scalar-exponent", "op-unsupported"),
    equivalence="exact",
    sites=_sites,
    apply=_apply,
    examples=_examples,
    order=20,
)
