"""Embedding lookups in forms that the device has: scaled by a buffer, from one row, by ids that the caller left out."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hf_adapters.adapters import _probe
from hf_adapters.protocols import Adapter, Example, PatcherProtocol, Site

NAME = "token_type_ids"


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


class SingleRow(nn.Module):
    """Mixin for an embedding table ``[1, width]``: a gather from it asks for two incompatible sticks (D5.4)."""

    weight: Tensor

    def forward(self, input: Tensor) -> Tensor:
        """Ids ``[...]``, which can only be 0 -> ``[..., width]``.

        Raises:
            IndexError: an id is not 0, as the stock lookup does.
        """
        # Inside a compiled region the ids are on the device, where nothing can be decided from them.
        if not torch.compiler.is_compiling() and input.numel() and bool(input.detach().cpu().any()):
            raise IndexError(f"index out of range: the table has one row, the ids go up to {int(input.cpu().max())}")
        return self.weight.expand(*input.shape, self.weight.shape[1])


class ExpandedSegments(nn.Module):
    """Mixin for embeddings that look missing segment ids up in a buffer by position.

    Attributes:
        segment_index: place of ``token_type_ids`` among the positional arguments.
    """

    keeps_signature = True
    segment_index: int

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The stock forward; missing segment ids are the first entry of the buffer, for every token."""
        if len(args) <= self.segment_index and kwargs.get(NAME) is None:
            tokens = args[0] if args else kwargs.get("input_ids")
            tokens = kwargs.get("inputs_embeds") if tokens is None else tokens
            if tokens is not None:
                zero: Tensor = self._buffers[NAME]  # type: ignore[assignment]
                kwargs[NAME] = zero[:, :1].expand(tokens.shape[0], tokens.shape[1])
        return super().forward(*args, **kwargs)


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


def _segment_index(module: nn.Module) -> int | None:
    buffer = module._buffers.get(NAME)
    names = list(inspect.signature(module.forward).parameters)
    if buffer is None or buffer.dim() != 2 or NAME not in names or names[0] != "input_ids":
        return None
    # Any entry will do only because all of them are the same.
    return names.index(NAME) if bool((buffer == buffer[0, 0]).all()) else None


def _sites(model: nn.Module) -> list[Site]:
    found = []
    for path, module in model.named_modules():
        if isinstance(module, nn.Embedding):
            found += _table_sites(path, module)
            continue
        index = None if isinstance(module, ExpandedSegments) else _segment_index(module)
        if index is not None:
            before, after = "gather from a buffer of zeros", "the zero, expanded"
            found.append(Site(path=path, kind="segments", before=before, after=after, meta={"index": index}))
    return found


def _table_sites(path: str, module: nn.Embedding) -> list[Site]:
    if isinstance(module, (ScaledTable, SingleRow)):
        return []
    factor = _factor(module)
    if factor is not None:
        before, after = "lookup times a buffer", f"lookup times {factor:g}"
        return [Site(path=path, kind="scaled", before=before, after=after, meta={"factor": factor})]
    if module.num_embeddings == 1:
        return [Site(path=path, kind="row", before="lookup in one row", after="broadcast of the row")]
    return []


def _apply(patcher: PatcherProtocol, model: nn.Module, site: Site) -> None:
    module = model.get_submodule(site.path)
    if site.kind == "scaled":
        patcher.swap_class(module, ScaledTable, factors=_rounded(site.meta["factor"]))
    elif site.kind == "row":
        patcher.swap_class(module, SingleRow)
    else:
        patcher.swap_class(module, ExpandedSegments, segment_index=site.meta["index"])


def _rounded(factor: float) -> dict[torch.dtype, float]:
    dtypes = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    return {dtype: torch.tensor(factor, dtype=torch.float64).to(dtype).item() for dtype in dtypes}


def _scaled() -> nn.Module:
    from transformers.models.gemma3.modeling_gemma3 import Gemma3TextScaledWordEmbedding

    torch.manual_seed(3)
    return nn.Sequential(Gemma3TextScaledWordEmbedding(20, 70, 0, embed_scale=70**0.5)).double().eval()


def _one_row() -> nn.Module:
    table = nn.Embedding(1, 70).double()
    with torch.no_grad():
        table.weight.copy_(torch.arange(70.0)[None] - 30)
    return nn.Sequential(table).eval()


def _bert() -> nn.Module:
    from transformers import BertConfig, BertModel

    torch.manual_seed(5)
    config = BertConfig(
        vocab_size=20, hidden_size=64, num_hidden_layers=1, num_attention_heads=1, intermediate_size=64,
        max_position_embeddings=16, initializer_range=0.5,
    )  # fmt: skip
    model: nn.Module = BertModel(config).double().eval()
    return model


def _segments(kind: str) -> dict[str, Any]:
    ids = torch.arange(2, 14).view(2, 6)
    if kind == "embeds":
        return {"inputs_embeds": torch.randn(2, 6, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(1))}
    return {"input_ids": ids, NAME: ids % 2} if kind == "given" else {"input_ids": ids}


def _examples() -> list[Example]:
    segments = [Example(kind, _bert, functools.partial(_segments, kind)) for kind in ("missing", "given", "embeds")]
    rows = Example("one_row", _one_row, lambda: {"input": torch.zeros(2, 5, dtype=torch.long)})
    return [Example("gemma", _scaled, lambda: {"input": torch.arange(20).view(4, 5)}), rows, *segments]


ADAPTER = Adapter(
    name="embedding_tables",
    summary="Embedding lookups scaled by a buffer, from one row, or by missing segment ids, in forms the device has.",
    rules=("op-fallback", "indirect-access"),
    equivalence="exact",
    sites=_sites,
    apply=_apply,
    examples=_examples,
    order=8,
)
