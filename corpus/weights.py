"""Seeded random weights under which a wrong forward is visible.

Drawn at the usual initializer range of 0.02, a model answers almost the same with a head zeroed or a mask
ignored; at 0.1 it does not. Norms, biases and embeddings get values as trained models have them, and attention
scores stay in the range in which a softmax still mixes.

Every parameter has its own generator, seeded from the signature and its name: the first layers of a model have
the same weights whether it is built whole or cut.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

if TYPE_CHECKING:
    from transformers import PreTrainedModel

RANGE = 0.1
#: Standard deviation of attention scores above which a softmax is little more than an argmax.
SCORE_LIMIT = 12.0
#: Scores below this are masked positions.
_MASKED = -1e4
_QUERY_NAMES = ("q_proj", "query", "q_lin", "q", "query_proj", "wq")


def draw_weights(model: nn.Module, signature: str, seed: int) -> None:
    """Fill every parameter of a float32 CPU model in place.

    Args:
        model: freshly constructed; its parameters may be uninitialised memory, its buffers must be right.
        signature: structural signature that the values depend on.
        seed: another seed gives other values.
    """
    filled: set[int] = set()
    centres: dict[type, float] = {}
    with torch.no_grad():
        for path, module in model.named_modules():
            is_norm = is_norm_module(module)
            for name, parameter in module.named_parameters(recurse=False):
                if id(parameter) in filled:
                    continue
                filled.add(id(parameter))
                full_name = f"{path}.{name}" if path else name
                centre = 0.0
                if is_norm and name == "weight":
                    centre = centres.setdefault(type(module), norm_centre(module))
                draw_parameter(parameter, centre, generator_of(signature, seed, full_name))
            padding = getattr(module, "padding_idx", None)
            if isinstance(module, nn.Embedding) and padding is not None:
                module.weight[padding].zero_()


def calm_attention(model: PreTrainedModel, inputs: Mapping[str, Tensor]) -> dict[str, float]:
    """Shrink query weights of attentions whose scores spread so far that softmax picks a single token.

    Wide models and those that do not divide scores by the square root of the head size need this. Scores are
    measured in one forward; factors are powers of two, so that rounding cannot change them.

    Args:
        model: with its weights drawn.
        inputs: arguments of its forward.

    Returns:
        Factor for each attention module that was changed, by its path.
    """
    spreads = _measure_scores(model, inputs)
    factors: dict[str, float] = {}
    for path, spread in spreads.items():
        if not math.isfinite(spread) or spread <= SCORE_LIMIT:
            continue
        query = query_of(model, path)
        if query is None:
            continue
        factors[path] = calming_factor(spread)
        with torch.no_grad():
            for parameter in query.parameters(recurse=False):
                parameter.mul_(factors[path])
    return factors


def calming_factor(spread: float) -> float:
    """The power of two that brings scores of this standard deviation below the limit."""
    return float(2.0 ** -math.ceil(math.log2(spread / SCORE_LIMIT)))


def draw_parameter(parameter: Tensor, centre: float, generator: torch.Generator) -> None:
    """Fill one parameter in place."""
    if parameter.ndim == 0:
        # Temperatures and gates: one is neutral, and the constructor's value is unknown here.
        parameter.fill_(1.0)
        return
    parameter.normal_(centre, RANGE, generator=generator)


def generator_of(signature: str, seed: int, name: str) -> torch.Generator:
    """The generator of one parameter, by its full name."""
    digest = hashlib.sha256(f"{signature}/{seed}/{name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def is_norm_module(module: nn.Module) -> bool:
    """Whether its weight is that of a normalisation."""
    weight = getattr(module, "weight", None)
    return "norm" in type(module).__name__.lower() and isinstance(weight, Tensor) and weight.ndim == 1


def norm_centre(module: nn.Module) -> float:
    """One for norms that multiply by the weight, zero for those that multiply by one plus the weight."""
    probe = deepcopy(module)
    with torch.no_grad():
        for parameter in probe.parameters():
            parameter.zero_()
        try:
            answer = probe(torch.linspace(-1.0, 1.0, probe.weight.numel()).unsqueeze(0))  # type: ignore[operator]
        except (TypeError, RuntimeError, IndexError):
            return 1.0  # a norm of another call signature: the usual kind
    return 1.0 if not bool(answer.any()) else 0.0


class ScoreRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the spread of every softmax input under the module that is running."""

    def __init__(self, running: list[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.running = running
        self.spreads: dict[str, float] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func.overloadpacket is torch.ops.aten._softmax and self.running:
            scores = args[0].detach().float()
            kept = scores[scores > _MASKED]
            if kept.numel() > 1:
                path = self.running[-1]
                self.spreads[path] = max(self.spreads.get(path, 0.0), float(kept.std()))
        return func(*args, **(kwargs or {}))


def _measure_scores(model: PreTrainedModel, inputs: Mapping[str, Tensor]) -> dict[str, float]:
    running: list[str] = []
    recorder = ScoreRecorder(running)
    with eager_attention(model), tracked(model, running), torch.no_grad(), recorder:
        model(**inputs)
    return recorder.spreads


@contextmanager
def tracked(model: nn.Module, running: list[str]) -> Iterator[None]:
    """Keep the path of the innermost running module at the end of a list."""

    def enter(path: str) -> Callable[..., None]:
        return lambda *_: running.append(path)

    def leave(*_: Any) -> None:
        running.pop()

    handles = []
    for path, module in model.named_modules():
        handles.append(module.register_forward_pre_hook(enter(path)))
        handles.append(module.register_forward_hook(leave))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def eager_attention(model: PreTrainedModel) -> Iterator[None]:
    """Attention spelt out, where the model has such a form, so that its softmax can be seen."""
    config = model.config
    before = config._attn_implementation
    try:
        config._attn_implementation = "eager"
        yield
    finally:
        config._attn_implementation = before


def query_of(model: nn.Module, path: str) -> nn.Module | None:
    """The query projection next to where a softmax ran: a child of that module or of the one above it."""
    while path:
        module = model.get_submodule(path)
        for name, child in module.named_children():
            if name.lower() in _QUERY_NAMES and isinstance(getattr(child, "weight", None), Tensor):
                return child
        path = path.rpartition(".")[0]
        if isinstance(model.get_submodule(path), nn.ModuleList):
            return None
    return None
