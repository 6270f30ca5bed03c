"""jina-embeddings-v3 as published: the stock class after its adapters are merged and its weights renamed.

Unmerged, the stock class loads such a file without an error and leaves most of its weights random.
"""

from __future__ import annotations

import re
from typing import Any

from torch import Tensor

from hf_adapters.natives._lora import merge_parametrised
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
from hf_adapters.natives.nomic_v2 import split_qkv

_SETTINGS = (
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act",
    "max_position_embeddings", "type_vocab_size", "layer_norm_eps", "pad_token_id", "bos_token_id", "eos_token_id",
    "hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range",
)  # fmt: skip
_RENAMED = {
    "mixer.out_proj": "self_attn.o_proj",
    "norm1": "post_attention_layernorm",
    "norm2": "post_mlp_layernorm",
    "mlp.fc1": "mlp.fc1",
    "mlp.fc2": "mlp.fc2",
}
_LAYER = re.compile(r"encoder\.layers\.(\d+)\.(.+)\.(weight|bias)")
_HEADS = ("lm_head.", "classifier.")
_CODE = "xlm-roberta-flash"


def _recognises(values: Values) -> bool:
    if values.get("model_type") not in (None, "", "xlm-roberta"):
        return False
    ours = _CODE in class_name(values) or declares(values, "XLMRobertaLoRA") or bool(values.get("lora_adaptations"))
    return ours and values.get("position_embedding_type", "rotary") == "rotary"


def _values(values: Values, names: frozenset[str]) -> dict[str, Any]:
    require(values, {"use_flash_attn": (True, False), "prenorm": (False,)}, "jina-embeddings-v3")
    # Without the key, the original falls back to 10000; the published configs have it.
    theta = float(values.get("rotary_emb_base") or 10_000.0)
    return {
        **renamed(values, {name: name for name in _SETTINGS}),
        "model_type": "jina_embeddings_v3",
        "architectures": ["JinaEmbeddingsV3Model"],
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
    }


def _tasks(values: Values) -> tuple[str, ...]:
    return tuple(values.get("lora_adaptations") or ())


def _weights(weights: Weights, request: Request) -> dict[str, Tensor]:
    tasks = _tasks(request.values)
    index = None if request.task is None else tasks.index(request.task)
    scaling = float(request.values.get("lora_alpha", 1)) / int(request.values.get("lora_rank", 4))
    plain = merge_parametrised(without_prefix(without(weights, *_HEADS), "roberta."), index, scaling)
    found: dict[str, Tensor] = {}
    for name, value in plain.items():
        matched = _LAYER.fullmatch(name)
        if matched is None:
            found[name.replace("emb_ln.", "embeddings.LayerNorm.")] = value
        elif matched[2] == "mixer.Wqkv":
            found.update(split_qkv(f"layers.{matched[1]}.self_attn.", matched[3], value))
        elif matched[2] in _RENAMED:
            found[f"layers.{matched[1]}.{_RENAMED[matched[2]]}.{matched[3]}"] = value
        else:
            found[name] = value  # not ours: placing it will say so
    return found


FAMILY = Family(name="jina-embeddings-v3", recognises=_recognises, values=_values, weights=_weights, tasks=_tasks)
