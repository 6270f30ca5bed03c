"""Embedding tables with one row, as a broadcast of that row."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hf_adapters.protocols import Adapter, Example, PatcherProtocol, Site


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


def _sites(model: nn.Module) -> list[Site]:
    return [
        Site(path=path, kind="table", before="lookup in one row", after="broadcast of the row")
        for path, module in model.named_modules()
        if isinstance(module, nn.Embedding) and module.num_embeddings == 1 and not isinstance(module, SingleRow)
    ]


def _apply(patcher: PatcherProtocol, model: nn.Module, site: Site) -> None:
    patcher.swap_class(model.get_submodule(site.path), SingleRow)


def _build() -> nn.Module:
    table = nn.Embedding(1, 70).double()
    with torch.no_grad():
        table.weight.copy_(torch.arange(70.0)[None] - 30)
    return nn.Sequential(table).eval()


def _inputs() -> dict[str, Tensor]:
    return {"input": torch.zeros(2, 5, dtype=torch.long)}


def _examples() -> list[Example]:
    return [Example("table", _build, _inputs)]


ADAPTER = Adapter(
    name="single_row_embedding",
    summary="Embedding tables with one row (token types of RoBERTa) as a broadcast of that row.",
    rules=("indirect-access",),
    equivalence="exact",
    sites=_sites,
    apply=_apply,
    examples=_examples,
    order=12,
)
