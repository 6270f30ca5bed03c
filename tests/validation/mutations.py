"""Patches that are wrong in a known way; the validator must reject every one.

A mutation changes a stock model in place and takes the change back at the end of the block; `None` from `sites` of a
structure means that it has nothing to change there. Numbers are those of the acceptance document's mutation suite.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hf_adapters.validation.recording import repeated_layers
from hf_adapters.validation.streaming import replaced_forward
from tests.validation.surgery import (
    activations,
    attentions,
    feed_forward_linears,
    norms,
    output_projections,
    position_tables,
    queries,
    relative_tables,
    replaced_attribute,
    replaced_child,
    rotaries,
    with_hook,
    with_pre_hook,
)

Apply = Callable[[nn.Module], Any]
Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Mutation:
    """One known-wrong patch."""

    number: int
    name: str
    apply: Callable[[nn.Module, ExitStack], int]
    """Registers its changes on the stack and returns how many places it changed."""

    @contextmanager
    def __call__(self, model: nn.Module) -> Iterator[nn.Module]:
        """Patch `model` wrongly inside the block."""
        with ExitStack() as stack:
            self.apply(model, stack)
            yield model

    def concerns(self, model: nn.Module) -> bool:
        """Whether there is anything in `model` that the mutation changes."""
        with ExitStack() as stack:
            return self.apply(model, stack) > 0


class QuickGelu(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(1.702 * x)


class Relu(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x)


class OtherSmooth(nn.Module):
    """silu where the stock model has gelu, and gelu where it has silu."""

    def __init__(self, stock: Function) -> None:
        super().__init__()
        x = torch.linspace(-3, 3, 64)
        self.stock_is_silu = bool(torch.allclose(stock(x), F.silu(x), atol=1e-5))

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(x) if self.stock_is_silu else F.silu(x)


def _activation(replacement: Callable[[Function], nn.Module]) -> Callable[[nn.Module, ExitStack], int]:
    def apply(model: nn.Module, stack: ExitStack) -> int:
        found = activations(model)
        for parent, name, child in found:
            stack.enter_context(replaced_child(parent, name, replacement(child)))
        return len(found) or _called_activation(model, stack, replacement)

    return apply


def _called_activation(model: nn.Module, stack: ExitStack, replacement: Callable[[Function], nn.Module]) -> int:
    """Families whose feed-forward blocks call a function: their own gelu (ESM), or the library's silu (LFM2)."""
    module = sys.modules[type(model).__module__]
    owner, name = (module, "gelu") if hasattr(module, "gelu") else (F, "silu")
    called: list[bool] = []
    instead = replacement(getattr(owner, name))

    def call(x: Tensor) -> Tensor:
        called.append(True)
        return instead(x)

    with replaced_attribute(owner, name, call):
        model(**_few_tokens())
    if called:
        stack.enter_context(replaced_attribute(owner, name, instead))
    return len(called)


def _few_tokens() -> dict[str, Tensor]:
    ids = torch.arange(3, 9)[None]
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def _zero_head(model: nn.Module, stack: ExitStack) -> int:
    found = output_projections(model)[:1]
    for module, head_size in found:

        def cut(_module: nn.Module, args: tuple[Any, ...], _size: int = head_size) -> tuple[Any, ...]:
            keep = torch.ones(args[0].shape[-1], dtype=args[0].dtype)
            keep[:_size] = 0
            return (args[0] * keep, *args[1:])

        stack.enter_context(with_pre_hook(module, cut))
    return len(found)


