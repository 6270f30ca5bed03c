"""A model of nobody's package: a sandbox is given this file, so it imports little."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers.activations import NewGELUActivation, ReLUSquaredActivation


class TwoPlaces(nn.Module):
    """Token embeddings and two activations of transformers that the device refuses without `small_powers`."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(97, 64)
        self.first, self.dense, self.second = NewGELUActivation(), nn.Linear(64, 64), ReLUSquaredActivation()
        self.norm = nn.LayerNorm(64)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        found: Tensor = self.norm(self.second(self.dense(self.first(self.words(input_ids)))))
        return found


def build_two_places() -> nn.Module:
    torch.manual_seed(3)
    return TwoPlaces().eval()
