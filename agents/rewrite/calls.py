"""The calls of a module that are traced: from two batches of other sizes, in the model as its adapters left it."""

from __future__ import annotations

import copy
import inspect
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from hf_adapters.agents.localise import PUBLIC_SEED
from hf_adapters.agents.subject import Subject
from hf_adapters.patching import patch_report
from hf_adapters.validation.functions import Call
from hf_adapters.validation.inputs import draw, spec_of

_LENGTHS = ((64, 23), (128, 40, 97))
"""Tokens of the rows of the two batches. Whole sticks, as the runner pads them."""


@dataclass(frozen=True)
class Called:
    """A module that is traced, and two calls of it.

    Attributes:
        module: a copy.
        placed: a copy as all adapters of the subject leave it.
        calls: its first one in each of two forwards.
    """

    module: nn.Module
    placed: nn.Module
    calls: tuple[Call, Call]


def recorded(subject: Subject, path: str) -> Called:
    """The module at `path`, patched as the subject's adapters patch it, and its first call in two forwards.

    Raises:
        LookupError: there is no such module, or it is not called.
    """
    model = subject.build()
    found: list[Call] = []
    with subject.patched(model) as patched:
        module = _below(patched, path)
        inner = copy.deepcopy(module)
        for lengths in _LENGTHS:
            found += _first(patched, module, lengths)
    if len(found) != len(_LENGTHS):
        raise LookupError(f"the module {path!r} is not called")
    return Called(inner, inner, (found[0], found[1]))


def bare(called: Called, subject: Subject, path: str) -> Called | None:
    """The same without the adapters that change something at `path` or below it; None when there are none.

    A form of such a module stands for what they do as well. The calls stay those of the patched model, so None also
    when it takes or gives tensors of other sizes without them.
    """
    model = subject.build()
    inside = path and f"{path}."
    with subject.patched(model) as patched:
        names = [
            adapter.name
            for adapter in patch_report(patched).adapters
            if any(site.path == path or site.path.startswith(inside) for site in adapter.sites)
        ]
    if not names:
        return None
    others = replace(subject, without=(*subject.without, *names))
    with others.patched(subject.build()) as patched:
        module = copy.deepcopy(_below(patched, path))
    return replace(called, module=module) if _fits(module, called) else None


def _fits(module: nn.Module, called: Called) -> bool:
    """Whether a module takes and gives the sizes of the one whose place it is to take."""
    call = called.calls[0]
    try:
        with torch.no_grad():
            results = [each(*_own(call.args), **_own(call.kwargs)) for each in (module, called.placed)]
    except Exception:  # what a forward raises where it is given other sizes
        return False
    return _alike(results[0], results[1])


def _alike(own: Any, there: Any) -> bool:
    """Whether tensors have the same sizes; where one gives None, such as attention weights, there is nothing to fit."""
    if isinstance(own, (tuple, list)) and isinstance(there, (tuple, list)):
        return len(own) == len(there) and all(map(_alike, own, there))
    return not isinstance(own, Tensor) or not isinstance(there, Tensor) or own.shape == there.shape


def _below(model: nn.Module, path: str) -> nn.Module:
    try:
        return model.get_submodule(path)
    except AttributeError as error:
        raise LookupError(f"the model has no module {path!r}") from error


def _first(model: nn.Module, module: nn.Module, lengths: tuple[int, ...]) -> list[Call]:
    batch = draw(spec_of(model), name="public", lengths=lengths, padding="right", seed=PUBLIC_SEED)
    options = {"use_cache": False} if "use_cache" in inspect.signature(model.forward).parameters else {}
    calls: list[Call] = []

    def note(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls.append(Call(_own(args), _own(kwargs)))

    handle = module.register_forward_pre_hook(note, with_kwargs=True)
    try:
        with torch.no_grad():
            model(**{**batch.kwargs, **options})
    finally:
        handle.remove()
    return calls[:1]


def _own(value: Any) -> Any:
    """Copies of the tensors, which later operations in place do not change."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: _own(item) for key, item in value.items()}
    if type(value) in (tuple, list):
        return type(value)(_own(item) for item in value)
    return value
