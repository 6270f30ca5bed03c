"""jina-embeddings-v2 as published: `bert` by its model type, which a stock class would load with random weights."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from hf_adapters.natives.family import (
    Family,
    Request,
    Values,
    Weights,
    class_name,
    declares,
    renamed,
    require,
    without,
    without_prefix,
)

_SETTINGS = (
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act",
    "max_position_embeddings", "type_vocab_size", "layer_norm_eps", "hidden_dropout_prob", "pad_token_id",
    "attention_probs_dropout_prob", "bos_token_id", "eos_token_id", "initializer_range",
)  # fmt: skip
_CODE_MODEL = "qk-post-norm"
_HEADS = ("cls.", "classifier.")
_BUFFER = "embeddings.position_ids"


def _recognises(values: Values) -> bool:
    if values.get("model_type") != "bert":
        return False
    jina = declares(values, "JinaBertModel", "JinaBertForMaskedLM") or "jina-bert" in class_name(values)
    return jina or values.get("position_embedding_type") == "alibi"


def _values(values: Values, names: frozenset[str]) -> dict[str, Any]:
    require(values, {"position_embedding_type": ("alibi",), "is_decoder": (False,)}, "jina-embeddings-v2")
    chosen = renamed(values, {name: name for name in _SETTINGS})
    kind = values.get("feed_forward_type", "original")
    code = _CODE_MODEL in class_name(values) or _CODE_MODEL in str(values.get("_name_or_path", ""))
    gate_last, qk_norm = code, code
    if names:
        # The weights know better: the Spanish model has the norms of the code model in the other layout.
        gate_last = any(".up_gated_layer." in name for name in names)
        qk_norm = any(".layer_norm_q." in name for name in names)
    return {
        **chosen,
        "model_type": "jina_bert",
        "architectures": ["JinaBertModel"],
        "feed_forward_type": kind,
        "layout": "gate_last" if gate_last else "gate_first",
        "qk_norm": qk_norm,
    }


def _weights(weights: Weights, request: Request) -> dict[str, Tensor]:
    kept = without_prefix(without(weights, *_HEADS), "bert.")
    return without(kept, _BUFFER)


FAMILY = Family(name="jina-embeddings-v2", recognises=_recognises, values=_values, weights=_weights)