def _skip_layer(model: nn.Module, stack: ExitStack) -> int:
    layers = list(repeated_layers(model).values())
    layer = layers[len(layers) // 2]
    returned: list[Any] = []
    with with_hook(layer, lambda _m, _a, out: returned.append(out)):
        model(**_few_tokens())
    if isinstance(returned[0], tuple):  # what else the layer returns (states of entities) is worked out as ever
        stack.enter_context(with_hook(layer, lambda _m, args, out: (args[0] * 1, *out[1:])))
    else:
        stack.enter_context(replaced_forward(layer, lambda hidden, *args, **kwargs: hidden * 1))
    return 1


def _wrong_scale(model: nn.Module, stack: ExitStack) -> int:
    count = 0
    for module in attentions(model):
        for name in ("scaling", "scale", "attention_scale"):
            value = getattr(module, name, None)
            if isinstance(value, float):
                stack.enter_context(replaced_attribute(module, name, value * 2**0.5))
                count += 1
                break
    if count:
        return count
    found = queries(model)  # where the scale is worked out in the forward, or there is none
    for module in found:
        stack.enter_context(with_hook(module, lambda _m, _a, out: out * 2**0.5))
    return len(found)


def _ignore_padding(model: nn.Module, stack: ExitStack) -> int:
    def full(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return args, {**kwargs, "attention_mask": torch.ones_like(kwargs["attention_mask"])}

    stack.enter_context(with_pre_hook(getattr(model, "backbone", model), full, with_kwargs=True))
    return 1


def _drop_positions(model: nn.Module, stack: ExitStack) -> int:
    tables, rotary = [*position_tables(model), *relative_tables(model)], rotaries(model)
    for table in tables:
        stack.enter_context(with_hook(table, lambda _m, _a, out: torch.zeros_like(out)))
    for module in rotary:
        stack.enter_context(with_hook(module, lambda _m, _a, out: _unturned(out)))
    made = [(m, n) for m in model.modules() for n in ("get_rel_embedding", "build_alibi_tensor") if hasattr(m, n)]
    for module, name in made:
        stack.enter_context(replaced_attribute(module, name, partial(_nothing, getattr(module, name))))
    return len(tables) + len(rotary) + len(made)


def _unturned(tables: Any) -> Any:
    """Angles of zero, as (cosines, sines) or, in GPT-J, as one table of sines and then cosines."""
    if isinstance(tables, Tensor):
        return torch.cat([torch.zeros_like(half) + number for number, half in enumerate(tables.chunk(2, -1))], -1)
    return torch.ones_like(tables[0]), torch.zeros_like(tables[1])


def _nothing(make: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    made = make(*args, **kwargs)
    return None if made is None else torch.zeros_like(made)


def _shift_positions(model: nn.Module, stack: ExitStack) -> int:
    tables = position_tables(model)
    for table in tables:
        stack.enter_context(with_pre_hook(table, lambda _m, args: ((args[0] + 1),)))
    return len(tables)


def _large_eps(model: nn.Module, stack: ExitStack) -> int:
    found = norms(model)
    for module, name in found:
        stack.enter_context(replaced_attribute(module, name, 1e-2))
    return len(found)


def _noisy_feed_forward(model: nn.Module, stack: ExitStack) -> int:
    found = feed_forward_linears(model)
    for number, module in enumerate(found):
        noise = torch.randn(module.weight.shape, generator=torch.Generator().manual_seed(number))
        stack.enter_context(replaced_forward(module, partial(_noisy, module, 1 + 0.05 * noise)))
    return len(found)


def _noisy(module: Any, factor: Tensor, x: Tensor) -> Tensor:
    weight: Tensor = module.weight * factor.to(module.weight.dtype)
    return F.linear(x, weight if isinstance(module, nn.Linear) else weight.t(), module.bias)


def _pool_padding(model: nn.Module, stack: ExitStack) -> int:
    pooling = getattr(model, "pooling", None)
    if pooling is None:
        return 0
    stack.enter_context(replaced_forward(pooling, lambda hidden, attention_mask: hidden.mean(1)))
    return 1


def _other_direction(model: nn.Module, stack: ExitStack) -> int:
    """Causal attention in an encoder, attention to later tokens in a decoder: the mask given becomes a full one."""
    backbone = getattr(model, "backbone", model)
    causal = looks_back_only(backbone)

    def full(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        mask = kwargs["attention_mask"]
        length = mask.shape[1]
        keep = mask.bool()[:, None, None, :].expand(-1, 1, length, length)
        if not causal:
            keep = keep & torch.ones(length, length, dtype=torch.bool).tril()
        keep = keep | torch.eye(length, dtype=torch.bool)
        dtype = next(p.dtype for p in module.parameters())
        additive = torch.zeros(keep.shape, dtype=dtype).masked_fill(~keep, torch.finfo(dtype).min)
        return args, {**kwargs, "attention_mask": additive}

    if type(backbone).__name__.startswith("ModernBert"):
        return 0
    stack.enter_context(with_pre_hook(backbone, full, with_kwargs=True))
    return 1


@torch.no_grad()
def looks_back_only(model: nn.Module) -> bool:
    """The first token's output does not depend on the last token."""
    model.eval()
    other = _few_tokens()
    other["input_ids"][0, -1] += 1
    first, second = (model(**batch)[0][:, 0] for batch in (_few_tokens(), other))
    return bool(torch.allclose(first, second, atol=1e-6))


def _swap_rotary(model: nn.Module, stack: ExitStack) -> int:
    found = rotaries(model)
    for module in found:
        stack.enter_context(with_hook(module, lambda _m, _a, out: _turned_back(out)))
    return len(found)


def _turned_back(tables: Any) -> Any:
    if isinstance(tables, Tensor):
        sines, cosines = tables.chunk(2, -1)
        return torch.cat([-sines, cosines], -1)
    return tables[0], -tables[1]


def _wrong_theta(model: nn.Module, stack: ExitStack) -> int:
    count = 0
    for module in rotaries(model):
        for name, buffer in list(module._buffers.items()):
            if buffer is not None and name.endswith("inv_freq") and "original" not in name:
                stack.enter_context(_replaced_buffer(module, name, buffer**1.25))
                count += 1
    return count


@contextmanager
def _replaced_buffer(module: nn.Module, name: str, value: Tensor) -> Iterator[None]:
    old = module._buffers[name]
    module._buffers[name] = value
    try:
        yield
    finally:
        module._buffers[name] = old


wrong_activation = _activation(lambda stock: Relu())
"""Puts relu in the place of every activation."""

NUMERIC: tuple[Mutation, ...] = (
    Mutation(1, "gelu replaced by quick-gelu", _activation(lambda stock: QuickGelu())),
    Mutation(2, "gelu replaced by relu", wrong_activation),
    Mutation(3, "gelu replaced by silu", _activation(OtherSmooth)),
    Mutation(4, "one attention head zeroed", _zero_head),
    Mutation(5, "one layer skipped", _skip_layer),
    Mutation(6, "attention scale off by sqrt(2)", _wrong_scale),
    Mutation(7, "padding mask ignored", _ignore_padding),
    Mutation(8, "positions dropped", _drop_positions),
    Mutation(8, "positions off by one", _shift_positions),
    Mutation(9, "norm eps 1e-2", _large_eps),
    Mutation(10, "5 % noise on feed-forward weights", _noisy_feed_forward),
    Mutation(11, "pooling over padding", _pool_padding),
    Mutation(12, "attention in the other direction", _other_direction),
    Mutation(13, "rotary halves swapped", _swap_rotary),
    Mutation(13, "wrong rotary theta", _wrong_theta),
)
"""Wrong numbers."""
