"""Model types that are another name of a stock class: read without the code of their repositories.

The layout of `new`, `Vietnamese` and `Bilingual` is that of GTE; transformers renames their weights when it loads them.
Their rotary scaling has no counterpart of that name, but an equal setting.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hf_adapters.corpus.errors import ConfigInvalid

#: Settings of the original GTE code that change results and that the stock class lacks, with the value it computes for.
_GTE_FIXED: Mapping[str, tuple[Any, ...]] = {
    "position_embedding_type": ("rope",),
    "layer_norm_type": ("layer_norm",),
    "logn_attention_scale": (False,),
    "pack_qkv": (True,),
}
_GTE_SPEED = ("unpad_inputs", "use_memory_efficient_attention", "logn_attention_clip1")


def stock_values(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The config of a stock class for a config that goes by another model type; any other config as it is.

    Args:
        values: what `parse_config` returned.
        name: the model, for messages.

    Raises:
        ConfigInvalid: the stock class would compute something else.
    """
    convert = _ALIASES.get(values["model_type"])
    return dict(values) if convert is None else convert(values, name)


def is_alias(model_type: str) -> bool:
    """Whether a model type is another name of a stock class."""
    return model_type in _ALIASES


def _gte(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    for setting, accepted in _GTE_FIXED.items():
        if values.get(setting, accepted[0]) not in accepted:
            raise ConfigInvalid(f"{name}: {setting} {values[setting]!r} has no counterpart in the stock GTE class")
    dropped = {*_GTE_FIXED, *_GTE_SPEED, "auto_map", "rope_scaling", "rope_theta", "architectures"}
    kept = {key: value for key, value in values.items() if key not in dropped}
    declared = [str(found) for found in values.get("architectures") or []]
    heads = [found[len("New") :] for found in declared if found.startswith("New")]
    architectures = [f"Gte{head}" for head in heads] or ["GteModel"]
    return {**kept, "model_type": "gte", "architectures": architectures, "rope_parameters": _gte_rope(values, name)}


def _gte_rope(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    """`inv_freq = (theta f)^(-2i/d) / f^(2/d)` of the original is linear scaling of a larger theta."""
    theta = float(values.get("rope_theta", 10_000.0))
    scaling = values.get("rope_scaling")
    if not scaling:
        return {"rope_type": "default", "rope_theta": theta}
    if scaling.get("type") != "ntk" or scaling.get("mixed_b") is not None:
        raise ConfigInvalid(f"{name}: rope_scaling {scaling!r} has no counterpart in the stock GTE class")
    factor, width = float(scaling["factor"]), values["hidden_size"] // values["num_attention_heads"]
    return {"rope_type": "linear", "rope_theta": theta * factor, "factor": factor ** (2.0 / width)}


_ALIASES: Mapping[str, Callable[[Mapping[str, Any], str], dict[str, Any]]] = {
    "new": _gte,
    "Vietnamese": _gte,
    "Bilingual": _gte,
}
