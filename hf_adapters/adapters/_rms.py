"""Root-mean-square norms recognised by what they compute, and padded rows for norms of either kind."""

from __future__ import annotations

import itertools
from typing import Any

from torch import Tensor, nn

from hf_adapters.adapters import _probe
from hf_adapters.adapters._norms import ProductRMSNorm, TwoPassLayerNorm, pad_norm
from hf_adapters.adapters.layer_norm import eps_names, layer_norm_of, norm_width, probe_rows
from hf_adapters.protocols import PatcherProtocol


def _variants() -> list[dict[str, Any]]:
    flags = itertools.product((True, False), (False, True), (False, True), (0.0, 1.0))
    keys = ("always_float32", "scale_early", "statistics_only", "scale_offset")
    return [dict(zip(keys, values, strict=True)) for values in flags]


class _Candidate(ProductRMSNorm):
    """A free-standing module that computes one of the variants, to compare a stock module with."""

    def __init__(self, weight: Tensor | None, eps: float | None, variant: dict[str, Any]) -> None:
        super().__init__()
        self.weight = weight
        self.eps = eps
        self.eps_name = "eps"
        self.__dict__.update(variant)


def variant_of(module: nn.Module) -> dict[str, Any] | None:
    """How a stock module normalises (attributes of :class:`ProductRMSNorm`); None when it is no such norm."""
    width = norm_width(module)
    if width is None or isinstance(module, (ProductRMSNorm, TwoPassLayerNorm)):
        return None
    if getattr(module, "bias", None) is not None or len(_probe.required_arguments(module)) != 1:
        return None
    twin, rows = _probe.double_copy(module), probe_rows(width)
    result = _probe.run(twin, rows)
    if result is None:
        return None
    weight = getattr(twin, "weight", None)
    for name, variant in itertools.product(eps_names(module), _variants()):
        candidate = _Candidate(None if weight is None else weight.detach(), getattr(twin, name), variant)
        if _probe.same(result, _probe.run(candidate, rows)):
            return {"eps_name": name, **variant}
    return None


def pad_any_norm(patcher: PatcherProtocol, norm: nn.Module, width: int, padded: int) -> None:
    """Pads a norm of either kind, also in a release whose adapters leave root-mean-square norms alone.

    Raises:
        TypeError: the module is not a norm that an adapter knows.
    """
    if not isinstance(norm, (ProductRMSNorm, TwoPassLayerNorm)):
        form, variant = layer_norm_of(norm), variant_of(norm)
        if form is not None:
            patcher.swap_class(norm, TwoPassLayerNorm, **form)
        elif variant is not None:
            patcher.swap_class(norm, ProductRMSNorm, **variant)
    pad_norm(patcher, norm, width, padded)
