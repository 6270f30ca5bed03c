"""voyage-4-nano: a Qwen3 in which every token sees every token, with a projection behind it."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from hf_adapters.natives.bidirectional import DECODER_SETTINGS
from hf_adapters.natives.family import Family, ForeignConfig, Request, Values, Weights, class_name, renamed, without

_NAMES = ("voyage-4-nano", "voyage_4_nano", "voyageqwen3")


def _recognises(values: Values) -> bool:
    if values.get("model_type") != "qwen3":
        return False
    declared = " ".join(values.get("architectures") or ())
    said = f"{class_name(values)} {declared} {values.get('_name_or_path', '')}".lower()
    return any(name in said for name in _NAMES)


def _values(values: Values, names: frozenset[str]) -> dict[str, Any]:
    width = values.get("num_labels")
    if not isinstance(width, int) or width < 1:
        raise ForeignConfig(f"voyage-4-nano: num_labels is {width!r}; it is the width of the projection")
    return {
        **renamed(values, {name: name for name in DECODER_SETTINGS}),
        "model_type": "projected_qwen3",
        "architectures": ["ProjectedQwen3Model"],
        "projection_size": width,
        "is_causal": False,
    }


def _weights(weights: Weights, request: Request) -> dict[str, Tensor]:
    return {
        name if name.startswith(("model.", "linear.")) else f"model.{name}": value
        for name, value in without(weights, "lm_head.").items()
    }


FAMILY = Family(name="voyage-4-nano", recognises=_recognises, values=_values, weights=_weights)
