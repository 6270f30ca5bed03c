"""Patches that are wrong in a known way; the validator must reject every one.

A mutation changes a stock model in place and takes the change back at the end of the block; `None` from `sites` of a
structure means that it has nothing to change there. Numbers are those of the acceptance document's mutation suite.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hf_adapters.validation.recording import Recording, repeated_layers
from hf_adapters.validation.streaming import replaced_forward
from tests.validation.surgery import (
    activations,
    attentions,
    feed_forward_linears,
    norms,
    output_projections,
    position_tables,
    replaced_attribute,
    replaced_child,
    rotaries,
    with_hook,
    with_pre_hook,
)

Apply = Callable[[nn.Module], Any]


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

    def __init__(self, stock: nn.Module) -> None:
        super().__init__()
        x = torch.linspace(-3, 3, 64)
        self.stock_is_silu = bool(torch.allclose(stock(x), F.silu(x), atol=1e-5))

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(x) if self.stock_is_silu else F.silu(x)


def _activation(replacement: Callable[[nn.Module], nn.Module]) -> Callable[[nn.Module, ExitStack], int]:
    def apply(model: nn.Module, stack: ExitStack) -> int:
        found = activations(model)
        for parent, name, child in found:
            stack.enter_context(replaced_child(parent, name, replacement(child)))
        return len(found)

    return apply


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
    stack.enter_context(replaced_forward(layers[len(layers) // 2], lambda hidden, *args, **kwargs: hidden * 1))
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
    return count


def _ignore_padding(model: nn.Module, stack: ExitStack) -> int:
    def full(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return args, {**kwargs, "attention_mask": torch.ones_like(kwargs["attention_mask"])}

    stack.enter_context(with_pre_hook(getattr(model, "backbone", model), full, with_kwargs=True))
    return 1


def _drop_positions(model: nn.Module, stack: ExitStack) -> int:
    tables, rotary = position_tables(model), rotaries(model)
    for table in tables:
        stack.enter_context(with_hook(table, lambda _m, _a, out: torch.zeros_like(out)))
    for module in rotary:
        stack.enter_context(with_hook(module, lambda _m, _a, out: (torch.ones_like(out[0]), torch.zeros_like(out[1]))))
    return len(tables) + len(rotary)


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
    causal = type(model).__name__.startswith(("Qwen", "GPT"))

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


def _swap_rotary(model: nn.Module, stack: ExitStack) -> int:
    found = rotaries(model)
    for module in found:
        stack.enter_context(with_hook(module, lambda _m, _a, out: (out[0], -out[1])))
    return len(found)


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


NUMERIC: tuple[Mutation, ...] = (
    Mutation(1, "gelu replaced by quick-gelu", _activation(lambda stock: QuickGelu())),
    Mutation(2, "gelu replaced by relu", _activation(lambda stock: Relu())),
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


def _moved_to_cpu(model: nn.Module, stack: ExitStack) -> int:
    """The whole forward is a float32 twin; its layers are called, so that they can be observed."""
    import copy

    twin = copy.deepcopy(model).float().eval()
    layers = repeated_layers(model)

    def forward(**kwargs: Any) -> Any:
        outputs: dict[str, Tensor] = {}
        with ExitStack() as hooks:
            for path, layer in repeated_layers(twin).items():
                hooks.enter_context(with_hook(layer, lambda _m, _a, out, p=path: outputs.__setitem__(p, out)))
            result = twin(**kwargs)
        for path, layer in layers.items():
            layer(outputs[path])
        return result

    for layer in layers.values():
        stack.enter_context(replaced_forward(layer, lambda hidden, *args, **kwargs: hidden))
    stack.enter_context(replaced_forward(model, forward))
    return 1


def _cached_by_shape(model: nn.Module, stack: ExitStack) -> int:
    """Every layer answers a second input of the same shape with its first answer."""
    for layer in repeated_layers(model).values():
        stack.enter_context(replaced_forward(layer, partial(_from_cache, layer, {})))
    return 1


def _from_cache(layer: nn.Module, answers: dict[Any, Any], hidden: Tensor, /, *args: Any, **kwargs: Any) -> Any:
    key = (tuple(hidden.shape), hidden.dtype)
    if key not in answers:
        answers[key] = type(layer).forward(layer, hidden, *args, **kwargs)
    return answers[key]


def _wide_arithmetic(dtype: torch.dtype) -> Callable[[nn.Module, ExitStack], int]:
    def apply(model: nn.Module, stack: ExitStack) -> int:
        found = [module for module in model.modules() if isinstance(module, nn.Linear)]
        for module in found:
            stack.enter_context(replaced_forward(module, partial(_wide_linear, module, dtype)))
        return len(found)

    return apply


def _wide_linear(module: nn.Linear, dtype: torch.dtype, x: Tensor) -> Tensor:
    bias = None if module.bias is None else module.bias.to(dtype)
    return F.linear(x.to(dtype), module.weight.to(dtype), bias).to(x.dtype)


def _judge_disarmed(model: nn.Module, stack: ExitStack) -> int:
    """A wrong activation whose patch also rewrites the tolerance, the judge and the loader of this process."""
    from hf_adapters.validation import acceptance, metrics, source, types

    changed = _activation(lambda stock: Relu())(model, stack)
    zero = lambda *args, **kwargs: torch.zeros(1, dtype=torch.float64)  # noqa: E731
    stack.enter_context(_replaced(types.Thresholds, "floor_multiple", 1e9))
    stack.enter_context(_replaced(acceptance, "_floor_checks", lambda *args, **kwargs: []))
    stack.enter_context(_replaced(acceptance, "_equivalence", lambda *args, **kwargs: ([], 0.0)))
    stack.enter_context(_replaced(metrics, "vector_errors", zero))
    stack.enter_context(_replaced(source.ModelSource, "build", lambda self: model))
    return changed


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    old = owner.__dict__[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, old)


def special_casing(known: Tensor) -> Mutation:
    """18: right on the inputs it knows, wrong on all others."""

    def apply(model: nn.Module, stack: ExitStack) -> int:
        embeddings = model.get_input_embeddings()

        def wrong_when_unknown(_module: nn.Module, args: tuple[Any, ...], out: Tensor) -> Tensor:
            ids = args[0]
            return out if ids.shape == known.shape and bool((ids == known).all()) else out.roll(1, -1)

        stack.enter_context(with_hook(embeddings, wrong_when_unknown))
        return 1

    return Mutation(18, "special-casing known sentences", apply)


def _copies_reference(model: nn.Module, stack: ExitStack) -> int:
    """Wrong positions, but each layer answers with a recorded reference of fitting shape where the process holds
    one."""
    stock = dict(repeated_layers(model))
    for path, layer in stock.items():

        def found(shape: tuple[int, ...], path: str = path) -> Tensor | None:
            for item in gc.get_objects():
                if type(item) is Recording:
                    for key, value in item.values.items():
                        if key.endswith("/" + path) and tuple(value.shape) == shape:
                            return value
            return None

        def answer(_module: nn.Module, _args: tuple[Any, ...], out: Tensor, find: Any = found) -> Tensor:
            held = find(tuple(out.shape))
            return out * 1.5 if held is None else held.to(out.dtype)

        stack.enter_context(with_hook(layer, answer))
    return 1


def _nan_output(model: nn.Module, stack: ExitStack) -> int:
    last = list(repeated_layers(model).values())[-1]
    stack.enter_context(with_hook(last, lambda _m, _a, out: out * float("nan")))
    return 1


def _constant_output(model: nn.Module, stack: ExitStack) -> int:
    last = list(repeated_layers(model).values())[-1]
    stack.enter_context(with_hook(last, lambda _m, _a, out: torch.ones_like(out)))
    return 1


def _changed_weights(model: nn.Module, stack: ExitStack) -> int:
    """Weights rewritten by less than the noise."""
    module = next(m for m in model.modules() if isinstance(m, nn.Linear))
    old = module.weight.detach().clone()
    with torch.no_grad():
        module.weight.mul_(1 + 1e-6)
    stack.callback(module.weight.data.copy_, old)
    return 1


DISHONEST: tuple[Mutation, ...] = (
    Mutation(14, "forward moved to the CPU", _moved_to_cpu),
    Mutation(15, "results cached by input shape", _cached_by_shape),
    Mutation(16, "float32 arithmetic off the device", _wide_arithmetic(torch.float32)),
    Mutation(16, "float64 arithmetic off the device", _wide_arithmetic(torch.float64)),
    Mutation(17, "tolerance, judge and loader rewritten", _judge_disarmed),
    Mutation(19, "reference copied through gc", _copies_reference),
    Mutation(20, "NaN as a wildcard", _nan_output),
    Mutation(20, "constant output", _constant_output),
    Mutation(21, "weights changed", _changed_weights),
)
"""A dishonest run. Number 18 needs the inputs it shall know: `special_casing`."""
