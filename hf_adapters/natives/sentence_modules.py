"""The modules of a sentence-transformers model for backend="spyre": built without code of the model's repository."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sentence_transformers.base.modules import Transformer
from sentence_transformers.util import load_file_path
from torch import Tensor

from hf_adapters.errors import UnsupportedOptionError
from hf_adapters.natives.sentences import Published, find

_LIBRARY = "sentence_transformers."
_NOTE = "adapters_of_tasks"
"""Attribute of a config: the task whose adapters are merged, and all tasks that have some."""
_PLACES = ("token", "cache_folder", "revision", "local_files_only")
"""Arguments of sentence-transformers that say where files are."""
_ROUTES = {"query": ".query", "document": ".passage"}
"""What `encode_query` and `encode_document` name, and the tasks that are meant by it where a family has such tasks."""
_OTHERWISE = 'Load it with backend="torch" and call hf_adapters.compile(model)'


class TaskTransformer(Transformer):  # type: ignore[misc]  # its base comes without annotations
    """The library's own module with adapters of one task merged; a call for another task is refused, not answered.

    Attributes:
        merged: the task; None when no adapters were merged.
        others: tasks of the checkpoint that other adapters would serve.
    """

    merged: str | None = None
    others: tuple[str, ...] = ()

    def forward(self, features: dict[str, Tensor], task: str | None = None, **kwargs: Any) -> dict[str, Tensor]:
        """As the library's; `task` comes from `encode(texts, task=...)`."""
        if task is not None and not self._serves(task):
            raise UnsupportedOptionError(
                f"task {task!r} was asked for, but the adapters of {self.merged or 'no task'} are merged; load the "
                f'model again with model_kwargs={{"task": ...}}, one of {", ".join(self.others)}'
            )
        found: dict[str, Tensor] = super().forward(features, **kwargs)
        return found

    def _serves(self, task: str) -> bool:
        ending = _ROUTES.get(task)
        if ending is None or task in self.others:
            return task == self.merged
        routed = self.merged is not None and self.merged.endswith(tuple(_ROUTES.values()))
        return not routed or str(self.merged).endswith(ending)


def load_modules(stock: Callable[..., Any], model: Any, name: str, given: Mapping[str, Any]) -> Any:
    """The modules and the names of their keyword arguments, as `_load_modules` of sentence-transformers returns them.

    Args:
        stock: the library's own method.
        model: the `SentenceTransformer`, `CrossEncoder` and so on that is being made.
        name: folder, or model id on the Hub.
        given: the method's other arguments by name.

    Raises:
        UnsupportedOptionError: the repository names modules of its own that nothing here stands for, or wants a head
            that a native class does not have.
    """
    places = {key: given.get(key) for key in _PLACES}
    declared = _declared(name, places)
    below = str(declared[0].get("path") or "") if declared else ""
    published = find(name, {**places, "cache_dir": places["cache_folder"], "subfolder": below or None})
    ours = f"{__name__}.{TaskTransformer.__name__}"
    model._module_classes = {**model._module_classes, ours: TaskTransformer}
    known = (_LIBRARY, ours)
    foreign = [str(module["type"]) for module in declared or () if not str(module["type"]).startswith(known)]
    if published is None:
        if foreign and foreign[0] == declared[0]["type"]:
            raise UnsupportedOptionError(f"{name} is loaded by {foreign[0]} of its own repository. {_OTHERWISE}")
        return stock(model, name, **given)
    for reference in foreign:
        if reference != declared[0]["type"] or not reference.endswith(".Transformer"):
            raise UnsupportedOptionError(f"{name} asks for {reference} of its own repository, whose code is not run")
        model._module_classes = {**model._module_classes, reference: Transformer}
    untrusted = _untrusted(given)
    if model.model_type == "CrossEncoder" and (not declared or model._get_model_type(name, **places) != "CrossEncoder"):
        return _with_head(model, name, "sequence-classification", untrusted)
    if model.model_type == "SparseEncoder" and not declared:
        return _with_head(model, name, "fill-mask", untrusted)
    return stock(model, name, **untrusted)


def note(model: Any, published: Published, options: Mapping[str, Any]) -> None:
    """Write into a config which task a model was loaded for, where its checkpoint has several; it is saved with it."""
    if tasks := published.tasks():
        setattr(model.config, _NOTE, {"merged": options.get("task"), "tasks": list(tasks)})


def remember(module: Any, model: Any) -> None:
    """Let a module tell the task that a model's config notes from others."""
    noted = getattr(model.config, _NOTE, None)
    if noted and type(module) in (Transformer, TaskTransformer):
        module.__class__ = TaskTransformer
        module.merged, module.others = noted["merged"], tuple(noted["tasks"])


def _declared(name: str, places: Mapping[str, Any]) -> list[dict[str, Any]]:
    path = load_file_path(name, "modules.json", **places)
    if path is None:
        return []
    found: list[dict[str, Any]] = json.loads(Path(path).read_text(encoding="utf-8"))
    return found


def _untrusted(given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments without leave to run code, which configs and tokenizers of these repositories would ask for."""
    found = {**given, "trust_remote_code": False}
    for key in ("model_kwargs", "processor_kwargs", "config_kwargs"):
        if found.get(key):
            found[key] = {k: v for k, v in found[key].items() if k not in ("trust_remote_code", "code_revision")}
    return found


def _with_head(model: Any, name: str, task: str, given: Mapping[str, Any]) -> Any:
    """What the library makes of a repository without modules.json; it would read the config by its model type."""
    shared = {key: given[key] for key in ("token", "revision", "local_files_only", "trust_remote_code")}
    options = {
        key: {**shared, **(given.get(key) or {})} for key in ("model_kwargs", "processor_kwargs", "config_kwargs")
    }
    module = Transformer(name, transformer_task=task, cache_dir=given["cache_folder"], backend=model.backend, **options)
    if task != "fill-mask":
        return [module], {}
    from sentence_transformers.sparse_encoder.modules import SpladePooling

    return [module, SpladePooling(pooling_strategy="max")], {}
