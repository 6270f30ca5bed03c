"""Embedding tables that multiply by a constant buffer, with that constant as a number."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hf_adapters.adapters import _probe
from hf_adapters.protocols import Adapter, Example, PatcherProtocol, Site


class ScaledTable(nn.Module):
    """Mixin for embedding tables whose rows are scaled by a 0-dimensional buffer (Gemma).

    Attributes:
        factors: value of the buffer when the model was patched, rounded to each dtype that the table may have; a tensor
            of rank 0 has no stick to compute with.
    """

    weight: Tensor
    padding_idx: int | None
    factors: dict[torch.dtype, float]

    def forward(self, input: Tensor) -> Tensor:
        """Ids ``[...]`` -> ``[..., width]``; the factor is rounded to the dtype of the table first, as stock."""
        return F.embedding(input, self.weight, self.padding_idx) * self.factors[self.weight.dtype]


def _factor(module: nn.Embedding) -> float | None:
    scalars = [b for b in module._buffers.values() if b is not None and b.dim() == 0]
    if type(module).forward is nn.Embedding.forward or len(scalars) != 1 or not scalars[0].is_floating_point():
        return None
    factor = float(scalars[0])
    ids = torch.arange(min(3, module.num_embeddings))
    small = nn.Embedding(len(ids), module.embedding_dim, dtype=torch.float64)
    twin = _twin(module, small.weight)
    stock = _probe.run(twin, ids)
    return factor if _probe.same(stock, small(ids).detach() * factor) else None


def _twin(module: nn.Embedding, weight: Tensor) -> nn.Module:
    """The module with another, small table and its buffers in float64; the module itself is not changed."""
    twin = module.__class__.__new__(module.__class__)
    twin.__dict__.update(module.__dict__)
    twin.__dict__["_parameters"] = {"weight": weight}
    twin.__dict__["_buffers"] = {n: b.detach().cpu().double() for n, b in module._buffers.items() if b is not None}
    twin.__dict__["padding_idx"] = None
    return twin


def _sites(model: nn.Module) -> list[Site]:
    found = []
    for path, module in model.named_modules():
        if not isinstance(module, nn.Embedding) or isinstance(module, ScaledTable):
            continue
        factor = _factor(module)
        if factor is not None:
            before, after = "lookup times a buffer", f"lookup times {factor:g}"
            found.append(Site(path=path, kind="table", before=before, after=after, meta={"factor": factor}))
    return found


def _apply(patcher: PatcherProtocol, model: nn.Module, site: Site) -> None:
    patcher.swap_class(model.get_submodule(site.path), ScaledTable, factors=_rounded(site.meta["factor"]))


def _rounded(factor: float) -> dict[torch.dtype, float]:
    dtypes = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    return {dtype: torch.tensor(factor, dtype=torch.float64).to(dtype).item() for dtype in dtypes}


def _build() -> nn.Module:
    from transformers.models.gemma3.modeling_gemma3 import Gemma3TextScaledWordEmbedding

    torch.manual_seed(3)
    return nn.Sequential(Gemma3TextScaledWordEmbedding(20, 70, 0, embed_scale=70**0.5)).double().eval()


def _inputs() -> dict[str, Tensor]:
    return {"input": torch.arange(20).view(4, 5)}


def _examples() -> list[Example]:
    return [Example("gemma", _build, _inputs)]


ADAPTER = Adapter(
    name="scaled_embedding",
    summary="Embedding tables scaled by a constant buffer (Gemma) scaled by a number instead.",
    rules=("op-fallback",),
    equivalence="exact",
    sites=_sites,
    apply=_apply,
    examples=_examples,
    order=8,
)
