"""Relative position biases that a layer looks up for itself (T5), looked up on the host before the layer."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hf_adapters.adapters import _probe
from hf_adapters.protocols import PatcherProtocol, Site


class UnboundedBlock(nn.Module):
    """Mixin for encoder blocks of two sub-layers that bound their states in float16.

    The device holds values up to 8.57e9 in 16 bits (D1.5), so nothing has to be bounded, and ``isinf`` has no kernel
    (D5.2).
    """

    keeps_signature = True
    layer: nn.ModuleList

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        position_bias: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        encoder_decoder_position_bias: Tensor | None = None,
        cache: Any = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor, None]:
        """As the stock block does in dtypes that it does not bound: self-attention, then feed-forward."""
        attend, feed = self.layer[0], self.layer[1]
        states, bias, _ = attend(
            hidden_states, attention_mask=attention_mask, position_bias=position_bias, cache=cache, **kwargs
        )
        return feed(states), bias, None


class HostBias(nn.Module):
    """Mixin for layers of a stack: makes the bias before the forward of the layer, which may be compiled.

    Attributes:
        bias_from: path of the attention below the layer that holds the table.
    """

    bias_from: str

    def __call__(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        position_bias: Tensor | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """As stock; ``position_bias`` is ``[1, heads, tokens, tokens]``."""
        if position_bias is None and kwargs.get("cache") is None:
            position_bias = host_bias(self.get_submodule(self.bias_from), hidden_states)
        return super().__call__(hidden_states, attention_mask, position_bias, *args, **kwargs)


def host_bias(attention: Any, states: Tensor) -> Tensor:
    """The bias of an attention module, ``[1, heads, tokens, tokens]`` in the dtype of its table.

    Args:
        attention: has ``relative_attention_bias``, a bucket rule and its options.
        states: ``[batch, tokens, hidden]``; only its length and device matter.
    """
    steps = torch.arange(states.shape[1])
    buckets = attention._relative_position_bucket(
        steps[None, :] - steps[:, None],
        bidirectional=not attention.is_decoder,
        num_buckets=attention.relative_attention_num_buckets,
        max_distance=attention.relative_attention_max_distance,
    )
    table = attention.relative_attention_bias.weight
    values = F.embedding(buckets, table.detach().cpu())
    return values.permute(2, 0, 1)[None].contiguous().to(table.dtype).to(states.device)


def _proven(attention: Any) -> bool:
    """The bias equals what the stock module computes."""
    table = getattr(attention, "relative_attention_bias", None)
    if not isinstance(table, nn.Embedding):
        return False
    states = torch.empty(1, 70, 1, device=table.weight.device)
    with torch.no_grad():
        return _probe.same(host_bias(attention, states), attention.compute_bias(70, 70))


def bias_sites(model: nn.Module) -> list[Site]:
    """Encoder layers that bound their states in float16, or look up a position bias."""
    found = []
    for path, module in model.named_modules():
        if _bounds(module):
            found.append(Site(path=path, kind="bound", before="bounds float16 states", after="states kept as they are"))
        if isinstance(module, HostBias) or hasattr(type(module), "compute_bias"):
            continue
        holders = _bias_holders(module)
        fits = _parameters(module)[:3] == ("hidden_states", "attention_mask", "position_bias")
        if fits and len(holders) == 1 and _is_repeated_layer(module) and _proven(module.get_submodule(holders[0])):
            before, after = "position buckets in the layer", "bias made on the host"
            found.append(Site(path=path, kind="layer bias", before=before, after=after, meta={"from": holders[0]}))
    return found


def _bounds(module: nn.Module) -> bool:
    """An encoder block of self-attention and feed-forward that bounds its states in float16."""
    layers = getattr(module, "layer", None)
    two = isinstance(layers, nn.ModuleList) and len(layers) == 2 and not getattr(module, "is_decoder", True)
    handed_down = _parameters(module)[:3] == ("hidden_states", "attention_mask", "position_bias")
    return two and handed_down and {"isinf", "float16", "clamp"} <= _probe.code_names(type(module).forward)


def _bias_holders(module: nn.Module) -> list[str]:
    return [
        path
        for path, child in module.named_modules()
        if path and hasattr(type(child), "compute_bias") and getattr(child, "has_relative_attention_bias", False)
    ]


def _is_repeated_layer(module: nn.Module) -> bool:
    """A layer of the stack, made of a list of sub-layers; its sub-layers have the bias handed down to them."""
    return any(isinstance(child, nn.ModuleList) for child in module.children())


def _parameters(module: nn.Module) -> tuple[str, ...]:
    return tuple(p for p in inspect.signature(type(module).forward).parameters if p != "self")


def apply_bias(patcher: PatcherProtocol, model: nn.Module, site: Site) -> None:
    """Changes one site of :func:`bias_sites`."""
    module = model.get_submodule(site.path)
    if site.kind == "bound":
        patcher.swap_class(module, UnboundedBlock)
    else:
        patcher.swap_class(module, HostBias, bias_from=site.meta["from"])
