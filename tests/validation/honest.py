"""Rewrites that are right; the validator must accept every one.

Each names the structures it applies to, so that a rewrite that silently finds nothing to do is a failing test and not
an accepted one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hf_adapters.validation.streaming import replaced_forward
from tests.validation.surgery import (
    attentions,
    feed_forward_linears,
    replaced_attribute,
    replaced_child,
    with_pre_hook,
)


@dataclass(frozen=True)
class Rewrite:
    """One right patch."""

    name: str
    structures: tuple[str, ...]
    apply: Callable[[nn.Module, ExitStack], int]
    """Registers its changes on the stack and returns how many places it changed."""

    @contextmanager
    def __call__(self, model: nn.Module) -> Iterator[nn.Module]:
        """Patch `model` inside the block."""
        with ExitStack() as stack:
            assert self.apply(model, stack), f"{self.name} finds nothing to rewrite in {type(model).__name__}"
            yield model


def _of_class(model: nn.Module, *names: str) -> list[tuple[nn.Module, str, nn.Module]]:
    return [(p, n, c) for p in model.modules() for n, c in p.named_children() if type(c).__name__ in names]


class CubedGelu(nn.Module):
    """gelu_new with x * x * x instead of pow(x, 3)."""

    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * (x * x * x))))


def _cube(model: nn.Module, stack: ExitStack) -> int:
    found = _of_class(model, "NewGELUActivation")
    for parent, name, _ in found:
        stack.enter_context(replaced_child(parent, name, CubedGelu()))
    return len(found)


def _functional_gelu(model: nn.Module, stack: ExitStack) -> int:
    found = [(p, n, c) for p, n, c in _of_class(model, "GELUActivation") if c.act is not F.gelu]
    for parent, name, _ in found:
        stack.enter_context(replaced_child(parent, name, nn.GELU()))
    return len(found)


def _squared_rms(module: Any, x: Tensor) -> Tensor:
    wide = x.to(torch.float32)
    return module.weight * (wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + module.variance_epsilon)).to(
        x.dtype
    )


def _divided_rms(module: Any, x: Tensor) -> Tensor:
    wide = x.to(torch.float32)
    return module.weight * (wide / torch.sqrt((wide * wide).mean(-1, keepdim=True) + module.variance_epsilon)).to(
        x.dtype
    )


def _rms(forward: Callable[[Any, Tensor], Tensor]) -> Callable[[nn.Module, ExitStack], int]:
    def apply(model: nn.Module, stack: ExitStack) -> int:
        found = _of_class(model, "Qwen3RMSNorm")
        for _, _, module in found:
            stack.enter_context(replaced_forward(module, partial(forward, module)))
        return len(found)

    return apply


def _two_pass_norm(module: nn.LayerNorm, x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    out = centred * torch.rsqrt((centred * centred).mean(-1, keepdim=True) + module.eps) * module.weight
    return out if module.bias is None else out + module.bias


def _written_out_norm(model: nn.Module, stack: ExitStack) -> int:
    found = [module for module in model.modules() if isinstance(module, nn.LayerNorm)]
    for module in found:
        stack.enter_context(replaced_forward(module, partial(_two_pass_norm, module)))
    return len(found)


def _padded_feed_forward(model: nn.Module, stack: ExitStack) -> int:
    """The intermediate size grows by zeros on both sides of the activation, which maps 0 to 0."""
    parents = dict(model.named_modules())
    count = 0
    for first in feed_forward_linears(model):
        path = next(name for name, module in parents.items() if module is first)
        second = parents.get(path.replace("intermediate.dense", "output.dense").replace("lin1", "lin2"))
        if isinstance(first, nn.Linear) and isinstance(second, nn.Linear) and second is not first:
            stack.enter_context(replaced_forward(first, partial(_grown, first, "out")))
            stack.enter_context(replaced_forward(second, partial(_grown, second, "in")))
            count += 1
    return count


def _grown(module: nn.Linear, side: str, x: Tensor) -> Tensor:
    weight = F.pad(module.weight, (0, 0, 0, 64) if side == "out" else (0, 64))
    return F.linear(x, weight, F.pad(module.bias, (0, 64)) if side == "out" else module.bias)


def _padded_heads(model: nn.Module, stack: ExitStack) -> int:
    """Heads of 32 become 64 by zeros; the scale stays that of 32."""
    count = 0
    for module in attentions(model):
        for name in ("query", "key", "value"):
            linear = getattr(module, name)
            stack.enter_context(replaced_forward(linear, partial(_head_padded, linear, module.num_attention_heads)))
        stack.enter_context(replaced_attribute(module, "attention_head_size", 64))
        count += 1
    for name, linear in model.named_modules():
        if name.endswith("attention.output.dense"):
            heads = model.config.num_attention_heads
            stack.enter_context(replaced_forward(linear, partial(_head_cut, linear, heads)))
    return count


def _head_padded(linear: nn.Linear, heads: int, x: Tensor) -> Tensor:
    size = linear.weight.shape[0] // heads
    weight = F.pad(linear.weight.view(heads, size, -1), (0, 0, 0, 64 - size)).flatten(0, 1)
    return F.linear(x, weight, F.pad(linear.bias.view(heads, size), (0, 64 - size)).flatten())


def _head_cut(linear: nn.Linear, heads: int, x: Tensor) -> Tensor:
    size = linear.weight.shape[1] // heads
    return F.linear(x, F.pad(linear.weight.view(-1, heads, size), (0, 64 - size)).flatten(1), linear.bias)


def _split_qkv(model: nn.Module, stack: ExitStack) -> int:
    found = [module for name, module in model.named_modules() if name.endswith("Wqkv")]
    for module in found:
        stack.enter_context(replaced_forward(module, partial(_three_products, module)))
    return len(found)


def _three_products(module: nn.Linear, x: Tensor) -> Tensor:
    biases = (None,) * 3 if module.bias is None else module.bias.chunk(3)
    return torch.cat([F.linear(x, w, b) for w, b in zip(module.weight.chunk(3), biases, strict=True)], -1)


def _finite_mask(model: nn.Module, stack: ExitStack) -> int:
    def additive(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        keep = kwargs["attention_mask"].bool()[:, None, None, :].expand(-1, 1, kwargs["attention_mask"].shape[1], -1)
        dtype = next(p.dtype for p in module.parameters())
        mask = torch.zeros(keep.shape, dtype=dtype).masked_fill(~keep, torch.finfo(torch.float16).min)
        return args, {**kwargs, "attention_mask": mask}

    stack.enter_context(with_pre_hook(model, additive, with_kwargs=True))
    return 1


def _conv1d_as_linear(model: nn.Module, stack: ExitStack) -> int:
    found = [module for module in model.modules() if type(module).__name__ == "Conv1D"]
    for module in found:
        stack.enter_context(replaced_forward(module, partial(_as_linear, module)))
    return len(found)


def _as_linear(module: Any, x: Tensor) -> Tensor:
    return F.linear(x, module.weight.t(), module.bias)


def _shifted_softmax_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    scaling = options.get("scaling") or query.shape[-1] ** -0.5
    key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
    scores = torch.matmul(query, key.transpose(-1, -2)) * scaling
    if mask is None and module.is_causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    if mask is not None:
        scores = scores + mask if mask.is_floating_point() else scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    return torch.matmul(weights / weights.sum(-1, keepdim=True), value).transpose(1, 2).contiguous(), None


def _shifted_softmax(model: nn.Module, stack: ExitStack) -> int:
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register("validation_shifted_softmax", _shifted_softmax_attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register("validation_shifted_softmax", sdpa_mask)
    stack.enter_context(replaced_attribute(model.config, "_attn_implementation", "validation_shifted_softmax"))
    return 1


def _rotary_matrices(model: nn.Module, stack: ExitStack) -> int:
    """rotate_half as a product with a constant matrix of 0, 1 and -1: the tables cos and sin stay, the slices go."""
    count = 0
    for module in (m for m in model.modules() if type(m).__name__ == "Qwen3Attention"):
        names = dict(type(module).forward.__globals__)
        names["apply_rotary_pos_emb"] = _rotate_by_matrix
        stock = type(module).forward
        forward = type(stock)(stock.__code__, names, stock.__name__, stock.__defaults__, stock.__closure__)
        forward.__kwdefaults__ = stock.__kwdefaults__
        stack.enter_context(replaced_forward(module, partial(forward, module)))
        count += 1
    return count


def _rotate_by_matrix(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *args: Any) -> tuple[Tensor, Tensor]:
    size = q.shape[-1]
    half = torch.eye(size // 2, dtype=q.dtype)
    zero = torch.zeros_like(half)
    rotation = torch.cat([torch.cat([zero, half], 1), torch.cat([-half, zero], 1)], 0)
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return q * cos + torch.matmul(q, rotation) * sin, k * cos + torch.matmul(k, rotation) * sin


HONEST: tuple[Rewrite, ...] = (
    Rewrite("pow(x, 3) as x * x * x", ("bert-gelu-new", "gpt2"), _cube),
    Rewrite("pow(x, 2).mean as (x * x).mean", ("qwen3",), _rms(_squared_rms)),
    Rewrite("x * rsqrt(v + eps) as x / sqrt(v + eps)", ("qwen3",), _rms(_divided_rms)),
    Rewrite("rotary by matrices", ("qwen3",), _rotary_matrices),
    Rewrite("heads padded with zeros", ("minilm",), _padded_heads),
    Rewrite("feed-forward padded with zeros", ("bert", "minilm", "distilbert"), _padded_feed_forward),
    Rewrite("fused QKV split", ("modernbert",), _split_qkv),
    Rewrite("finite additive mask", ("bert", "xlm-roberta"), _finite_mask),
    Rewrite("Conv1D as Linear", ("gpt2",), _conv1d_as_linear),
    Rewrite("exact gelu by F.gelu", ("bert-gelu-python",), _functional_gelu),
    Rewrite("softmax with the maximum subtracted", ("bert", "qwen3"), _shifted_softmax),
    Rewrite("LayerNorm written out in two passes", ("bert", "distilbert", "gpt2"), _written_out_norm),
)
