"""Small profiles of several families, so that a test builds in a moment."""

from __future__ import annotations

from typing import Any

from hf_adapters.corpus import Profile

BERT: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "intermediate_size": 128,
    "max_position_embeddings": 40,
    "vocab_size": 3000,
    "pad_token_id": 0,
}
DECODER: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 6,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "intermediate_size": 96,
    "vocab_size": 3000,
}


def profile(model_type: str, architecture: str, **config: Any) -> Profile:
    return Profile(
        profile_id=f"{model_type}.small/v{config.get('vocab_size', 0)}",
        shape_id=f"{model_type}.small",
        model_type=model_type,
        architecture_class=architecture,
        config=config,
        pooling={},
    )


def bert(**changes: Any) -> Profile:
    return profile("bert", "BertModel", **{**BERT, **changes})


def roberta() -> Profile:
    return profile("roberta", "RobertaModel", **{**BERT, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2})


def gemma3(layer_types: list[str]) -> Profile:
    config = {**DECODER, "num_hidden_layers": len(layer_types), "layer_types": layer_types}
    return profile("gemma3_text", "Gemma3TextModel", **config)


def modernbert() -> Profile:
    full, sliding = "full_attention", "sliding_attention"
    config = {
        **BERT,
        "num_hidden_layers": 7,
        "layer_types": [full, sliding, sliding, full, sliding, sliding, full],
        "pad_token_id": 2990,
        "bos_token_id": 2991,
        "cls_token_id": 2991,
        "eos_token_id": 2992,
        "sep_token_id": 2992,
    }
    return profile("modernbert", "ModernBertModel", **config)


def gpt_neo() -> Profile:
    config = {
        "hidden_size": 64,
        "num_layers": 4,
        "num_heads": 2,
        "attention_types": [[["global", "local"], 2]],
        "intermediate_size": 128,
        "max_position_embeddings": 64,
        "vocab_size": 3000,
        "bos_token_id": 2999,
        "eos_token_id": 2999,
    }
    return profile("gpt_neo", "GPTNeoModel", **config)


def t5() -> Profile:
    config = {"d_model": 64, "num_layers": 4, "d_ff": 128, "num_heads": 2, "d_kv": 32, "vocab_size": 3000}
    return profile("t5", "T5EncoderModel", **config, is_encoder_decoder=True)


def clip() -> Profile:
    part = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    text = {**part, "vocab_size": 3000, "bos_token_id": 2998, "eos_token_id": 2999, "pad_token_id": 1}
    return profile("clip", "CLIPModel", projection_dim=48, text_config=text, vision_config={**part, "image_size": 32})
