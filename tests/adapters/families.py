"""Tiny models of the supported families, with weights drawn at 0.1 and awkward sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor, nn

_SIZES: dict[str, Any] = {
    "vocab_size": 60,
    "num_hidden_layers": 2,
    "initializer_range": 0.1,
    "max_position_embeddings": 160,
    "hidden_size": 128,
    "num_attention_heads": 2,
    "intermediate_size": 256,
}
_ROBERTA = {"type_vocab_size": 1, "pad_token_id": 1}
_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_MODERN = {**_TOKENS, "cls_token_id": 1, "sep_token_id": 2, "intermediate_size": 192, "local_attention": 8}
_NEO = {
    "vocab_size": 60, "hidden_size": 128, "num_layers": 2, "num_heads": 2, "intermediate_size": 256, "window_size": 8,
    "attention_types": [[["global", "local"], 1]], "initializer_range": 0.1, "max_position_embeddings": 160,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_DISTIL = {
    "vocab_size": 60, "n_layers": 2, "dim": 128, "n_heads": 4, "hidden_dim": 256, "initializer_range": 0.1,
    "max_position_embeddings": 160,
}  # fmt: skip
_T5 = {"vocab_size": 60, "d_model": 128, "d_kv": 64, "num_heads": 2, "d_ff": 256, "num_layers": 2}
_RELATIVE = {"relative_attention": True, "max_relative_positions": 64, "pos_att_type": ["c2p", "p2c"]}
_BOTH_LAYERS = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8}
_ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 1000.0}}

_FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("Bert", _SIZES),
    "bert_heads_32": ("Bert", {**_SIZES, "num_attention_heads": 4}),
    "bert_tiny_78": ("Bert", {**_SIZES, "hidden_size": 78, "num_attention_heads": 3, "intermediate_size": 100}),
    "xlm_roberta": ("XLMRoberta", {**_SIZES, **_ROBERTA, "num_attention_heads": 4}),
    "roberta": ("Roberta", {**_SIZES, **_ROBERTA}),
    "camembert": ("Camembert", {**_SIZES, **_ROBERTA}),
    "mpnet": ("MPNet", {**_SIZES, "pad_token_id": 1}),
    "mpnet_heads_24": ("MPNet", {**_SIZES, "pad_token_id": 1, "hidden_size": 192, "num_attention_heads": 8}),
    "distilbert": ("DistilBert", _DISTIL),
    "electra": ("Electra", {**_SIZES, "embedding_size": 64}),
    "albert": (
        "Albert",
        {**_SIZES, "embedding_size": 64, "num_attention_heads": 4, "num_hidden_layers": 4, "num_hidden_groups": 2},
    ),
    "qwen2": ("Qwen2", {**_SIZES, "num_key_value_heads": 1}),
    "qwen2_not_causal": ("Qwen2", {**_SIZES, "num_key_value_heads": 1, "is_causal": False}),
    "qwen3": ("Qwen3", {**_SIZES, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}),
    "qwen3_wide": ("Qwen3", {**_SIZES, "hidden_size": 320, "num_key_value_heads": 1, "head_dim": 128}),
    "llama_heads_32": ("Llama", {**_SIZES, "num_attention_heads": 4, "num_key_value_heads": 2}),
    "llama_heads_112": (
        "Llama",
        {**_SIZES, "hidden_size": 448, "num_attention_heads": 4, "num_key_value_heads": 2},
    ),
    "mistral": ("Mistral", {**_SIZES, "num_key_value_heads": 1, "head_dim": 64, "sliding_window": 8}),
    "modernbert": ("ModernBert", {**_SIZES, **_MODERN}),
    "modernbert_heads_32": (
        "ModernBert",
        {**_SIZES, **_MODERN, "num_attention_heads": 4, "hidden_activation": "silu", "num_hidden_layers": 4},
    ),
    "gemma3": (
        "Gemma3Text",
        {**_SIZES, **_BOTH_LAYERS, "num_key_value_heads": 1, "head_dim": 64, "query_pre_attn_scalar": 200},
    ),
    "gemma3_both_ways": (
        "Gemma3Text",
        {
            **_SIZES, **_BOTH_LAYERS, "hidden_size": 192, "num_attention_heads": 3, "num_key_value_heads": 1,
            "head_dim": 256, "use_bidirectional_attention": True,
        },
    ),
    "gpt_neo": ("GPTNeo", _NEO),
    "nomic_bert": ("NomicBert", {**_SIZES, **_ROPE, "type_vocab_size": 2}),
    "gte": ("Gte", _SIZES),
    "eurobert": ("EuroBert", {**_SIZES, **_TOKENS, "num_key_value_heads": 1}),
    "gpt_neox": (
        "GPTNeoX",
        {**_SIZES, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25}},
    ),
    "gpt_neox_heads_32": ("GPTNeoX", {**_SIZES, **_ROPE, "num_attention_heads": 4}),
    "gpt2_48": (
        "GPT2",
        {"vocab_size": 60, "n_embd": 48, "n_layer": 2, "n_head": 3, "n_positions": 160, "initializer_range": 0.1,
         "scale_attn_by_inverse_layer_idx": True, "bos_token_id": 1, "eos_token_id": 2},
    ),
    "phi_heads_32": ("Phi", {**_SIZES, "num_attention_heads": 4, "partial_rotary_factor": 0.5}),
    "phi3": ("Phi3", {**_SIZES, **_TOKENS, "num_key_value_heads": 1}),
    "phi3_heads_32": ("Phi3", {**_SIZES, **_TOKENS, "num_attention_heads": 4, "num_key_value_heads": 2}),
    "gptj": (
        "GPTJ",
        {"vocab_size": 60, "n_embd": 128, "n_layer": 2, "n_head": 2, "rotary_dim": 32, "n_positions": 160,
         "initializer_range": 0.1},
    ),
    "roformer": ("RoFormer", _SIZES),
    "t5": ("T5", _T5),
    "deberta": ("Deberta", {**_SIZES, **_RELATIVE, "layer_norm_eps": 1e-7}),
    "deberta_v2": (
        "DebertaV2",
        {**_SIZES, **_RELATIVE, "position_buckets": 32, "share_att_key": True, "norm_rel_ebd": "layer_norm",
         "position_biased_input": False, "conv_kernel_size": 3},
    ),
    "luke": ("Luke", {**_SIZES, **_ROBERTA, "entity_vocab_size": 10, "entity_emb_size": 16}),
    "longformer": ("Longformer", {**_SIZES, "attention_window": 8, "pad_token_id": 1}),
    "bloom": (
        "Bloom", {"vocab_size": 60, "hidden_size": 128, "n_layer": 2, "n_head": 2, "initializer_range": 0.1},
    ),
    "bloom_heads_80": (
        "Bloom", {"vocab_size": 60, "hidden_size": 320, "n_layer": 2, "n_head": 4, "initializer_range": 0.1},
    ),
    "xmod": ("Xmod", {**_SIZES, **_ROBERTA, "languages": ("en", "de"), "default_language": "de"}),
    "flaubert": (
        "Flaubert",
        {"vocab_size": 60, "emb_dim": 128, "n_layers": 2, "n_heads": 2, "pad_index": 2, "max_position_embeddings": 160,
         "embed_init_std": 0.1, "init_std": 0.1, "pad_token_id": 2},
    ),
    "esm": (
        "Esm",
        {**_SIZES, "pad_token_id": 1, "mask_token_id": 5, "token_dropout": True, "num_attention_heads": 4,
         "position_embedding_type": "rotary"},
    ),
    "lfm2": (
        "Lfm2",
        {**_SIZES, **_TOKENS, "num_key_value_heads": 1, "layer_types": ["conv", "full_attention"],
         "intermediate_size": 192, "block_auto_adjust_ff_dim": False},
    ),
    "big_bird": ("BigBird", {**_SIZES, "attention_type": "original_full"}),
    "clip": ("CLIPText", {**_SIZES, **_TOKENS, "hidden_act": "quick_gelu"}),
    "metaclip_2": ("MetaClip2Text", {**_SIZES, **_TOKENS}),
}  # fmt: skip

NAMES = tuple(_FAMILIES)

_OLD_GPTJ = not hasattr(hf.models.gptj.modeling_gptj, "GPTJRotaryEmbedding")
ON_DEVICE = [
    pytest.param(
        name,
        marks=pytest.mark.skipif(
            name == "gptj" and _OLD_GPTJ,
            reason="attention looks its angles up inside the layer before transformers 5.24",
        ),
    )
    for name in NAMES
]
"""For parametrised tests: the families whose layers the installed transformers lets us bring to the device."""


def build(name: str, dtype: torch.dtype = torch.float64) -> nn.Module:
    """The model of a family in eval mode, seeded; biases and norm weights are moved off their round defaults."""
    stem, sizes = _FAMILIES[name]
    model_class: Callable[..., nn.Module] = getattr(hf, "T5EncoderModel" if stem == "T5" else f"{stem}Model")
    torch.manual_seed(0)
    model = model_class(getattr(hf, f"{stem}Config")(**sizes)).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model.to(dtype).eval()


def batch(side: str, length: int = 21) -> dict[str, Tensor]:
    """Ids and mask of three rows of different lengths, padded on one side with token 1."""
    ids = torch.randint(3, 60, (3, length), generator=torch.Generator().manual_seed(1))
    lengths, steps = torch.tensor([length, 7, 12])[:, None], torch.arange(length)[None, :]
    mask = steps < lengths if side == "right" else steps >= length - lengths
    return {"input_ids": ids.where(mask, torch.ones_like(ids)), "attention_mask": mask.long()}
