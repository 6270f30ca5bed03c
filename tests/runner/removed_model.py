"""A model as those who need a class that transformers removed keep it: a copy of old code under its old module's name.

Nothing of that name can be imported. The mask is made of the smallest number of the dtype, positions lie in a buffer.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from transformers import BertConfig, PreTrainedModel

OLD_MODULE = "transformers.models.retribert.modeling_retribert"


def gelu(x: Tensor) -> Tensor:
    return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


class RetriBertLayer(nn.Module):
    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.heads, width = config.num_attention_heads, config.hidden_size
        self.query, self.key, self.value, self.dense = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, config.intermediate_size), nn.Linear(config.intermediate_size, width)
        self.norm, self.output_norm = nn.LayerNorm(width, eps=1e-12), nn.LayerNorm(width, eps=1e-12)

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        query, key, value = (
            made(states).view(*states.shape[:-1], self.heads, -1).permute(0, 2, 1, 3)
            for made in (self.query, self.key, self.value)
        )
        scores = torch.matmul(query, key.transpose(-1, -2)) / math.sqrt(query.shape[-1])
        context = torch.matmul(nn.functional.softmax(scores + mask, dim=-1), value).permute(0, 2, 1, 3).contiguous()
        states = self.norm(states + self.dense(context.view(states.shape)))
        return self.output_norm(states + self.down(gelu(self.up(states))))


class RetriBertModel(PreTrainedModel):
    config_class = BertConfig
    config: BertConfig

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config)
        self.words = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=0)
        self.positions = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.register_buffer("position_ids", torch.arange(config.max_position_embeddings).expand((1, -1)))
        self.norm = nn.LayerNorm(config.hidden_size, eps=1e-12)
        self.layer = nn.ModuleList(RetriBertLayer(config) for _ in range(config.num_hidden_layers))
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.words

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        real: Any = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        mask = (1.0 - real[:, None, None, :].to(self.dtype)) * torch.finfo(self.dtype).min
        states: Tensor = self.norm(self.words(input_ids) + self.positions(self.position_ids[:, : input_ids.shape[1]]))
        for layer in self.layer:
            states = layer(states, mask)
        return states


for _cls in (RetriBertLayer, RetriBertModel):
    _cls.__module__ = OLD_MODULE
