"""How another process gets the same stock model."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSource:
    """Either an importable builder with its arguments, or a file written by `from_model`."""

    builder: Callable[..., nn.Module] | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    path: str | None = None

    def build(self) -> nn.Module:
        """The stock model, float32, on the CPU, in evaluation mode.

        Raises:
            ValueError: neither a builder nor a file is given.
        """
        if self.builder is not None:
            model = self.builder(**self.arguments)
        elif self.path is not None:
            model = _load(Path(self.path))
        else:
            raise ValueError(
                "a model source needs a builder or a file: ModelSource(builder=...) or ModelSource.from_model(model)"
            )
        return model.to(torch.float32).eval()

    @classmethod
    def from_model(cls, model: nn.Module, folder: str | Path) -> ModelSource:
        """Write `model` to a file in `folder`, which must exist as long as the source is used.

        A transformers model is stored as class, config and state dict and rebuilt by its class, so nothing that was
        hung on the instance travels along; any other module is pickled.
        """
        target = Path(folder) / "model.pt"
        content: dict[str, Any]
        if _rebuildable(model):
            kind = type(model)
            config = model.config
            content = {
                "class": (kind.__module__, kind.__qualname__),
                "config": config,
                "attention": getattr(config, "_attn_implementation", None),
                "state": model.state_dict(),
                "buffers": dict(model.named_buffers()),
            }
        else:
            content = {"module": model}
        torch.save(content, target)
        return cls(path=str(target))


def _rebuildable(model: nn.Module) -> bool:
    kind = type(model)
    if not (hasattr(model, "save_pretrained") and hasattr(model, "config")):
        return False
    found: Any = importlib.import_module(kind.__module__)
    for part in kind.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is kind


def _load(path: Path) -> nn.Module:
    content = torch.load(path, weights_only=False, mmap=True)
    if "module" in content:
        module: nn.Module = content["module"]
        return module
    module_name, qualname = content["class"]
    kind: Any = importlib.import_module(module_name)
    for part in qualname.split("."):
        kind = getattr(kind, part)
    config = content["config"]
    if content["attention"] is not None:
        config._attn_implementation = content["attention"]
    with _without_initialisation():
        model: nn.Module = kind(config)
    model.load_state_dict(content["state"], strict=True)
    for name, buffer in content["buffers"].items():
        owner, _, attribute = name.rpartition(".")
        model.get_submodule(owner)._buffers[attribute] = buffer.clone()
    return model


def _without_initialisation() -> Any:
    """Skip drawing random weights that the state dict overwrites."""
    from transformers.initialization import no_init_weights

    return no_init_weights()
