"""What the structures share: attention with an optional additive bias, and the tower around their layers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.masking_utils import create_bidirectional_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, PreTrainedModel


def eager_attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    position_bias: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """Softmax attention written out, with the signature of transformers' attention functions.

    Args:
        module: the attention module.
        query: ``[batch, heads, queries, head]``.
        key: ``[batch, heads, keys, head]``.
        value: as ``key``.
        attention_mask: additive, broadcastable to ``[batch, heads, queries, keys]``; None shows everything.
        scaling: factor of the scores.
        dropout: share of the weights dropped in training.
        position_bias: additive, broadcastable as the mask.
        **kwargs: options of other implementations.

    Returns:
        The output ``[batch, queries, heads, head]`` and the weights ``[batch, heads, queries, keys]``.
    """
    scores = torch.matmul(query, key.transpose(2, 3)) * scaling
    if position_bias is not None:
        scores = scores + position_bias
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = nn.functional.softmax(scores, dim=-1)
    weights = nn.functional.dropout(weights, p=dropout, training=module.training)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights


def attention_function(module: Any) -> Any:
    """The attention function that the config of ``module`` names, else :func:`eager_attention_forward`."""
    return ALL_ATTENTION_FUNCTIONS.get_interface(module.config._attn_implementation, eager_attention_forward)


def padding_mask(model: PreTrainedModel, states: Tensor, attention_mask: Tensor | None) -> Tensor | None:
    """The mask that hides padded keys from every query, in the form that the attention implementation wants."""
    made: Tensor | None = create_bidirectional_mask(
        config=model.config, inputs_embeds=states, attention_mask=attention_mask
    )
    return made


def check_one_input(input_ids: Tensor | None, inputs_embeds: Tensor | None) -> None:
    """Refuse both or neither.

    Raises:
        ValueError: as the stock classes do.
    """
    if (input_ids is None) == (inputs_embeds is None):
        raise ValueError("You must specify exactly one of input_ids or inputs_embeds")
