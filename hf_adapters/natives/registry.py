"""The families, and the classes that are not transformers' own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hf_adapters.natives import bidirectional, jina_v2, jina_v3, jina_v5, nomic_v2, saved, voyage
from hf_adapters.natives.family import Family, Values

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

FAMILIES: tuple[Family, ...] = (
    jina_v3.FAMILY,
    jina_v2.FAMILY,
    jina_v5.FAMILY,
    nomic_v2.FAMILY,
    voyage.FAMILY,
    bidirectional.FAMILY,
    saved.FAMILY,
)


def family_of(values: Values) -> Family | None:
    """The family of a config.json; None for models that stock classes load as they are."""
    return next((family for family in FAMILIES if family.recognises(values)), None)


def native_values(values: Values, names: frozenset[str] = frozenset()) -> dict[str, Any]:
    """A config.json with the settings of the class that takes its place; any other config as it is.

    Args:
        values: content of config.json.
        names: names of the published weights, where they are at hand; some layouts are only told by them.

    Raises:
        ForeignConfig: a setting that the class does not have would change results.
    """
    family = family_of(values)
    return dict(values) if family is None else family.values(values, names)


def native_config(model_type: str) -> type[PretrainedConfig] | None:
    """The config class of one of our structures, by its model type."""
    return next((config for config, _ in _classes().values() if config.model_type == model_type), None)


def native_class(name: str) -> type[PreTrainedModel] | None:
    """The model class of one of our structures, by its name."""
    found = _classes().get(name)
    return None if found is None else found[1]


def _classes() -> Mapping[str, tuple[type[PretrainedConfig], type[PreTrainedModel]]]:
    # Imported on demand: configs are read without the modeling code of transformers.
    from hf_adapters.natives.jina_bert import JinaBertConfig, JinaBertModel
    from hf_adapters.natives.nomic_bert_moe import NomicBertMoeConfig, NomicBertMoeModel
    from hf_adapters.natives.projected_qwen3 import ProjectedQwen3Config, ProjectedQwen3Model

    return {
        "JinaBertModel": (JinaBertConfig, JinaBertModel),
        "NomicBertMoeModel": (NomicBertMoeConfig, NomicBertMoeModel),
        "ProjectedQwen3Model": (ProjectedQwen3Config, ProjectedQwen3Model),
    }
