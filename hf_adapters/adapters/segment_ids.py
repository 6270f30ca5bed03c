"""Segment ids that the caller left out, taken from the buffer of zeros by expanding instead of gathering."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import torch
from torch import Tensor, nn

from hf_adapters.protocols import Adapter, Example, PatcherProtocol, Site

NAME = "token_type_ids"


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


def _index(module: nn.Module) -> int | None:
    buffer = module._buffers.get(NAME)
    names = list(inspect.signature(module.forward).parameters)
    if buffer is None or buffer.dim() != 2 or NAME not in names or names[0] != "input_ids":
        return None
    # Any entry will do only because all of them are the same.
    return names.index(NAME) if bool((buffer == buffer[0, 0]).all()) else None


def _sites(model: nn.Module) -> list[Site]:
    found = []
    for path, module in model.named_modules():
        index = None if isinstance(module, ExpandedSegments) else _index(module)
        if index is not None:
            before, after = "gather from a buffer of zeros", "the zero, expanded"
            found.append(Site(path=path, kind="segments", before=before, after=after, meta={"index": index}))
    return found


def _apply(patcher: PatcherProtocol, model: nn.Module, site: Site) -> None:
    patcher.swap_class(model.get_submodule(site.path), ExpandedSegments, segment_index=site.meta["index"])


def _build() -> nn.Module:
    from transformers import BertConfig, BertModel

    torch.manual_seed(5)
    config = BertConfig(
        vocab_size=20, hidden_size=64, num_hidden_layers=1, num_attention_heads=1, intermediate_size=64,
        max_position_embeddings=16, initializer_range=0.5,
    )  # fmt: skip
    model: nn.Module = BertModel(config).double().eval()
    return model


def _inputs(kind: str) -> dict[str, Any]:
    ids = torch.arange(2, 14).view(2, 6)
    if kind == "embeds":
        return {"inputs_embeds": torch.randn(2, 6, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(1))}
    return {"input_ids": ids, NAME: ids % 2} if kind == "given" else {"input_ids": ids}


def _examples() -> list[Example]:
    return [Example(kind, _build, functools.partial(_inputs, kind)) for kind in ("missing", "given", "embeds")]


ADAPTER = Adapter(
    name="segment_ids",
    summary="Missing segment ids expanded from one zero instead of gathered by position.",
    rules=("indirect-access",),
    equivalence="exact",
    sites=_sites,
    apply=_apply,
    examples=_examples,
    order=11,
)
