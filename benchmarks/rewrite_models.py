"""Small models that fail on the device when one adapter of the catalogue is missing."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

_SIZES: dict[str, Any] = {
    "vocab_size": 60,
    "num_hidden_layers": 1,
    "initializer_range": 0.1,
    "max_position_embeddings": 160,
    "hidden_size": 128,
    "num_attention_heads": 2,
    "intermediate_size": 256,
}
_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}

_MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt_neo": (
        "GPTNeo",
        {
            "vocab_size": 60, "hidden_size": 128, "num_layers": 2, "num_heads": 2, "intermediate_size": 256,
            "window_size": 8, "attention_types": [[["global", "local"], 1]], "initializer_range": 0.1,
            "max_position_embeddings": 160, "bos_token_id": 1, "eos_token_id": 2,
        },
    ),
    "qwen2": ("Qwen2", {**_SIZES, "num_key_value_heads": 1}),
    "bert_heads_32": ("Bert", {**_SIZES, "num_attention_heads": 4}),
    "bert_relu2": ("Bert", {**_SIZES, "hidden_act": "relu2"}),
    "bert_mish": ("Bert", {**_SIZES, "hidden_act": "mish"}),
    "roberta": ("Roberta", {**_SIZES, "type_vocab_size": 1, "pad_token_id": 1}),
    "esm": (
        "Esm",
        {**_SIZES, "pad_token_id": 1, "mask_token_id": 2, "position_embedding_type": "rotary"},
    ),
    "roformer": ("RoFormer", _SIZES),
    "cohere": ("Cohere", {**_SIZES, **_TOKENS, "num_key_value_heads": 2}),
    "lfm2": (
        "Lfm2",
        {
            **_SIZES, **_TOKENS, "num_hidden_layers": 2, "num_key_value_heads": 1,
            "layer_types": ["conv", "full_attention"],
        },
    ),
}  # fmt: skip

CASES: tuple[tuple[str, str], ...] = (
    ("small_powers", "gpt_neo"),
    ("small_powers", "qwen2"),
    ("small_powers", "bert_relu2"),
    ("activation_forms", "esm"),
    ("activation_forms", "bert_mish"),
    ("layer_norm", "cohere"),
    ("rotary", "qwen2"),
    ("rotary", "roformer"),
    ("head_padding", "bert_heads_32"),
    ("manual_attention", "gpt_neo"),
    ("host_indices", "roberta"),
    ("convolutions", "lfm2"),
)
"""(adapter that is left out, model that fails without it)."""


def build(name: str) -> nn.Module:
    """The model in eval mode, float32, seeded; biases and norm weights are moved off their round defaults."""
    import transformers as hf

    stem, sizes = _MODELS[name]
    torch.manual_seed(0)
    model: nn.Module = getattr(hf, f"{stem}Model")(getattr(hf, f"{stem}Config")(**sizes)).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model
