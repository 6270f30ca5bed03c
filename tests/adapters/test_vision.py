"""Vision towers on the device: patches are cut on the host, everything after them runs in programs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers as hf
from torch import nn

import hf_adapters

_SIZES: dict[str, Any] = {
    "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 56,
}  # fmt: skip


def _tower(name: str, patch: int) -> nn.Module:
    torch.manual_seed(0)
    config = getattr(hf, f"{name}Config")(**_SIZES, patch_size=patch)
    model: nn.Module = getattr(hf, f"{name}Model")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.1)
    return model


@pytest.mark.slow
@pytest.mark.parametrize(("name", "patch"), [("CLIPVision", 14), ("MetaClip2Vision", 8)])
def test_embeddings_of_images_are_the_stock_ones(name: str, patch: int) -> None:
    model = _tower(name, patch)
    pixels = torch.randn(3, 3, 56, 56, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        stock = model(pixel_values=pixels)
    hf_adapters.compile(model)
    torch.spyre.reset_fallback_counts()  # type: ignore[attr-defined]
    ours = model(pixel_values=pixels)
    counts = torch.spyre.fallback_counts()  # type: ignore[attr-defined]
    assert {category for _, category in counts} <= {"lookup", "integer"}
    for key in ("last_hidden_state", "pooler_output"):
        error = (ours[key] - stock[key]).abs().amax() / stock[key].abs().amax()
        # A few roundings to 9 fraction bits (D1.5) in each of two layers; a wrong patch or position is off by 1.
        assert error < 0.01
