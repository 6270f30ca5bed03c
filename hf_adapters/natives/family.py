"""What is known about a family of published checkpoints: how to tell it, its config, its weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from hf_adapters.errors import HfAdaptersError

Values = Mapping[str, Any]
Weights = Mapping[str, Tensor]


class ForeignWeights(HfAdaptersError, ValueError):
    """Weights have other names or shapes than the structure, so that some would stay random."""

    code = "E_WEIGHTS_INVALID"


class ForeignConfig(HfAdaptersError, ValueError):
    """A config asks for something that the structure does not compute."""

    code = "E_CONFIG_INVALID"


class TaskRequired(HfAdaptersError, ValueError):
    """A checkpoint has one set of adapters for each task, and no such task was named."""

    code = "E_TASK"


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked for besides a folder.

    Attributes:
        values: its config.json.
        task: whose low-rank adapters are merged; None merges none where the checkpoint allows that.
        adapters: (config, weights) of the adapter files of that task that lie beside the weights (PEFT's layout).
    """

    values: Values
    task: str | None = None
    adapters: tuple[Values, Weights] | None = None


def no_tasks(values: Values) -> tuple[str, ...]:
    """Families without adapters."""
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Checkpoints of one layout.

    Attributes:
        name: for messages.
        recognises: whether a config.json is of this family.
        values: config.json, and names of the published weights where they are at hand (else none) -> settings of our
            structure or a stock class: with ``model_type`` and one entry in ``architectures``, without ``auto_map``.
        weights: published weights -> those of the class, complete, under its names.
        tasks: config.json -> names of tasks with adapters of their own.
        task_required: without its adapters the checkpoint is no embedding model.
        adapter_files: adapters lie in ``adapters/<task>`` instead of inside the weights.
    """

    name: str
    recognises: Callable[[Values], bool]
    values: Callable[[Values, frozenset[str]], dict[str, Any]]
    weights: Callable[[Weights, Request], dict[str, Tensor]]
    tasks: Callable[[Values], tuple[str, ...]] = no_tasks
    task_required: bool = False
    adapter_files: bool = False


def without_prefix(weights: Weights, *prefixes: str) -> dict[str, Tensor]:
    """Names without the first prefix that one of them has; with it, names of other parts are left as they are."""
    for prefix in prefixes:
        if any(name.startswith(prefix) for name in weights):
            return {name.removeprefix(prefix): value for name, value in weights.items()}
    return dict(weights)


def without(weights: Weights, *beginnings: str) -> dict[str, Tensor]:
    """The weights whose names do not begin so: heads, and buffers that older files hold."""
    return {name: value for name, value in weights.items() if not name.startswith(beginnings)}


def class_name(values: Values, key: str = "AutoModel") -> str:
    """The class in a repository's own code that ``auto_map`` names, with its module; empty without one."""
    named = (values.get("auto_map") or {}).get(key) or ""
    return str(named[0] if isinstance(named, list) else named)


def named(values: Values, name: str) -> dict[str, Any]:
    """A config that also says what its model is called, which some of them need to be told apart."""
    return {**values, "_name_or_path": f"{values.get('_name_or_path') or ''} {name}".strip()}


def declares(values: Values, *names: str) -> bool:
    """Whether ``architectures`` names one of these classes."""
    return any(found in names for found in values.get("architectures") or ())


def renamed(values: Values, names: Mapping[str, str]) -> dict[str, Any]:
    """The settings that are listed, under the names of ours; absent ones keep their default."""
    return {ours: values[theirs] for theirs, ours in names.items() if values.get(theirs) is not None}


def require(values: Values, expected: Mapping[str, tuple[Any, ...]], family: str) -> None:
    """Refuse settings that change results and that the structure does not have.

    Raises:
        ForeignConfig: names the setting; an absent one is fine.
    """
    for name, accepted in expected.items():
        if name in values and values[name] not in accepted:
            raise ForeignConfig(f"{family}: {name} is {values[name]!r}; supported: {', '.join(map(repr, accepted))}")
