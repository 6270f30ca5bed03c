"""Structures of our own that were saved: config.json and weights have their names already."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from hf_adapters.natives.family import Family, Request, Values, Weights

_CLASSES = {
    "jina_bert": "JinaBertModel",
    "nomic_bert_moe": "NomicBertMoeModel",
    "projected_qwen3": "ProjectedQwen3Model",
}


def _recognises(values: Values) -> bool:
    return values.get("model_type") in _CLASSES


def _values(values: Values, names: frozenset[str]) -> dict[str, Any]:
    kept = {name: value for name, value in values.items() if name not in ("auto_map", "_name_or_path")}
    return {**kept, "architectures": [_CLASSES[values["model_type"]]]}


def _weights(weights: Weights, request: Request) -> dict[str, Tensor]:
    return dict(weights)


FAMILY = Family(name="saved by hf_adapters", recognises=_recognises, values=_values, weights=_weights)
