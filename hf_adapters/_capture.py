"""The hooks by which transformers records hidden states and attentions."""

from __future__ import annotations

from typing import Any

from torch import nn

INSTALLED = "_output_capturing_hooks_installed"
MODULE = "transformers.utils.output_capturing"


def remove_hooks(model: nn.Module) -> None:
    """Remove the recording hooks that an earlier call with ``output_hidden_states`` or the like left behind.

    transformers installs them on first demand and keeps them for good; idle, they still would be traced into every new
    graph. It installs them again when they are asked for.
    """
    holders = [module for module in model.modules() if INSTALLED in module.__dict__]
    if not holders:
        return
    for module in model.modules():
        hooks: Any = module._forward_hooks
        for key in [key for key, hook in hooks.items() if getattr(hook, "__module__", None) == MODULE]:
            del hooks[key]
    for module in holders:
        del module.__dict__[INSTALLED]
