"""No operation that the device cannot lower is left inside the layers of a patched model.

The layers run on the CPU in float16 with 64 tokens, and every operation they dispatch is looked at.
"""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from hf_adapters import patch
from hf_adapters._regions import find_regions
from tests.adapters import families

FORBIDDEN = {
    "pow", "sin", "cos", "arange", "tril", "triu", "erf", "native_layer_norm", "bitwise_or", "bitwise_xor", "cumsum",
    "argmax", "gather", "var", "var_mean", "std", "_fused_rms_norm", "bernoulli", "native_dropout",
    "masked_fill_", "_scaled_dot_product_flash_attention_for_cpu", "roll", "flip", "sort", "isinf", "isnan",
}  # fmt: skip
PRODUCTS = {"mm", "bmm", "addmm", "baddbmm"}


class Watch(TorchDispatchMode):
    """Collects what breaks a rule of the device."""

    def __init__(self) -> None:
        super().__init__()
        self.broken: list[str] = []
        self.seen = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen += 1
        name = func.overloadpacket.__name__
        result = func(*args, **(kwargs or {}))
        if name in FORBIDDEN:
            self.broken.append(f"{name} runs on the device")
        self._constants(name, args)
        if name in PRODUCTS:
            self._product(name, [a for a in args if isinstance(a, Tensor)][-2:])
        if name in ("view", "_unsafe_view", "reshape"):
            self._view(args[0], result)
        if name == "slice":
            self._slice(args)
        return result

    def _slice(self, args: Any) -> None:
        source, dim, start = (*args, 0, 0)[:3]
        if dim % source.dim() == source.dim() - 1 and (start or 0) % 64:
            self.broken.append(f"slice of the last dimension at {start}")

    def _constants(self, name: str, args: Any) -> None:
        if any(isinstance(a, float) and abs(a) == float("inf") for a in args):
            self.broken.append(f"{name} with an infinite constant")

    def _product(self, name: str, operands: list[Tensor]) -> None:
        left, right = operands
        if left.shape[-1] % 64:
            self.broken.append(f"{name} over {left.shape[-1]} elements")
        if right.shape[-1] < 2:
            self.broken.append(f"{name} with one output feature")
        if left.dtype != torch.float16:
            self.broken.append(f"{name} in {left.dtype}")

    def _view(self, before: Tensor, after: Tensor) -> None:
        if before.shape[-1] != after.shape[-1] and (before.shape[-1] % 64 or after.shape[-1] % 64):
            self.broken.append(f"view {tuple(before.shape)} -> {tuple(after.shape)}")


def _without_cache(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {name: None for name in ("cache", "layer_past") if name in kwargs}


def layer_calls(model: nn.Module, batch: dict[str, Tensor]) -> list[tuple[str, nn.Module, Any, Any]]:
    """Arguments that every region but the embeddings gets in one forward."""
    calls: list[tuple[str, nn.Module, Any, Any]] = []

    def note(path: str) -> Any:
        # Layers are called again; a cache would remember the first time.
        return lambda module, args, kwargs: calls.append((path, module, args, {**kwargs, **_without_cache(kwargs)}))

    handles = [
        module.register_forward_pre_hook(note(path), with_kwargs=True)
        for path, module in find_regions(model)
        if "embed" not in path and not isinstance(module, nn.Embedding)
    ]
    options = {"use_cache": False} if "use_cache" in inspect.signature(model.forward).parameters else {}
    with torch.no_grad():
        model(**batch, **options)
    for handle in handles:
        handle.remove()
    return calls


@pytest.mark.parametrize("name", families.ON_DEVICE)
def test_layers_use_legal_operations_only(name: str) -> None:
    model = patch(families.build(name, torch.float16))
    calls = layer_calls(model, families.batch("right", length=64))
    assert len(calls) >= model.config.num_hidden_layers
    for path, module, args, kwargs in calls:
        with torch.no_grad(), Watch() as watch:
            module(*args, **kwargs)
        assert watch.seen
        assert watch.broken == [], path


def test_the_watch_sees_what_a_stock_layer_does() -> None:
    model = families.build("qwen3", torch.float16)
    broken = []
    for _, module, args, kwargs in layer_calls(model, families.batch("right", length=64)):
        with torch.no_grad(), Watch() as watch:
            module(*args, **kwargs)
        broken += watch.broken
    assert "pow runs on the device" in broken
    assert "slice of the last dimension at 32" in broken
