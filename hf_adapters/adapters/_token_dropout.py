"""Embeddings scaled by the share of mask tokens in each row (ESM), the share counted on the host."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

_TRAINED_SHARE = 0.15 * 0.8
"""Share of mask tokens in ESM's training, as in the stock module."""
_ARGUMENTS = ["input_ids", "attention_mask", "position_ids", "inputs_embeds"]


class HostTokenDropout(nn.Module):
    """Mixin for embeddings with ``token_dropout``; works before its forward, which may be compiled."""

    token_dropout: bool
    mask_token_id: int
    padding_idx: int
    word_embeddings: nn.Embedding

    def __call__(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
    ) -> Any:
        """As stock; the embeddings of the tokens are made here, with mask tokens at zero and the others scaled."""
        if input_ids is not None:
            if inputs_embeds is None:
                inputs_embeds = self.word_embeddings(input_ids)
            factor = self._factor(input_ids.cpu(), attention_mask)
            inputs_embeds = inputs_embeds * factor.to(inputs_embeds.dtype).to(inputs_embeds.device)
            if position_ids is None:
                position_ids = _positions(input_ids.cpu(), self.padding_idx).to(input_ids.device)
            input_ids = None
        return super().__call__(input_ids, attention_mask, position_ids, inputs_embeds)

    def _factor(self, ids: Tensor, attention_mask: Tensor | None) -> Tensor:
        """``[batch, tokens, 1]``: zero for mask tokens, else what makes up for the share of them."""
        dropped = ids == self.mask_token_id
        lengths = ids.shape[1] if attention_mask is None else attention_mask.detach().cpu().long().sum(-1)
        observed = dropped.sum(-1).float() / lengths
        kept = (~dropped)[..., None].to(torch.float64)
        return kept * (1 - _TRAINED_SHARE) / (1 - observed)[:, None, None]


def _positions(ids: Tensor, padding_idx: int) -> Tensor:
    real = (ids != padding_idx).long()
    return real.cumsum(dim=1) * real + padding_idx


def drops_tokens(module: nn.Module) -> bool:
    """Embeddings that drop mask tokens, with the arguments that the mixin knows."""
    if not getattr(module, "token_dropout", False) or isinstance(module, HostTokenDropout):
        return False
    arguments = [name for name in inspect.signature(type(module).forward).parameters if name != "self"]
    return arguments == _ARGUMENTS and isinstance(getattr(module, "mask_token_id", None), int)
