"""Half (a) of acceptance: each replaced module against the stock one, in float64, on recorded activations and on the
tails of its input range.

A whole-model comparison only sees the values that a few sentences produce; a wrong clamp or a wrong branch hides
outside them. So each patched module is called again with its recorded arguments, its activations scaled, negated,
zeroed and spread over the range where activation functions bend. Arguments other than the activations stay what each
side itself received: an adapter may well pass masks or rotary tables in another form. Where a module's own contract
changed (a rotary module that returns matrices), its results cannot be compared, and the nearest enclosing module that
keeps its contract is compared instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hf_adapters.validation import metrics
from hf_adapters.validation.float64 import in_float64
from hf_adapters.validation.inputs import InputSet
from hf_adapters.validation.recording import repeated_layers
from hf_adapters.validation.types import Check, Thresholds

Patch = Callable[[nn.Module], AbstractContextManager[nn.Module]]

NAME = "module equivalence"
MIXED_GAIN = 16.0
"""Largest scaling for modules that mix positions or features: softmax turns absolute into relative error, so larger
scores leave float64's precision."""
POINTWISE_GAIN = 1e4
CANCELLED = 1e-6
"""A difference of numbers near 1 is exact to 1e-16, so a result below 1e-6 has less than ten digits left."""


@dataclass(frozen=True, slots=True)
class Call:
    """Arguments of one call of a module, as recorded."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @classmethod
    def of(cls, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call:
        """A call that can be repeated: without its key-value cache, which grows with each call."""
        return cls(tuple(map(_uncached, args)), {name: _uncached(value) for name, value in kwargs.items()})

    def activation(self) -> Tensor | None:
        """The first floating argument, which is the hidden states in every transformers module."""
        for value in (*self.args, *self.kwargs.values()):
            if isinstance(value, Tensor) and value.is_floating_point() and value.dim() >= 2:
                return value
        return None

    def with_activation(self, value: Tensor) -> Call:
        """The same call with the activation replaced."""
        old = self.activation()
        swap: Callable[[Any], Any] = lambda item: value if item is old else item  # noqa: E731
        return Call(tuple(swap(a) for a in self.args), {k: swap(v) for k, v in self.kwargs.items()})


def _uncached(argument: Any) -> Any:
    return None if hasattr(argument, "get_seq_length") and hasattr(argument, "update") else argument


def enclosing(model: nn.Module, paths: Iterable[str]) -> list[str]:
    """`paths` and the modules around them up to the repeated layer, without repetition; further out the whole model
    is compared anyway."""
    layers = repeated_layers(model)
    found: dict[str, None] = {}
    for path in paths:
        limit = next((layer for layer in layers if path == layer or path.startswith(layer + ".")), path)
        while len(path) >= len(limit):
            found[path] = None
            path = path.rpartition(".")[0]
    return list(found)


def representatives(model: nn.Module, paths: Iterable[str]) -> list[str]:
    """One path for each kind of module: equal class and equal parameter shapes are tried once, plus once in the last
    layer."""
    modules = dict(model.named_modules())
    kinds: dict[Any, list[str]] = {}
    for path in paths:
        if path in modules:
            module = modules[path]
            kind = (
                type(module).__qualname__,
                path.rpartition(".")[2],
                tuple((n, tuple(p.shape)) for n, p in module.named_parameters()),
            )
            kinds.setdefault(kind, []).append(path)
    return list(dict.fromkeys(path for group in kinds.values() for path in (group[0], group[-1])))


def compare_sites(
    model: nn.Module, sites: Sequence[str], patch: Patch, batch: InputSet, thresholds: Thresholds
) -> list[Check]:
    """Compare patched modules with the stock ones, in float64.

    Args:
        model: stock, float32, on the CPU; patched and restored inside.
        sites: paths of the modules that adapters changed, without repetition of equal ones (`representatives`).
        patch: context manager that patches the model.
        batch: the inputs from which activations are recorded.
        thresholds: `equivalence` is the limit.

    Returns:
        One check for each module compared; a site whose contract changed up to its layer is left to the comparison of
        the whole model.
    """
    paths = enclosing(model, sites)
    with in_float64():
        stock_calls = _recorded_calls(model, paths, batch)
    with patch(model) as candidate, in_float64():
        our_calls = _recorded_calls(candidate, paths, batch)
    done: dict[str, Check] = {}
    pending = [site for site in sites if site in paths]
    while pending:
        kept = [p for p in pending if _same_inputs(stock_calls.get(p), our_calls.get(p), thresholds.equivalence)]
        with in_float64():
            expected = _all_outputs(model, kept, stock_calls, stock_calls)
        with patch(model) as candidate, in_float64():
            actual = _all_outputs(candidate, kept, our_calls, stock_calls)
        for path in kept:
            check = _check(path, actual[path], expected[path], thresholds)
            if check is not None:
                done[path] = check
        around = (path.rpartition(".")[0] for path in pending if path not in done)
        pending = [path for path in dict.fromkeys(around) if path in paths and path not in done]
    return list(done.values())


def _same_inputs(stock: Call | None, ours: Call | None, limit: float) -> bool:
    return stock is not None and ours is not None and _same(ours.activation(), stock.activation(), limit)


def _all_outputs(
    model: nn.Module, paths: Sequence[str], calls: Mapping[str, Call], activations: Mapping[str, Call]
) -> dict[str, dict[str, Tensor]]:
    modules = dict(model.named_modules())
    return {p: dict(_outputs(modules[p], calls[p], activations[p].activation())) for p in paths}


def _check(
    path: str, actual: Mapping[str, Tensor], expected: Mapping[str, Tensor], thresholds: Thresholds
) -> Check | None:
    """None when this module's contract changed, so that a module around it has to be compared."""
    if not _same(actual.get("recorded"), expected.get("recorded"), thresholds.equivalence):
        return None
    worst, where = 0.0, "recorded"
    for tail, right in expected.items():
        if not bool(right.isfinite().all()):
            continue
        got = actual.get(tail)
        error = float("inf") if got is None or got.shape != right.shape else _error(got, right)
        if not error <= worst:
            worst, where = error, tail
    return Check(
        name=NAME,
        passed=worst <= thresholds.equivalence,
        where=path,
        value=worst,
        limit=thresholds.equivalence,
        detail=f"worst on inputs: {where}",
    )


