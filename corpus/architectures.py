"""From a profile to a stock config and model class; from a model of several parts to its text tower."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from hf_adapters.corpus.errors import ConfigInvalid, NoTextInputs, Unbuildable
from hf_adapters.corpus.profiles import Profile
from hf_adapters.natives import native_class, native_config

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

_SUFFIXES = ("ForConditionalGeneration", "Model")
#: Parts of a model that an embedding of text does not pass through.
_OTHER_PARTS = ("vision", "audio")


def config_from(model_type: str, values: Mapping[str, Any]) -> PretrainedConfig:
    """The stock config object for a model type and its values; no remote code.

    Raises:
        ConfigInvalid: transformers does not know the model type, or refuses a value.
    """
    import transformers

    ours = native_config(model_type)
    if ours is None and model_type not in transformers.CONFIG_MAPPING:
        raise ConfigInvalid(
            f"transformers {transformers.__version__} does not know the model type {model_type!r}",
            hint="it may need code from its repository, or another transformers: old types are removed, new ones added",
        )
    given = {name: deepcopy(value) for name, value in values.items() if name != "model_type"}
    try:
        config: PretrainedConfig = (ours or transformers.CONFIG_MAPPING[model_type])(**given)
    except Exception as error:  # config classes validate with whatever exception they like
        raise ConfigInvalid(f"transformers refuses the config of type {model_type!r}: {error}") from error
    return config


def class_named(name: str) -> type[PreTrainedModel]:
    """The stock transformers class of that name, or one of our own structures.

    Raises:
        Unbuildable: there is no such model class in the installed transformers.
    """
    import transformers

    found = native_class(name) or getattr(transformers, name, None)
    if not (isinstance(found, type) and issubclass(found, transformers.PreTrainedModel)):
        raise Unbuildable(
            f"transformers {transformers.__version__} has no model class {name!r}",
            hint="it may need code from its repository, or another transformers: releases remove and add classes",
        )
    return found


def declared(profile: Profile) -> tuple[type[PreTrainedModel], PretrainedConfig]:
    """Class and config that a profile declares.

    Raises:
        ConfigInvalid, Unbuildable: see `config_from` and `class_named`.
    """
    return class_named(profile.architecture_class), config_from(profile.model_type, profile.config)


def text_tower(
    model_class: type[PreTrainedModel], config: PretrainedConfig
) -> tuple[type[PreTrainedModel], PretrainedConfig, tuple[str, ...]]:
    """The class and config that embed text, and the parts that are left out.

    A model of one part is its own text tower. Of a dual encoder the text model with its projection is
    taken, of a vision-language model its language model.

    Raises:
        NoTextInputs: no part of the model takes text.
    """
    left_out = tuple(part for part in _OTHER_PARTS if getattr(config, f"{part}_config", None) is not None)
    text_config = getattr(config, "text_config", None)
    if text_config is None:
        if left_out or getattr(model_class, "main_input_name", "input_ids") != "input_ids":
            raise NoTextInputs(f"{model_class.__name__} takes no text ({model_class.main_input_name})")
        return model_class, config, ()
    projection = getattr(config, "projection_dim", None)
    if projection is not None and hasattr(text_config, "projection_dim"):
        text_config.projection_dim = projection
    return _text_class(model_class, text_config), text_config, left_out


def _text_class(model_class: type[PreTrainedModel], text_config: PretrainedConfig) -> type[PreTrainedModel]:
    import transformers

    prefix = model_class.__name__
    for suffix in _SUFFIXES:
        prefix = prefix.removesuffix(suffix)
    for name in (f"{prefix}TextModelWithProjection", f"{prefix}TextModel"):
        # Not every text model is exported at the top; its module has it.
        found = getattr(transformers, name, None) or getattr(_module_of(model_class), name, None)
        if isinstance(found, type) and issubclass(found, transformers.PreTrainedModel):
            return found
    if type(text_config) in transformers.MODEL_MAPPING:
        found = transformers.MODEL_MAPPING[type(text_config)]
        assert isinstance(found, type)
        return found
    raise NoTextInputs(f"no stock class takes the text of {model_class.__name__}")


def _module_of(model_class: type) -> Any:
    from importlib import import_module

    return import_module(model_class.__module__)


def count_parameters(model_class: type[PreTrainedModel], config: PretrainedConfig) -> int:
    """Distinct parameter elements of a model, counted without allocating any."""
    return sum(parameter.numel() for parameter in on_meta(model_class, config).parameters())


def on_meta(model_class: type[PreTrainedModel], config: PretrainedConfig) -> PreTrainedModel:
    """The model on the meta device: shapes only.

    Raises:
        Unbuildable: the constructor refuses the config.
    """
    import torch
    from transformers.initialization import no_init_weights

    try:
        with torch.device("meta"), no_init_weights():
            model = model_class._from_config(deepcopy(config), dtype=torch.float32)
        model.tie_weights()
    except Exception as error:  # a constructor may raise anything
        raise Unbuildable(f"{model_class.__name__} cannot be built: {type(error).__name__}: {error}") from error
    return model
