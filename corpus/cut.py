"""Make a model small enough to be judged here without changing what is judged: fewer tokens, fewer equal layers.

A model of twenty-eight equal layers fails or passes as its first two do. So depth is cut to the *distinct*
layers: one of each kind that the model has, at least two in all where they fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from hf_adapters.corpus.architectures import on_meta
from hf_adapters.corpus.errors import Unbuildable

if TYPE_CHECKING:
    from torch import nn
    from transformers import PretrainedConfig, PreTrainedModel

SMALL_VOCABULARY = 2048
_FEW_LAYERS = 2
#: Attributes that number a layer; they make no two layers different in kind.
_NUMBERS = frozenset({"layer_idx", "layer_id", "layer_index", "layer_number", "idx"})

Depth = Literal["all", "distinct", "full"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A config that fits, and what was taken away to make it fit.

    `changes` maps a config field to its value before and after; `layers` are the indices of the layers of
    the whole model that were kept (None: all).
    """

    config: PretrainedConfig
    elements: int
    depth: Depth
    changes: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    layers: tuple[int, ...] | None = None


def fit(model_class: type[PreTrainedModel], config: PretrainedConfig, max_elements: int | None) -> Cut:
    """Cut a config until its model has at most `max_elements` parameter elements, as far as that is possible.

    The vocabulary goes first, because no verdict depends on it; depth goes next. Width is never touched, so a
    model of very wide layers may stay above the limit.

    Args:
        model_class: class that is to be built.
        config: its config; not modified.
        max_elements: limit for distinct parameter elements; None means that nothing is cut.

    Raises:
        Unbuildable: the class refuses the config.
    """
    whole = on_meta(model_class, config)
    elements = _count(whole)
    if max_elements is None or elements <= max_elements:
        return Cut(config=deepcopy(config), elements=elements, depth="all")
    fewer_tokens = deepcopy(config)
    changes = cut_vocabulary(fewer_tokens, SMALL_VOCABULARY)
    smaller = _count(on_meta(model_class, fewer_tokens)) if changes else elements
    if smaller <= max_elements:
        return Cut(config=fewer_tokens, elements=smaller, depth="all", changes=changes)
    stack = layer_stack(whole)
    depth = getattr(config, "num_hidden_layers", None)
    if stack is None or depth is None:
        return Cut(config=fewer_tokens, elements=smaller, depth="all", changes=changes)
    kinds = [layer_kind(layer) for layer in stack]
    for few in (_FEW_LAYERS, 1):
        kept = distinct_layers(kinds, few) if len(kinds) == depth else tuple(range(min(few, depth)))
        if len(kept) >= depth:
            return Cut(config=fewer_tokens, elements=smaller, depth="all", changes=changes)
        shallow, kept = _shallow(model_class, fewer_tokens, kept, depth, kinds)
        size = _count(on_meta(model_class, shallow))
        if size <= max_elements:
            break
    changes = {**changes, "num_hidden_layers": (depth, len(kept))}
    return Cut(config=shallow, elements=size, depth="distinct", changes=changes, layers=kept)


def cut_vocabulary(config: PretrainedConfig, size: int) -> dict[str, tuple[Any, Any]]:
    """Lower `vocab_size` in place, moving special token ids below it; what changed."""
    before = getattr(config, "vocab_size", None)
    if before is None or before <= size:
        return {}
    changes: dict[str, tuple[Any, Any]] = {"vocab_size": (before, size)}
    config.vocab_size = size
    # Distinct ids stay distinct, from the top of the small vocabulary downwards.
    moved: dict[int, int] = {}
    for name in sorted(vars(config)):
        value = getattr(config, name)
        if name.endswith("_token_id") and isinstance(value, int) and value >= size:
            target = moved.setdefault(value, size - 1 - len(moved))
            setattr(config, name, target)
            changes[name] = (value, target)
    return changes


def layer_stack(model: nn.Module) -> Sequence[nn.Module] | None:
    """The model's repeated layers: its longest module list, the outermost one among equals."""
    from torch import nn

    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    longest = max(lists, key=lambda found: len(found), default=None)
    return list(longest) if longest is not None else None


def layer_path(model: nn.Module) -> str | None:
    """Path of the list that `layer_stack` returns."""
    stack = layer_stack(model)
    if not stack:
        return None
    lists = ((path, list(module.children())) for path, module in model.named_modules())
    found: str = next(path for path, children in lists if children == list(stack))
    return found


def one_of_each_kind(
    model_class: type[PreTrainedModel], config: PretrainedConfig
) -> tuple[PretrainedConfig, tuple[int, ...]] | None:
    """The config with one layer of each kind, and for each layer of the whole model which of them is of its kind.

    None for a model without a list of layers that its config counts.

    Raises:
        Unbuildable: the class refuses either config.
    """
    stack, depth = layer_stack(on_meta(model_class, config)), getattr(config, "num_hidden_layers", None)
    if not stack or depth != len(stack):
        return None
    kinds = [layer_kind(layer) for layer in stack]
    shallow, _ = _shallow(model_class, config, distinct_layers(kinds, 1), depth, kinds)
    held = [layer_kind(layer) for layer in layer_stack(on_meta(model_class, shallow)) or ()]
    return shallow, tuple(held.index(kind) for kind in kinds)


def layer_kind(layer: nn.Module) -> tuple[Any, ...]:
    """What makes a layer different from another one: classes, shapes and plain settings, but not its number."""
    parts: list[Any] = []
    for name, module in layer.named_modules():
        settings = tuple(
            (key, value)
            for key, value in sorted(vars(module).items())
            if not key.startswith("_")
            and key not in _NUMBERS
            and key != "training"
            and isinstance(value, (bool, int, float, str, type(None)))
        )
        shapes = tuple((key, tuple(value.shape)) for key, value in module.named_parameters(recurse=False))
        parts.append((name, type(module).__qualname__, settings, shapes))
    return tuple(parts)


def distinct_layers(kinds: Sequence[Any], at_least: int) -> tuple[int, ...]:
    """Index of the first layer of each kind, filled up with the first others to `at_least`."""
    first: dict[Any, int] = {}
    for index, kind in enumerate(kinds):
        first.setdefault(kind, index)
    kept = set(first.values())
    for index in range(len(kinds)):
        if len(kept) >= at_least:
            break
        kept.add(index)
    return tuple(sorted(kept))


def _shallow(
    model_class: type[PreTrainedModel],
    config: PretrainedConfig,
    kept: tuple[int, ...],
    depth: int,
    kinds: Sequence[Any],
) -> tuple[PretrainedConfig, tuple[int, ...]]:
    wanted = {kinds[index] for index in kept} if len(kinds) == depth else None
    prefix = tuple(range(max(kept) + 1))
    for layers in (kept, prefix):
        shallow = _keep_layers(config, layers, depth)
        try:
            stack = layer_stack(on_meta(model_class, shallow))
        except Unbuildable:
            continue
        if wanted is None or (stack is not None and {layer_kind(layer) for layer in stack} == wanted):
            return shallow, layers
    raise Unbuildable(f"{model_class.__name__} cannot be cut to its layers {kept} of {depth}")


def _keep_layers(config: PretrainedConfig, layers: tuple[int, ...], depth: int) -> PretrainedConfig:
    shallow = deepcopy(config)
    # The name may be an alias (`n_layer`); the config class maps it.
    shallow.num_hidden_layers = len(layers)
    for name, value in list(vars(shallow).items()):
        if isinstance(value, (list, tuple)) and len(value) == depth:
            setattr(shallow, name, type(value)(value[index] for index in layers))
    return shallow


def _count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
