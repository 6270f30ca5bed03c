"""Reversible changes of a model, and where to make them; used by the mutation and the honest suite."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

NORM_EPS = ("eps", "variance_epsilon", "epsilon")
OUTPUTS = re.compile(
    r"(attention\.(output\.)?dense|(self_)?attn\.(o_proj|out_proj|dense|Wo|c_proj|o)|attention\.out_(lin|proj)"
    r"|attentions\.\d+\.out_lin|SelfAttention\.o)$"
)
QUERIES = re.compile(
    r"(attention\.(self\.)?(query|in_proj|query_proj|q_lin|query_key_value)|attn\.(q_proj|qkv_proj|c_attn|Wqkv|q)"
    r"|self_attention\.query_key_value|attn\.attention\.q_proj|attentions\.\d+\.q_lin|SelfAttention\.q)$"
)
FEED_FORWARD = re.compile(
    r"(intermediate\.dense|ffn(s\.\d+)?\.lin1|albert_layers\.\d+\.ffn|DenseReluDense\.wi|feed_forward\.w1"
    r"|mlp\.(gate_proj|gate_up_proj|Wi|c_fc|gated_layers|up_gated_layer|fc1|fc_in|dense_h_to_4h))$"
)


def activations(model: nn.Module) -> list[tuple[nn.Module, str, nn.Module]]:
    """(parent, attribute, module) of every activation that is nearly nothing at -3 and nearly all at 3 (gelu, relu)."""
    found = []
    for parent in model.modules():
        for name, child in parent.named_children():
            plain = next(child.parameters(), None) is None and next(child.children(), None) is None
            if plain and _is_activation(child):
                found.append((parent, name, child))
    return found


def _is_activation(module: nn.Module) -> bool:
    x = torch.tensor([[-3.0, 0.0, 3.0]])
    try:
        y = module(x)
    except Exception:
        return False
    if not isinstance(y, torch.Tensor) or y.shape != x.shape:
        return False
    low, middle, high = (float(value) for value in y[0])
    return abs(low) < 0.2 and middle == 0.0 and 2.8 < high <= 3.0


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
    heads = next(n for n in ("num_attention_heads", "n_heads", "num_heads", "n_head") if getattr(model.config, n, None))
    return [
        (module, (module.nx if isinstance(module, Conv1D) else module.in_features) // getattr(model.config, heads))
        for name, module in model.named_modules()
        if OUTPUTS.search(name)
    ]


def queries(model: nn.Module) -> list[nn.Module]:
    """The projection, often a fused one, that makes the queries of each attention."""
    return [module for name, module in model.named_modules() if QUERIES.search(name)]


def position_tables(model: nn.Module) -> list[nn.Module]:
    """Learned position embeddings."""
    names = ("position_embeddings", "position_embedding", "wpe")
    return [m for n, m in model.named_modules() if isinstance(m, nn.Embedding) and n.rpartition(".")[2] in names]


def relative_tables(model: nn.Module) -> list[nn.Module]:
    """Tables, learned or not, of what attention adds for the distance of two tokens, or turns them by."""
    names = ("relative_attention_bias", "embed_positions")
    return [m for n, m in model.named_modules() if isinstance(m, nn.Embedding) and n.rpartition(".")[2] in names]


def rotaries(model: nn.Module) -> list[nn.Module]:
    """Modules that make rotary tables."""
    return [m for n, m in model.named_modules() if n.rpartition(".")[2] in ("rotary_emb", "rotary_embeddings")]


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
    return [module for name, module in model.named_modules() if FEED_FORWARD.search(name)]


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
