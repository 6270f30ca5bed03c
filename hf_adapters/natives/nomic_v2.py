"""nomic-embed-text-v2-moe as published: `nomic_bert` by its model type, with the settings' original names."""

from __future__ import annotations

import re
from typing import Any

from torch import Tensor

from hf_adapters.natives.family import Family, ForeignWeights, Request, Values, Weights, renamed, require

_SETTINGS = {
    "vocab_size": "vocab_size",
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "n_positions": "max_position_embeddings",
    "activation_function": "hidden_act",
    "layer_norm_epsilon": "layer_norm_eps",
    "type_vocab_size": "type_vocab_size",
    "num_experts": "num_experts",
    "moe_top_k": "moe_top_k",
    "moe_every_n_layers": "moe_every_n_layers",
    "initializer_range": "initializer_range",
    "resid_pdrop": "hidden_dropout_prob",
    "attn_pdrop": "attention_probs_dropout_prob",
    "pad_token_id": "pad_token_id",
    "bos_token_id": "bos_token_id",
    "eos_token_id": "eos_token_id",
}
_FIXED: dict[str, tuple[Any, ...]] = {
    "prenorm": (False,),
    "rotary_emb_fraction": (1.0,),
    "rotary_emb_interleaved": (False,),
    "rotary_emb_scale_base": (None,),
    "rotary_scaling_factor": (None,),
    "qkv_proj_bias": (True,),
    "mlp_fc1_bias": (True,),
    "mlp_fc2_bias": (True,),
    "moe_normalize_expert_weights": (False,),
    "num_shared_experts": (0,),
    "expert_choice_router": (False,),
    "use_rms_norm": (False, None),
}
_RENAMED = {
    "attn.out_proj": "self_attn.o_proj",
    "norm1": "post_attention_layernorm",
    "norm2": "post_mlp_layernorm",
    "mlp.fc1": "mlp.fc1",
    "mlp.fc2": "mlp.fc2",
    "mlp.router.layer": "mlp.router.layer",
    "mlp.experts.mlp.w1": "mlp.experts.w1",
    "mlp.experts.mlp.w2": "mlp.experts.w2",
    "mlp.experts.bias": "mlp.experts.bias",
}
_LAYER = re.compile(r"encoder\.layers\.(\d+)\.(.+)")


def _recognises(values: Values) -> bool:
    return values.get("model_type") == "nomic_bert" and bool(values.get("num_experts"))


def _values(values: Values, names: frozenset[str]) -> dict[str, Any]:
    require(values, _FIXED, "nomic-embed-text-v2-moe")
    theta = float(values.get("rotary_emb_base") or 10_000.0)
    return {
        **renamed(values, _SETTINGS),
        "model_type": "nomic_bert_moe",
        "architectures": ["NomicBertMoeModel"],
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
    }


def _weights(weights: Weights, request: Request) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for name, value in weights.items():
        matched = _LAYER.fullmatch(name)
        if matched is None:
            found[name] = value
            continue
        layer, rest = f"layers.{matched[1]}.", matched[2]
        module, _, kind = rest.rpartition(".")
        if module == "attn.Wqkv":
            found.update(split_qkv(f"{layer}self_attn.", kind, value))
        elif module in _RENAMED:
            found[f"{layer}{_RENAMED[module]}.{kind}"] = value
        elif rest in _RENAMED:
            found[layer + _RENAMED[rest]] = value
        else:
            found[name] = value  # not ours: placing it will say so
    return found


def split_qkv(prefix: str, kind: str, fused: Tensor) -> dict[str, Tensor]:
    """Rows of queries, keys and values, which lie behind one another, as three weights.

    Raises:
        ForeignWeights: the rows are no multiple of three.
    """
    if fused.shape[0] % 3:
        raise ForeignWeights(f"{prefix}Wqkv.{kind} has {fused.shape[0]} rows, not three equal parts")
    return {f"{prefix}{name}_proj.{kind}": part.contiguous() for name, part in zip("qkv", fused.chunk(3), strict=True)}


FAMILY = Family(name="nomic-embed-text-v2-moe", recognises=_recognises, values=_values, weights=_weights)
