"""Load a published checkpoint into its structure: every weight finds its place, or the load fails."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hf_adapters.natives.family import (
    Family,
    ForeignConfig,
    ForeignWeights,
    Request,
    TaskRequired,
    Values,
    Weights,
    named,
)
from hf_adapters.natives.registry import family_of, native_class, native_config

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

_SHOWN = 3


def load_native(
    folder: str | Path, *, task: str | None = None, name: str | None = None, dtype: torch.dtype = torch.float32
) -> PreTrainedModel:
    """Build the structure of a published checkpoint with its weights, in eval mode on the CPU; no remote code is run.

    Args:
        folder: holds config.json and safetensors files.
        task: whose adapters are merged, for checkpoints that have some (`retrieval.query` and so on).
        name: what the model is called, for configs that do not say what their own code computes; the folder when None.
        dtype: of all floating-point parameters.

    Raises:
        ForeignConfig: the config is not of a known family, or asks for what the structure does not compute.
        TaskRequired: no task was named where one is needed, or there is none of that name.
        ForeignWeights: a weight is missing, left over or of another shape; nothing would be right then.
    """
    folder = Path(folder)
    values = named(json.loads((folder / "config.json").read_text(encoding="utf-8")), name or str(folder))
    family = family_of(values)
    if family is None:
        raise ForeignConfig(f"{folder} is not of a family that needs a structure of its own; use AutoModel")
    _check_task(family, values, task)
    weights = read_weights(folder)
    adapters = _adapter_files(folder, task) if family.adapter_files and task is not None else None
    model = build(family.values(values, frozenset(weights)), dtype)
    place(model, family.weights(weights, Request(values, task, adapters)))
    return model.eval()


def build(values: Values, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """The class that the settings name, on the CPU, its parameters not yet filled.

    Raises:
        ForeignConfig: there is no such class.
    """
    import transformers
    from transformers.initialization import no_init_weights

    name = values["architectures"][0]
    model_class = native_class(name) or getattr(transformers, name, None)
    if model_class is None:
        raise ForeignConfig(f"transformers {transformers.__version__} has no {name}")
    config = config_of(values)
    with no_init_weights():
        model: PreTrainedModel = model_class._from_config(config, dtype=dtype)
    return model


def config_of(values: Values) -> PretrainedConfig:
    """The config object of settings, of one of our structures or a stock one.

    Raises:
        ForeignConfig: there is no such model type.
    """
    import transformers

    model_type = values["model_type"]
    config_class = native_config(model_type)
    if config_class is None and model_type in transformers.CONFIG_MAPPING:
        config_class = transformers.CONFIG_MAPPING[model_type]
    if config_class is None:
        raise ForeignConfig(f"transformers {transformers.__version__} has no model type {model_type}")
    config: PretrainedConfig = config_class(**{key: value for key, value in values.items() if key != "model_type"})
    return config


def place(model: PreTrainedModel, weights: Weights) -> None:
    """Copy weights into the parameters of their names.

    Raises:
        ForeignWeights: names or shapes differ; the model is then unfilled.
    """
    wanted = model.state_dict()
    missing, unexpected = sorted(wanted.keys() - weights.keys()), sorted(weights.keys() - wanted.keys())
    if missing or unexpected:
        raise ForeignWeights(
            f"the weights are not those of {type(model).__name__}: missing {_some(missing)}; unexpected "
            f"{_some(unexpected)}. Missing ones would stay random, so nothing is loaded"
        )
    for name, value in weights.items():
        if value.shape != wanted[name].shape:
            raise ForeignWeights(f"{name} is {tuple(value.shape)}, expected {tuple(wanted[name].shape)}")
    model.load_state_dict(dict(weights), strict=True)


def read_weights(folder: Path) -> dict[str, Tensor]:
    """All tensors of the safetensors files in a folder.

    Raises:
        ForeignWeights: there are none, or a file is damaged.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    found: dict[str, Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        try:
            found.update(load_file(path))
        except (SafetensorError, OSError) as error:
            raise ForeignWeights(f"{path} cannot be read: {error}") from error
    if not found:
        raise ForeignWeights(f"{folder} holds no safetensors files, the only format that is read here")
    return found


def weight_names(folder: Path) -> frozenset[str]:
    """Names of the tensors in the safetensors files of a folder, from their headers; empty without such files."""
    from safetensors import safe_open

    names: set[str] = set()
    for path in folder.glob("*.safetensors"):
        with safe_open(path, framework="pt") as opened:
            names.update(opened.keys())
    return frozenset(names)


def _check_task(family: Family, values: Values, task: str | None) -> None:
    known = family.tasks(values)
    if task is None and family.task_required:
        raise TaskRequired(f"{family.name} needs a task: {', '.join(known)}")
    if task is not None and task not in known:
        raise TaskRequired(f"{family.name} has no task {task!r}; it has {', '.join(known) or 'none'}")


def _adapter_files(folder: Path, task: str) -> tuple[Any, Weights]:
    place_ = folder / "adapters" / task
    config = place_ / "adapter_config.json"
    if not config.is_file():
        raise ForeignWeights(f"{config} is missing")
    return json.loads(config.read_text(encoding="utf-8")), read_weights(place_)


def _some(names: Iterable[str]) -> str:
    names = list(names)
    shown = ", ".join(names[:_SHOWN]) or "none"
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"
