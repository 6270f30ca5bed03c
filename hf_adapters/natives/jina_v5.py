"""jina-embeddings-v5 text and the text part of its omni models: stock decoders with adapters for each task."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from hf_adapters.natives._lora import merge_peft
from hf_adapters.natives.bidirectional import DECODER_SETTINGS
from hf_adapters.natives.family import Family, Request, Values, Weights, renamed, without, without_prefix

_TASKS = ("retrieval", "text-matching", "classification", "clustering")


def _recognises(values: Values) -> bool:
    return values.get("model_type") == "jina_embeddings_v5"


def _values(values: Values, names: frozenset[str]) -> dict[str, Any]:
    chosen = renamed(values, {name: name for name in DECODER_SETTINGS})
    # The small model is a causal Qwen3, the nano one a EuroBERT, which says that it is no decoder.
    if values.get("is_decoder") is False:
        return {**chosen, "model_type": "eurobert", "architectures": ["EuroBertModel"]}
    return {**chosen, "model_type": "qwen3", "architectures": ["Qwen3Model"]}


def _tasks(values: Values) -> tuple[str, ...]:
    return _TASKS


def _weights(weights: Weights, request: Request) -> dict[str, Tensor]:
    plain = without_prefix(without(weights, "lm_head."), "model.")
    assert request.adapters is not None
    settings, adapters = request.adapters
    return merge_peft(plain, adapters, settings)


FAMILY = Family(
    name="jina-embeddings-v5",
    recognises=_recognises,
    values=_values,
    weights=_weights,
    tasks=_tasks,
    task_required=True,
    adapter_files=True,
)
