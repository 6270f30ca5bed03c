"""Load a model with the weights that lie in a folder or on the Hub."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from hf_adapters.corpus.aliases import is_alias
from hf_adapters.corpus.architectures import count_parameters, declared, text_tower
from hf_adapters.corpus.build import BuiltModel
from hf_adapters.corpus.errors import WeightsInvalid
from hf_adapters.corpus.signature import structural_signature
from hf_adapters.natives import Family, ForeignWeights, TaskRequired, family_of, load_native, named
from hf_adapters.natives.loading import weight_names

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

    from hf_adapters.corpus.references import ModelRef

#: Weights of heads, which an encoder does not have.
_HEADS = ("lm_head.", "classifier.", "score.")


def load_real(found: ModelRef, *, seed: int, max_elements: int, release: str | None) -> BuiltModel | None:
    """The text tower of a model with its real weights, float32, in eval mode; None if it is too large.

    Weights that the files lack (a pooler, often) are drawn under the given seed.

    Raises:
        WeightsInvalid: the files are damaged or do not fit the config.
        NetworkUnavailable, GatedModel, HubRefused: they had to be downloaded.
    """
    assert found.folder is not None
    signature = structural_signature(found.profile, release)
    if found.allow_remote_code and found.profile.architecture_class not in _stock_names():
        return _built(found, _with_remote_code(found, seed), signature, seed, ())
    model_class, config, left_out = text_tower(*declared(found.profile))
    if count_parameters(model_class, config) > max_elements:
        return None
    family = _family(found)
    if family is not None:
        return _own(found, seed, release)
    if found.task is not None:
        raise WeightsInvalid(f"{found.ref} has no adapters for tasks", hint="leave the task out")
    alias = is_alias(_declared_type(found.folder))
    model = _from_pretrained(model_class, _weights_folder(found), seed, config if alias else None)
    return _built(found, model, signature, seed, left_out)


def streamable_folder(found: ModelRef) -> Path | None:
    """Where the weights of a model lie that can be read one layer at a time; None where they cannot.

    Raises:
        NetworkUnavailable, GatedModel, HubRefused: they had to be downloaded.
    """
    from hf_adapters.corpus.streamed_files import safetensors_files

    if found.weights != "real" or found.task is not None or _family(found) is not None:
        return None
    if found.allow_remote_code and found.profile.architecture_class not in _stock_names():
        return None
    folder = _weights_folder(found)
    return folder if safetensors_files(folder) else None


def _family(found: ModelRef) -> Family | None:
    from hf_adapters.corpus.match import parse_config

    assert found.folder is not None
    path = found.folder / "config.json"
    return family_of(named(parse_config(path.read_bytes(), str(path)), found.ref))


def _own(found: ModelRef, seed: int, release: str | None) -> BuiltModel:
    """A model whose published weights have other names than those of its class; each has to find its place."""
    from hf_adapters.corpus.match import parse_config, profile_of

    folder = _weights_folder(found)
    path = folder / "config.json"
    try:
        model = load_native(folder, task=found.task, name=found.ref)
    except TaskRequired as error:
        hint = "name one with --task, or with hf_adapters.natives.load_native(folder, task=...)"
        raise WeightsInvalid(f"{found.ref}: {error}", hint=hint) from error
    except ForeignWeights as error:
        raise WeightsInvalid(f"{folder}: {error}", hint="a weight that is not found would be random") from error
    profile = profile_of(parse_config(path.read_bytes(), str(path)), found.ref, weight_names=weight_names(folder))
    return _built(replace(found, profile=profile), model, structural_signature(profile, release), seed, ())


def _built(found: ModelRef, model: PreTrainedModel, signature: str, seed: int, left_out: tuple[str, ...]) -> BuiltModel:
    return BuiltModel(
        model=model,
        profile=found.profile,
        signature=signature,
        seed=seed,
        depth="all",
        elements=sum(parameter.numel() for parameter in model.parameters()),
        weights="real",
        left_out=left_out,
    )


def _stock_names() -> frozenset[str]:
    import transformers

    return frozenset(dir(transformers))


def _weights_folder(found: ModelRef) -> Path:
    from hf_adapters.corpus.references import has_weights

    assert found.folder is not None
    if has_weights(found.folder) or found.model_id is None:
        return found.folder
    from hf_adapters.corpus.hub import download_weights

    return download_weights(found.model_id, found.revision, found.folder)


def _declared_type(folder: Path) -> str:
    from hf_adapters.corpus.match import parse_config

    path = folder / "config.json"
    return str(parse_config(path.read_bytes(), str(path))["model_type"])


def _from_pretrained(
    model_class: type[PreTrainedModel], folder: Path, seed: int, config: PretrainedConfig | None = None
) -> PreTrainedModel:
    """Load weights; a pooler may be absent, and with a config of our own nothing but heads may be left over."""
    given = {} if config is None else {"config": config}
    try:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model, info = model_class.from_pretrained(
                folder, dtype=torch.float32, local_files_only=True, output_loading_info=True, **given
            )
    except Exception as error:  # readers of weight files raise whatever their format needs
        raise WeightsInvalid(
            f"the weights in {folder} cannot be loaded as {model_class.__name__}: {type(error).__name__}: {error}",
            hint="the files may be cut off, or of another model",
        ) from error
    _refuse_strangers(model_class, folder, info, strictly=config is not None)
    return model.eval()


def _refuse_strangers(
    model_class: type[PreTrainedModel], folder: Path, info: Mapping[str, Any], *, strictly: bool
) -> None:
    """Stock classes load files of another layout without an error and leave what they do not find random."""
    missing = sorted(name for name in info["missing_keys"] if "pooler." not in name)
    unexpected = sorted(name for name in info["unexpected_keys"] if strictly and not name.startswith(_HEADS))
    if missing or unexpected:
        raise WeightsInvalid(
            f"the weights in {folder} are not those of {model_class.__name__}: missing {missing[:3] or 'none'}, "
            f"unexpected {unexpected[:3] or 'none'}",
            hint="a weight that is not found would be random",
        )


def _with_remote_code(found: ModelRef, seed: int) -> PreTrainedModel:
    from transformers import AutoModel

    folder = _weights_folder(found)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model: PreTrainedModel = AutoModel.from_pretrained(folder, dtype=torch.float32, trust_remote_code=True)
    return model.eval()
