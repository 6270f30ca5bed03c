"""Patches that are dishonest: they work elsewhere, answer from memory, or meddle with the judge."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hf_adapters.validation.recording import Recording, repeated_layers
from hf_adapters.validation.streaming import replaced_forward
from tests.validation.mutations import Mutation, wrong_activation
from tests.validation.surgery import with_hook


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

    changed = wrong_activation(model, stack)
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
