"""The hooks by which transformers records hidden states and attentions."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from torch import nn

INSTALLED = "_output_capturing_hooks_installed"
MODULE = "transformers.utils.output_capturing"


def remove_hooks(model: nn.Module, keep: Collection[str] = ()) -> None:
    """Remove the recording hooks, except those that record one of ``keep`` (``"hidden_states"``, ``"attentions"``).

    transformers installs all of them on first demand and keeps them for good; idle, they still would be traced into
    every new graph. It installs them again when they are asked for.
    """
    holders = [module for module in model.modules() if INSTALLED in module.__dict__]
    if not holders:
        return
    for module in model.modules():
        hooks: Any = module._forward_hooks
        for key in [key for key, hook in hooks.items() if _records(hook) not in (None, *keep)]:
            del hooks[key]
    if not keep:
        for module in holders:
            del module.__dict__[INSTALLED]


def install_hooks(model: nn.Module, keep: Collection[str]) -> None:
    """Install the recording hooks for the outputs named in ``keep``, and only those."""
    from transformers.utils import output_capturing

    output_capturing.maybe_install_capturing_hooks(model)
    remove_hooks(model, keep)


def _records(hook: Any) -> str | None:
    """What a recording hook of transformers records; None for any other hook."""
    if getattr(hook, "__module__", None) != MODULE:
        return None
    cells = dict(zip(hook.__code__.co_freevars, hook.__closure__ or (), strict=False))
    return str(cells["key"].cell_contents) if "key" in cells else ""