def tails(activation: Tensor, *, pointwise: bool) -> dict[str, Tensor]:
    """Variations of recorded activations (float64) that reach the ends of a module's input range.

    Args:
        activation: any shape.
        pointwise: whether the module treats every feature alone (or only normalises), so that large values stay
            comparable.
    """
    gain = POINTWISE_GAIN if pointwise else MIXED_GAIN
    ramp = torch.linspace(-30.0, 30.0, activation.numel(), dtype=activation.dtype).view(activation.shape)
    return {
        "recorded": activation,
        "large": activation * gain,
        "tiny": activation / gain,
        "negative": -activation.abs(),
        "positive": activation.abs(),
        "zero": torch.zeros_like(activation),
        "ramp": ramp if pointwise else ramp / ramp.abs().amax() * activation.abs().amax(),
        "one outlier": activation.clone().index_fill_(-1, torch.tensor([0]), float(gain)),
    }


def _outputs(module: nn.Module, call: Call, activation: Tensor | None) -> Iterator[tuple[str, Tensor]]:
    if activation is None:
        return
    pointwise = not any(parameter.dim() > 1 for parameter in module.parameters())
    for name, value in tails(activation, pointwise=pointwise).items():
        varied = call.with_activation(value)
        try:
            output = _tensor(module(*varied.args, **varied.kwargs))
        except Exception:  # a module that cannot be called alone is compared where it is called
            continue
        if output is not None:
            yield name, output.detach().to(torch.float64)


def _tensor(output: Any) -> Tensor | None:
    if isinstance(output, Tensor):
        return output if output.is_floating_point() else None
    values = output.values() if hasattr(output, "values") and not isinstance(output, Sequence) else output
    return (
        next((v for v in values or () if isinstance(v, Tensor) and v.is_floating_point()), None)
        if isinstance(values, Iterable)
        else None
    )


def _error(ours: Tensor, stock: Tensor) -> float:
    """Largest relative error of a vector. Vectors below `CANCELLED` of the largest are what cancellation left (1 +
    erf(-5)) and count in its unit."""
    a, b = metrics.vectors(ours, None).double(), metrics.vectors(stock, None).double()
    if not b.numel():
        return 0.0
    scale = b.abs().amax(-1).clamp_min(CANCELLED * float(b.abs().amax()))
    errors = (a - b).abs().amax(-1) / torch.where(scale > 0, scale, torch.ones_like(scale))
    return float(errors.nan_to_num(nan=float("inf")).amax())


def _same(ours: Tensor | None, stock: Tensor | None, limit: float) -> bool:
    return (
        ours is not None
        and stock is not None
        and ours.shape == stock.shape
        and _error(ours.double(), stock.double()) <= limit
    )


def _recorded_calls(model: nn.Module, paths: Sequence[str], batch: InputSet) -> dict[str, Call]:
    modules = dict(model.named_modules())
    calls: dict[str, Call] = {}
    with _pre_hooks({path: modules[path] for path in paths if path in modules}, calls):
        model(**{key: value.clone() for key, value in batch.kwargs.items()})
    return calls


@contextmanager
def _pre_hooks(modules: dict[str, nn.Module], calls: dict[str, Call]) -> Iterator[None]:
    def hook(path: str) -> Callable[..., None]:
        def keep(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            calls.setdefault(path, Call.of(args, kwargs))

        return keep

    handles = [module.register_forward_pre_hook(hook(path), with_kwargs=True) for path, module in modules.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
