"""Small models that fail on the device when one adapter of the catalogue is missing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

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
    "bert_features_100": ("Bert", {**_SIZES, "intermediate_size": 100}),
    "llama_features_100": ("Llama", {**_SIZES, "num_key_value_heads": 1, "intermediate_size": 100}),
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


class Gate(nn.Module):
    """Scales each row by what its squares sum up to."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """`[batch, tokens, width]` -> the same shape."""
        length = self.dense(x).pow(2).mean(-1, keepdim=True) + 0.5
        return x / torch.sqrt(length)


class Encoder(nn.Module):
    """A model of somebody's own: token embeddings, and one module over them."""

    def __init__(self, inner: nn.Module, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(60, width)
        self.inner = inner
        self.norm = nn.LayerNorm(width)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Ids `[batch, tokens]` -> states `[batch, tokens, width]`."""
        result: Tensor = self.norm(self.inner(self.words(input_ids)))
        return result


_OWN: dict[str, Callable[[], nn.Module]] = {"own_gate": lambda: Encoder(Gate(128), 128)}

CASES: tuple[tuple[str, str], ...] = (
    ("small_powers", "gpt_neo"),
    ("small_powers", "qwen2"),
    ("small_powers", "bert_relu2"),
    ("activation_forms", "esm"),
    ("activation_forms", "bert_mish"),
    ("layer_norm", "cohere"),
    ("rotary", "roformer"),
    ("head_padding", "bert_heads_32"),
    ("width_padding", "bert_features_100"),
    ("width_padding", "llama_features_100"),
    ("manual_attention", "gpt_neo"),
    ("host_indices", "roberta"),
    ("convolutions", "lfm2"),
    ("functional_calls", "own_gate"),
)
"""(adapter that is left out, model that fails without it)."""


def build(name: str) -> nn.Module:
    """The model in eval mode, float32, seeded; biases and norm weights are moved off their round defaults."""
    import transformers as hf

    torch.manual_seed(0)
    if name in _OWN:
        model = _OWN[name]().eval()
    else:
        stem, sizes = _MODELS[name]
        model = getattr(hf, f"{stem}Model")(getattr(hf, f"{stem}Config")(**sizes)).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model
