"""Small models for the runner's tests."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertModel,
    BertTokenizerFast,
    CLIPTextConfig,
    CLIPTextModel,
    DistilBertConfig,
    DistilBertModel,
    GPTNeoConfig,
    GPTNeoModel,
    Qwen3Config,
    Qwen3Model,
    RobertaConfig,
    RobertaModel,
)

COMMON: dict[str, Any] = {"vocab_size": 90, "hidden_size": 64, "intermediate_size": 128}


def seeded(model: nn.Module, gain: float = 1.4) -> Any:
    """Weights of a size at which a wrong mask or position is seen; eval mode."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for module in model.modules():
            for name, parameter in module.named_parameters(recurse=False):
                values = torch.randn(parameter.shape, generator=generator)
                if isinstance(module, nn.Embedding):
                    parameter.copy_(values)
                elif parameter.dim() > 1:
                    parameter.copy_(gain * values / math.sqrt(parameter.shape[-1]))
                else:
                    parameter.copy_((0.0 if name == "bias" else parameter.mean().round()) + 0.1 * values)
    return model.eval()


def bert(**extra: Any) -> Any:
    options = {**COMMON, "num_hidden_layers": 2, "num_attention_heads": 1, "max_position_embeddings": 100, **extra}
    return seeded(BertModel(BertConfig(**options)))


def roberta() -> Any:
    config = RobertaConfig(
        **COMMON, num_hidden_layers=1, num_attention_heads=1, max_position_embeddings=42, pad_token_id=1
    )
    return seeded(RobertaModel(config, add_pooling_layer=False))


def qwen3(**extra: Any) -> Any:
    config = Qwen3Config(
        **COMMON, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=64, **extra
    )
    return seeded(Qwen3Model(config))


def distilbert() -> Any:
    config = DistilBertConfig(vocab_size=90, dim=64, hidden_dim=128, n_layers=2, n_heads=1, max_position_embeddings=100)
    return seeded(DistilBertModel(config))


def gpt_neo() -> Any:
    config = GPTNeoConfig(
        vocab_size=90, hidden_size=64, num_layers=2, num_heads=1, max_position_embeddings=100, window_size=8,
        attention_types=[[["global", "local"], 1]], intermediate_size=128,
    )  # fmt: skip
    return seeded(GPTNeoModel(config), gain=0.7)


def clip_text() -> Any:
    config = CLIPTextConfig(
        **{**COMMON, "vocab_size": 60}, num_hidden_layers=2, num_attention_heads=1, max_position_embeddings=40,
        eos_token_id=49, bos_token_id=48, pad_token_id=49, projection_dim=64,
    )  # fmt: skip
    return seeded(CLIPTextModel(config))


TEXT_MODELS = {
    "bert": bert,
    "roberta": roberta,
    "qwen3": qwen3,
    "distilbert": distilbert,
    "gpt_neo": gpt_neo,
    "clip_text": clip_text,
}


def batch(rows: int = 3, length: int = 37, high: int = 47, seed: int = 5) -> dict[str, Tensor]:
    """Right-padded ids and mask; row ``r`` has ``length - 6 r`` tokens."""
    ids = torch.randint(3, high, (rows, length), generator=torch.Generator().manual_seed(seed))
    lengths = torch.tensor([max(1, length - 6 * row) for row in range(rows)])
    return {"input_ids": ids, "attention_mask": (torch.arange(length) < lengths[:, None]).long()}


def cosine(got: Tensor, want: Tensor) -> float:
    """The smallest cosine between rows (last dimension), in float64."""
    a, b = (t.detach().double().reshape(-1, t.shape[-1]) for t in (got, want))
    return float(torch.nn.functional.cosine_similarity(a, b, dim=-1).min())


def at_tokens(states: Tensor, inputs: dict[str, Tensor]) -> Tensor:
    """Rows of the hidden states that belong to real tokens."""
    return states[inputs["attention_mask"].bool()]


def with_tokenizer(folder: Path, longest: int = 48) -> Path:
    """Save a tokenizer of ten words in a folder, which cuts texts at `longest` tokens."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "red", "blue", "cat", "dog", "runs"]
    (folder / "vocab.txt").write_text("\n".join(words))
    tokenizer = BertTokenizerFast(vocab=str(folder / "vocab.txt"))
    tokenizer.model_max_length = longest
    tokenizer.save_pretrained(folder)
    return folder
