"""Checkpoints for sentence-transformers whose class is not stock: found by their config, loaded without remote code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from hf_adapters.errors import UnsupportedOptionError
from hf_adapters.natives.family import ForeignWeights, TaskRequired, Values, named
from hf_adapters.natives.loading import config_of, load_native, weight_names
from hf_adapters.natives.registry import family_of, native_values

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

_HUB = ("revision", "token", "cache_dir", "local_files_only", "subfolder", "force_download", "proxies")
"""Arguments that say where files are."""
_IGNORED = ("trust_remote_code", "code_revision")
"""No code is run, whether it is trusted or not."""
_FILES = ("*.json", "*.safetensors", "adapters/**")


@dataclass(frozen=True, slots=True)
class Published:
    """A checkpoint that asks for code of its repository, and does not need it.

    Attributes:
        name: folder, or model id on the Hub.
        values: its config.json.
        hub: where its files are, as keyword arguments of the Hub's functions.
        native: whether one of our loaders brings its weights into place; otherwise a stock class does, with `config`.
    """

    name: str
    values: Values
    hub: Mapping[str, Any]
    native: bool

    def config(self) -> PretrainedConfig:
        """The config of the class that takes its place.

        Raises:
            ForeignConfig, ConfigInvalid: a setting asks for what the class does not compute.
        """
        if self.native:
            folder = Path(self.name)
            return config_of(native_values(self.values, weight_names(folder) if folder.is_dir() else frozenset()))
        from hf_adapters.corpus.aliases import stock_values

        return config_of(stock_values(self.values, self.name))

    def tasks(self) -> tuple[str, ...]:
        """Tasks that have adapters of their own; none for checkpoints of stock classes."""
        family = family_of(self.values)
        return family.tasks(self.values) if self.native and family is not None else ()

    def load(self, transformer_task: str, options: Mapping[str, Any]) -> PreTrainedModel:
        """The model with its weights, in eval mode on the CPU.

        Args:
            transformer_task: what sentence-transformers loads it for.
            options: `model_kwargs` of the caller: `task`, `dtype`, and where the files are.

        Raises:
            UnsupportedOptionError: an option that a native class does not have, or a head that is not loaded.
            ForeignWeights, ForeignConfig, TaskRequired: see `load_native`.
        """
        if transformer_task != "feature-extraction":
            raise UnsupportedOptionError(
                f"{self.name} is loaded by a native class, which has no head for {transformer_task}"
            )
        options = dict(options)
        task, dtype = options.pop("task", None), options.pop("dtype", None) or options.pop("torch_dtype", None)
        unknown = sorted(options.keys() - {*_HUB, *_IGNORED})
        if unknown:
            raise UnsupportedOptionError(
                f"{self.name} is loaded by a native class, which has no option {', '.join(unknown)}; model_kwargs may "
                "hold task and dtype"
            )
        try:
            return load_native(self._folder(), task=task, name=self.name, dtype=_dtype(dtype))
        except TaskRequired as error:
            raise TaskRequired(f'{self.name}: {error}; name it with model_kwargs={{"task": ...}}') from error

    def checked(self, model: PreTrainedModel, info: Mapping[str, Any]) -> PreTrainedModel:
        """A model of a stock class, once it is known that the files held all its weights.

        Args:
            model: what `from_pretrained` returned.
            info: its loading info.

        Raises:
            ForeignWeights: some would stay random; embeddings need no pooler.
        """
        missing = sorted(name for name in info["missing_keys"] if "pooler." not in name)
        if missing:
            absent = f"{', '.join(missing[:3])} of {type(model).__name__}"
            raise ForeignWeights(f"{self.name} has no weights for {absent}; they would be random")
        return model

    def _folder(self) -> Path:
        below = str(self.hub.get("subfolder") or "")
        if Path(self.name).is_dir():
            return Path(self.name) / below
        from huggingface_hub import snapshot_download

        patterns = [f"{below}/{pattern}" if below else pattern for pattern in _FILES]
        where = {
            key: self.hub[key] for key in ("revision", "token", "cache_dir", "local_files_only") if key in self.hub
        }
        return Path(snapshot_download(self.name, allow_patterns=patterns, **where)) / below


def find(name: str, options: Mapping[str, Any]) -> Published | None:
    """The checkpoint of that name if stock classes cannot load it as it is; None for all others.

    Args:
        name: folder, or model id on the Hub.
        options: may say where its files are (`revision`, `cache_dir`, `token` and so on).
    """
    from transformers.utils import cached_file

    from hf_adapters.corpus.aliases import is_alias

    hub = {key: options[key] for key in _HUB if options.get(key) is not None}
    path = cached_file(name, "config.json", _raise_exceptions_for_missing_entries=False, **hub)
    if path is None:
        return None
    try:
        values = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError:  # transformers says it better
        return None
    if not isinstance(values, dict):
        return None
    values = named(values, name)
    if family_of(values) is not None:
        return Published(name, values, hub, native=True)
    if is_alias(str(values.get("model_type"))):
        return Published(name, values, hub, native=False)
    return None


def _dtype(asked: Any) -> torch.dtype:
    """float32 holds every weight exactly, whatever the files hold; the device has its own format anyway."""
    if asked is None or asked == "auto":
        return torch.float32
    found = getattr(torch, asked, None) if isinstance(asked, str) else asked
    if not isinstance(found, torch.dtype):
        raise UnsupportedOptionError(f"dtype {asked!r} is no floating point dtype of torch")
    return found
