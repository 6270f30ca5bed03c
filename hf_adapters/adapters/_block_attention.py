"""Attention by blocks (BigBird) as dense attention under a mask.

The stock layer gathers blocks of keys by index and lays them beside each other (D5.4, D6.11). At inference its random
blocks are all the first one, so that block is counted once for being seen by all and once more for each random block.
A key that is counted m times in a softmax is one key whose score is larger by log(m), so a matrix of all scores with
these logarithms in its mask is the same sum.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hf_adapters.adapters import _attention


@dataclass(frozen=True)
class Blocks:
    """What the layers of one call need to know about the tokens, in the dtype of the states.

    Attributes:
        mask: additive ``[batch, 1, tokens, tokens]``: the blocks that a query sees, without padding.
        real: ``[batch, tokens, 1]``, one at real tokens.
    """

    mask: Tensor
    real: Tensor


def times_seen(count: int, random_blocks: int) -> Tensor:
    """How often each block of queries counts each block of keys at inference.

    Args:
        count: number of blocks, at least five.
        random_blocks: blocks that the stock layer would draw in training.

    Returns:
        ``[count, count]``: the first and the last block see and are seen by all, the others see their neighbours.
    """
    steps = torch.arange(count)
    seen = ((steps[:, None] - steps[None, :]).abs() <= 1).double()
    seen[[0, -1], :] = 1.0
    seen[:, [0, -1]] = 1.0
    seen[1:-1, 0] += random_blocks
    return seen


def blocks(mask: Tensor, size: int, random_blocks: int, like: Tensor) -> Blocks:
    """The masks of one call.

    Args:
        mask: ``[batch, tokens]``, zero at padding; the tokens are whole blocks.
        size: tokens of a block.
        random_blocks: see :func:`times_seen`.
        like: decides dtype and device.
    """
    real = mask.detach().float().cpu() > 0
    seen = times_seen(real.shape[1] // size, random_blocks)
    seen = seen.repeat_interleave(size, 0).repeat_interleave(size, 1)
    visible = (seen > 0)[None, None] & real[:, None, None, :]
    additive = torch.where(visible, seen.log().to(like.dtype), _attention.additive(visible, like.dtype))
    place = functools.partial(torch.Tensor.to, device=like.device)
    return Blocks(mask=place(additive.contiguous()), real=place(real[..., None].to(like.dtype)))


class HostBlocks(nn.Module):
    """Mixin for the model: hands the mask of the caller's tokens on, instead of products of its blocks."""

    keeps_signature = True
    masks_by_blocks = True

    @staticmethod
    def create_masks_for_block_sparse_attn(attention_mask: Tensor, block_size: int) -> tuple[Any, ...]:
        """``[batch, tokens]`` -> (the same, and nothing for the three masks of the stock layers)."""
        return attention_mask, None, None, None


class HostBlockMasks(nn.Module):
    """Mixin for the encoder: makes the mask of all layers on the host, before the first one."""

    layer: nn.ModuleList
    config: Any

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        """As stock; ``blocked_encoder_mask`` is ``[batch, tokens]``, absent where all tokens attend to all.

        Raises:
            NotImplementedError: attention weights were asked for; the stock ones leave out what is counted repeatedly.
        """
        mask = kwargs.get("blocked_encoder_mask")
        if mask is not None:
            if kwargs.get("output_attentions", self.config.output_attentions):
                raise NotImplementedError(
                    "attention weights by block are not available, compute them on the stock model"
                )
            inner: Any = self.layer[0]
            inner = inner.attention.self
            kwargs["blocked_encoder_mask"] = blocks(mask, inner.block_size, inner.num_random_blocks, hidden_states)
        return super().forward(hidden_states, *args, **kwargs)


class MaskedBlocks(nn.Module):
    """Mixin for the self-attention of a layer."""

    num_attention_heads: int
    attention_head_size: int

    def forward(
        self,
        hidden_states: Tensor,
        band_mask: None,
        from_mask: None,
        to_mask: None,
        from_blocked_mask: Blocks,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[Tensor, None]:
        """``[batch, tokens, hidden]`` -> (the same, None); padding gets zeros, as from the stock layer."""
        module: Any = self
        split = (*hidden_states.shape[:2], self.num_attention_heads, self.attention_head_size)
        parts = (module.query, module.key, module.value)
        query, key, value = (part(hidden_states).view(split).transpose(1, 2) for part in parts)
        scaling = 1.0 / math.sqrt(self.attention_head_size)
        mixed, _ = _attention.attend(query, key, value, from_blocked_mask.mask, scaling)
        return mixed.transpose(1, 2).contiguous().view(hidden_states.shape) * from_blocked_mask.real, None


def looks_blocks_up(module: Any) -> bool:
    """The self-attention of a layer that gathers blocks of keys by index."""
    names = {"query", "key", "value", "num_random_blocks", "block_size", "attention_head_size"}
    known = isinstance(module, nn.Module) and names <= set(dir(module)) and not isinstance(module, MaskedBlocks)
    return known and hasattr(module, "bigbird_block_sparse_attention")
