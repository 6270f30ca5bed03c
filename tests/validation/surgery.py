"""Reversible changes of a model, and where to make them; used by the mutation and the honest suite."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

NORM_EPS = ("eps", "variance_epsilon", "epsilon")


def activations(model: nn.Module) -> list[tuple[nn.Module, str, nn.Module]]:
    """(parent, attribute, module) of every activation that bends between -3 and 3 like gelu or silu."""
    found = []
    for parent in model.modules():
        for name, child in parent.named_children():
            plain = next(child.parameters(), None) is None and next(child.children(), None) is None
            if plain and _is_smooth_activation(child):
                found.append((parent, name, child))
    return found


def _is_smooth_activation(module: nn.Module) -> bool:
    x = torch.tensor([[-3.0, 0.0, 3.0]])
    try:
        y = module(x)
    except Exception:
        return False
    if not isinstance(y, torch.Tensor) or y.shape != x.shape:
        return False
    low, middle, high = (float(value) for value in y[0])
    return abs(low) < 0.2 and middle == 0.0 and 2.8 < high != 3.0


def attentions(model: nn.Module) -> list[nn.Module]:
    """Modules that compute attention: those with a scaling and a projection of their own."""
    return [
        m
        for m in model.modules()
        if "attention" in type(m).__name__.lower()
        and any(hasattr(m, n) for n in ("scaling", "scale", "attention_scale"))
    ]


def output_projections(model: nn.Module) -> list[tuple[nn.Module, int]]:
    """(module, head size) of the projection behind each attention's heads."""
    config = model.config
    heads = getattr(config, "num_attention_heads", None) or config.n_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    ends = ("attention.output.dense", "self_attn.o_proj", "attention.out_lin", "attn.Wo", "attn.c_proj")
    return [(module, size) for name, module in model.named_modules() if name.endswith(ends)]


def position_tables(model: nn.Module) -> list[nn.Module]:
    """Learned position embeddings."""
    return [
        m
        for n, m in model.named_modules()
        if isinstance(m, nn.Embedding) and n.rpartition(".")[2] in ("position_embeddings", "wpe")
    ]


def rotaries(model: nn.Module) -> list[nn.Module]:
    """Modules that make rotary tables."""
    return [m for n, m in model.named_modules() if n.rpartition(".")[2] == "rotary_emb"]


def norms(model: nn.Module) -> list[tuple[nn.Module, str]]:
    """(module, name of its eps) of every normalisation."""
    found = [
        (m, n)
        for m in model.modules()
        for n in NORM_EPS
        if "norm" in type(m).__name__.lower() and isinstance(getattr(m, n, None), float)
    ]
    return found


def feed_forward_linears(model: nn.Module) -> list[Any]:
    """First linear map of every feed-forward block."""
    ends = (
        "intermediate.dense", "mlp.gate_proj", "ffn.lin1", "mlp.Wi", "mlp.c_fc", "mlp.gated_layers",
        "mlp.up_gated_layer", "mlp.fc1",
    )  # fmt: skip
    return [module for name, module in model.named_modules() if name.endswith(ends)]


@contextmanager
def replaced_child(parent: nn.Module, name: str, child: nn.Module) -> Iterator[None]:
    """Put another module in a child's place."""
    old = parent._modules[name]
    parent._modules[name] = child.eval()
    try:
        yield
    finally:
        parent._modules[name] = old


@contextmanager
def replaced_attribute(module: nn.Module, name: str, value: Any) -> Iterator[None]:
    """Give a plain attribute another value."""
    old = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, old)


@contextmanager
def with_hook(module: nn.Module, hook: Callable[..., Any]) -> Iterator[None]:
    """Change what a module returns."""
    handle = module.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def with_pre_hook(module: nn.Module, hook: Callable[..., Any], *, with_kwargs: bool = False) -> Iterator[None]:
    """Change what a module is given."""
    handle = module.register_forward_pre_hook(hook, with_kwargs=with_kwargs)
    try:
        yield
    finally:
        handle.remove()
