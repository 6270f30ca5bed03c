"""From somebody's config.json to a profile: a bundled one where the structure is the same, else a new one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from hf_adapters.corpus.aliases import stock_values
from hf_adapters.corpus.architectures import config_from
from hf_adapters.corpus.errors import ConfigInvalid, RemoteCodeRequired
from hf_adapters.corpus.profiles import Profile, load_profiles
from hf_adapters.corpus.signature import IRRELEVANT, config_hash
from hf_adapters.natives import ForeignConfig, family_of, named, native_class, native_values

if TYPE_CHECKING:
    from transformers import PretrainedConfig

#: On top of what a signature ignores: settings of generation, heads and caching.
_IGNORED = IRRELEVANT | {
    "cross_attention_hidden_size",
    "layerdrop",
    "num_labels",
    "output_attentions",
    "output_hidden_states",
    "problem_type",
    "resid_pdrop",
    "return_dict",
    "tie_word_embeddings",
    "use_cache",
    "vocab_size",
}


def parse_config(text: str | bytes, where: str) -> dict[str, Any]:
    """The values of a config.json.

    Args:
        text: content of the file.
        where: what to call it in messages.

    Raises:
        ConfigInvalid: it is truncated, not JSON, not an object, or names no model type.
    """
    try:
        values = json.loads(text)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ConfigInvalid(
            f"{where} is not valid JSON: {error}", hint="the file may be cut off; download or write it again"
        ) from error
    if not isinstance(values, dict):
        raise ConfigInvalid(f"{where} holds a {type(values).__name__}, not an object of settings")
    if not values.get("model_type") and family_of(values) is not None:
        # Jina's third embedding model is published without its type.
        return {**values, "model_type": "xlm-roberta"}
    if not isinstance(values.get("model_type"), str) or not values["model_type"]:
        raise ConfigInvalid(f"{where} names no model_type", hint="is it the config of a transformers model?")
    return values


def profile_of(
    values: Mapping[str, Any],
    name: str,
    *,
    allow_remote_code: bool = False,
    weight_names: frozenset[str] = frozenset(),
) -> Profile:
    """The profile of a config: a bundled one of the same structure (with this vocabulary), else a new one.

    Args:
        values: what `parse_config` returned.
        name: the model that it comes from, to name as representative and in messages.
        allow_remote_code: accept classes that only the model's repository has.
        weight_names: names of the published weights, where they are at hand; some layouts are only told by them.

    Raises:
        RemoteCodeRequired: stock transformers has not the class, but the repository does.
        ConfigInvalid: transformers does not know the model type, or refuses a value.
    """
    values = _native_values(stock_values(values, name), name, weight_names)
    model_type = values["model_type"]
    remote = _remote_class(values)
    if remote and not allow_remote_code:
        raise RemoteCodeRequired(
            f"{name} needs code from its repository ({remote}), which is not run",
            hint="pass the flag that allows remote code if you have read and trust it",
        )
    config = None if remote else config_from(model_type, values)
    architecture = remote if config is None else _stock_class(values, config)
    assert architecture is not None
    if config is not None:
        essence = _essence(config)
        for bundled, known in _bundled(model_type, architecture):
            if essence == known:
                return _with_vocabulary(bundled, config, name)
    digest = config_hash(values)
    vocabulary = values.get("vocab_size", 0) if config is None else config.get_text_config().vocab_size
    return Profile(
        profile_id=f"{model_type}.{digest[:8]}/v{vocabulary}",
        shape_id=f"{model_type}.{digest[:8]}",
        model_type=model_type,
        architecture_class=architecture,
        config=_plain(values),
        representative_checkpoint=name,
        pooling={},
        confidence="exact",
    )


def absent_class(values: Mapping[str, Any], name: str) -> str | None:
    """The class that a config declares if it is neither here nor in the installed transformers; None if it is.

    Releases of transformers remove classes; what a profile then describes is the bare model of the same model type.

    Args:
        values: what `parse_config` returned.
        name: the model that it comes from, for messages.
    """
    values = _native_values(stock_values(values, name), name, frozenset())
    declared = (values.get("architectures") or [None])[0]
    return None if declared is None or _is_stock(str(declared)) else str(declared)


def _native_values(values: Mapping[str, Any], name: str, weight_names: frozenset[str]) -> dict[str, Any]:
    try:
        told = named(values, name)
        return native_values(told, weight_names) if family_of(told) else dict(values)
    except ForeignConfig as error:
        raise ConfigInvalid(f"{name}: {error}") from error


def _remote_class(values: Mapping[str, Any]) -> str | None:
    """The class that only the repository has, if the stock ones do not do."""
    from transformers import CONFIG_MAPPING

    auto_map = values.get("auto_map") or {}
    if not auto_map:
        return None
    named = auto_map.get("AutoModel") or next(iter(auto_map.values()))
    named = named[0] if isinstance(named, list) else named
    remote = str(named).rpartition(".")[2]
    if values["model_type"] not in CONFIG_MAPPING:
        return remote
    declared = (values.get("architectures") or [None])[0]
    return remote if declared and not _is_stock(declared) else None


def _is_stock(name: str) -> bool:
    import transformers

    return native_class(name) is not None or isinstance(getattr(transformers, name, None), type)


def _stock_class(values: Mapping[str, Any], config: PretrainedConfig) -> str:
    """The stock encoder class: the declared one unless it has a head, else what AutoModel would take."""
    import transformers

    declared = (values.get("architectures") or [""])[0]
    is_bare = declared.endswith(("Model", "Encoder")) and "For" not in declared
    if is_bare and _is_stock(declared) and not config.is_encoder_decoder:
        return str(declared)
    if type(config) not in transformers.MODEL_MAPPING:
        raise ConfigInvalid(f"transformers has no bare model for the model type {config.model_type!r}")
    stock = transformers.MODEL_MAPPING[type(config)]
    name = str(stock.__name__)
    encoder = f"{name.removesuffix('Model')}EncoderModel"
    # Of an encoder-decoder, embeddings come from the encoder.
    return encoder if config.is_encoder_decoder and _is_stock(encoder) else name


@cache
def _bundled(model_type: str, architecture: str) -> tuple[tuple[Profile, dict[str, Any]], ...]:
    """One bundled profile of each shape of a class, with the essence of its config."""
    shapes = {
        profile.shape_id: profile
        for profile in reversed(load_profiles().values())
        if (profile.model_type, profile.architecture_class) == (model_type, architecture)
    }
    return tuple((profile, _essence(config_from(model_type, profile.config))) for profile in shapes.values())


def _with_vocabulary(bundled: Profile, config: PretrainedConfig, name: str) -> Profile:
    text = config.get_text_config()
    profile_id = f"{bundled.shape_id}/v{text.vocab_size}"
    known = load_profiles().get(profile_id)
    if known is not None:
        return known
    values = dict(bundled.config)
    if "text_config" in values:
        values["text_config"] = {**values["text_config"], "vocab_size": text.vocab_size}
    else:
        values["vocab_size"] = text.vocab_size
    # Token ids must lie inside the vocabulary, so they come from the model, not from the bundled sibling.
    values.update({key: value for key, value in _token_ids(config).items() if key in values})
    return replace(
        bundled,
        profile_id=profile_id,
        config=values,
        representative_checkpoint=name,
        expected_parameter_count=0,
        pooling={},
        rows=0,
        downloads=0,
    )


def _token_ids(config: PretrainedConfig) -> dict[str, Any]:
    return {name: value for name, value in vars(config).items() if name.endswith("_token_id")}


def _essence(config: PretrainedConfig) -> dict[str, Any]:
    """What a stock class reads from its config; settings that only some file mentions do not count."""
    # Stock decoders honour `is_causal`, but their configs do not list it.
    known = {**type(config)().to_dict(), "is_causal": None}
    return _relevant({name: value for name, value in config.to_dict().items() if name in known})


def _relevant(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _relevant(value) if isinstance(value, Mapping) else value
        for name, value in values.items()
        if name not in _IGNORED and not name.endswith("_token_id")
    }


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    dropped = ("_name_or_path", "transformers_version", "torch_dtype", "dtype", "auto_map", "id2label", "label2id")
    return {name: value for name, value in values.items() if name not in dropped}
