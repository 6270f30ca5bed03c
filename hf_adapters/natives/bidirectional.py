"""Variants of stock decoders in which every token sees every token: the stock class with `is_causal` switched off.

The published configs say so in several ways, none of which the stock classes read.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from hf_adapters.natives.family import Family, Request, Values, Weights, class_name, renamed, without, without_prefix

DECODER_SETTINGS = (
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
    "intermediate_size", "hidden_act", "max_position_embeddings", "rms_norm_eps", "rope_theta", "rope_parameters",
    "rope_scaling", "attention_bias", "mlp_bias", "tie_word_embeddings", "pad_token_id", "bos_token_id",
    "eos_token_id", "initializer_range", "attention_dropout",
)  # fmt: skip
_TYPES = {
    "bidirectional_pplx_qwen3": ("qwen3", "Qwen3Model"),
    "llama_bidirec": ("llama", "LlamaModel"),
    "mistralbidirectional": ("mistral", "MistralModel"),
}
_QWEN2_CODE = "modeling_qwen.Qwen2Model"
#: Models whose own code masks padding only, with what derives from them; others of the same code are causal.
_QWEN2_BIDIRECTIONAL = ("gte-qwen2", "gte-qwen-2", "stella_en_1.5b", "stella-en-1.5b")


def _recognises(values: Values) -> bool:
    kind = values.get("model_type")
    return kind in _TYPES or (kind == "qwen2" and class_name(values).endswith(_QWEN2_CODE))


def _values(values: Values, names: frozenset[str]) -> dict[str, Any]:
    chosen = renamed(values, {name: name for name in DECODER_SETTINGS})
    model_type, architecture = _TYPES.get(values["model_type"], ("qwen2", "Qwen2Model"))
    made: dict[str, Any] = {**chosen, "model_type": model_type, "architectures": [architecture]}
    if model_type == "mistral":
        # The original hides padding only; a window left in place would hide distant tokens as well.
        made["sliding_window"] = None
    if _sees_everything(values):
        made["is_causal"] = False
    return made


def _sees_everything(values: Values) -> bool:
    if values["model_type"] in _TYPES:
        return True
    said = values.get("is_causal")
    if said is not None:
        return not said
    origin = f"{class_name(values)} {values.get('_name_or_path', '')}".lower()
    return any(name in origin for name in _QWEN2_BIDIRECTIONAL)


def _weights(weights: Weights, request: Request) -> dict[str, Tensor]:
    return without_prefix(without(weights, "lm_head."), "model.")


FAMILY = Family(name="bidirectional decoders", recognises=_recognises, values=_values, weights=_weights)
