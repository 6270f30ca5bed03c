"""Attention over a sliding window with a few global tokens (Longformer, BigBird), as dense attention under a mask.

The stock layer lays overlapping chunks of keys beside each other and skews them, with views that cut sticks, flips
along the stick and boolean indexing (D5.4, D6.11). A matrix of all scores with the window in its mask is the same sum.
BigBird's windows, in blocks, are in ``_block_attention.py``.
"""

from __future__ import annotations

import functools
import math
import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hf_adapters._classes import split_class
from hf_adapters.adapters import _attention, _probe
from hf_adapters.adapters._block_attention import HostBlockMasks, HostBlocks, MaskedBlocks, looks_blocks_up
from hf_adapters.adapters._sticks import is_whole
from hf_adapters.protocols import Adapter, Example, PatcherProtocol, Site


@dataclass(frozen=True)
class Window:
    """What the layers of one call need to know about the tokens; every mask in the dtype of the states.

    Attributes:
        local: additive ``[batch, 1, tokens, tokens]``: window and global keys, without padding.
        keys: additive ``[batch, 1, 1, tokens]``: everything but padding, for global queries; None without any.
        real: ``[batch, tokens, 1]``, one at real tokens.
        chosen: ``[batch, tokens, 1]``, one at global tokens; None without any.
    """

    local: Tensor
    keys: Tensor | None
    real: Tensor
    chosen: Tensor | None


class HostWindows(nn.Module):
    """Mixin for the encoder: makes the masks of all layers on the host, before the first one."""

    layer: nn.ModuleList

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor,
        padding_len: int = 0,
        output_attentions: bool = False,
        output_hidden_states: bool = False,
        return_dict: bool = True,
    ) -> Any:
        """As stock: ``attention_mask`` is ``[batch, tokens]``, negative at padding and positive at global tokens.

        Raises:
            NotImplementedError: attention weights were asked for; the stock ones are laid out by window.
        """
        if output_attentions:
            raise NotImplementedError("attention weights by window are not available, compute them on the stock model")
        length = hidden_states.shape[1] - padding_len
        masks = attention_mask.detach().float().cpu()
        windows: dict[int, Window] = {}
        kept: tuple[Tensor, ...] = (hidden_states[:, :length],)
        layers: Any = self.layer
        for layer in layers:
            width: int = layer.attention.self.one_sided_attn_window_size
            if width not in windows:
                windows[width] = window(masks, width, hidden_states)
            hidden_states = layer(hidden_states, attention_mask=windows[width])[0]
            kept = (*kept, hidden_states[:, :length])
        states = kept if output_hidden_states else None
        if not return_dict:
            return tuple(value for value in (kept[-1], states) if value is not None)
        return _output_class(type(self))(last_hidden_state=kept[-1], hidden_states=states)


def _output_class(kind: type, name: str = "LongformerBaseModelOutput") -> Any:
    return vars(sys.modules[split_class(kind)[0].__module__])[name]


class HostTokenKinds(nn.Module):
    """Mixin for the model: padding and global tokens are told apart on the host.

    The stock model multiplies the caller's two integer masks, which the device cannot cast (D1.6), makes an additive
    mask of the product and looks in it for what is global.
    """

    keeps_signature = True
    embeddings: nn.Module
    encoder: nn.Module
    pooler: nn.Module | None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As stock.

        Raises:
            ValueError: neither or both of ``input_ids`` and ``inputs_embeds`` are given, as in the stock model.
        """
        given = _probe.bound_arguments(self, args, kwargs)
        ids, states = given.get("input_ids"), given.get("inputs_embeds")
        if (ids is None) == (states is None):
            raise ValueError("You must specify exactly one of input_ids or inputs_embeds")
        like: Any = states if ids is None else ids
        shape = like.shape[:2]
        real = _on_host(given.get("attention_mask"), shape, 1.0)
        # The stock model multiplies both masks, so that padding is never global; two stands for global already.
        merged = real * (_on_host(given.get("global_attention_mask"), shape, 0.0) + 1.0)
        types = given.get("token_type_ids")
        model: Any = self
        added, ids, merged, types, positions, states = model._pad_to_window_size(
            input_ids=ids,
            attention_mask=merged,
            token_type_ids=torch.zeros(shape, dtype=torch.long, device=like.device) if types is None else types,
            position_ids=given.get("position_ids"),
            inputs_embeds=states,
            pad_token_id=model.config.pad_token_id,
        )
        output = self.encoder(
            self.embeddings(input_ids=ids, position_ids=positions, token_type_ids=types, inputs_embeds=states),
            attention_mask=torch.where(merged == 0, -1.0, torch.where(merged == 2, 1.0, 0.0)),
            padding_len=added,
            output_attentions=bool(given.get("output_attentions")),
            output_hidden_states=_asked(self, given, "output_hidden_states"),
        )
        pooled = None if self.pooler is None else self.pooler(output.last_hidden_state)
        made = _output_class(type(self), "LongformerBaseModelOutputWithPooling")(
            last_hidden_state=output.last_hidden_state, pooler_output=pooled, hidden_states=output.hidden_states
        )
        return made if _asked(self, given, "return_dict") else made.to_tuple()


def _on_host(mask: Tensor | None, shape: torch.Size, otherwise: float) -> Tensor:
    return torch.full(shape, otherwise) if mask is None else mask.detach().float().cpu()


def _asked(model: Any, given: dict[str, Any], name: str) -> bool:
    """An option of a call; the config's where the call does not say."""
    found = given.get(name)
    return bool(getattr(model.config, name) if found is None else found)


def window(masks: Tensor, width: int, like: Tensor) -> Window:
    """The masks for one width.

    Args:
        masks: host tensor ``[batch, tokens]``, negative at padding and positive at global tokens.
        width: keys on either side that a token sees.
        like: decides dtype and device.
    """
    real, chosen = masks >= 0, masks > 0
    steps = torch.arange(masks.shape[1])
    near = (steps[:, None] - steps[None, :]).abs() <= width
    visible = (near[None] | chosen[:, None, :]) & real[:, None, :]
    any_chosen = bool(chosen.any())
    place = functools.partial(torch.Tensor.to, device=like.device)
    return Window(
        local=place(_attention.additive(visible[:, None], like.dtype).contiguous()),
        keys=place(_attention.additive(real[:, None, None, :], like.dtype).contiguous()) if any_chosen else None,
        real=place(real[..., None].to(like.dtype)),
        chosen=place(chosen[..., None].to(like.dtype)) if any_chosen else None,
    )


class MaskedWindow(nn.Module):
    """Mixin for the self-attention of a layer."""

    num_heads: int
    head_dim: int

    def forward(self, hidden_states: Tensor, attention_mask: Window, *args: Any, **kwargs: Any) -> tuple[Tensor]:
        """``[batch, tokens, hidden]`` -> the same; padding attends to nothing, as in the stock layer."""
        module: Any = self
        output = self._attend(hidden_states, module.query, module.key, module.value, attention_mask.local)
        output = output * attention_mask.real
        if attention_mask.chosen is not None:
            projections = (module.query_global, module.key_global, module.value_global)
            everywhere = self._attend(hidden_states, *projections, attention_mask.keys)
            output = output + (everywhere - output) * attention_mask.chosen
        return (output,)

    def _attend(
        self, states: Tensor, query: nn.Module, key: nn.Module, value: nn.Module, mask: Tensor | None
    ) -> Tensor:
        split = (*states.shape[:2], self.num_heads, self.head_dim)
        q, k, v = (part(states).view(split).transpose(1, 2) for part in (query, key, value))
        mixed, _ = _attention.attend(q, k, v, mask, 1.0 / math.sqrt(self.head_dim))
        return mixed.transpose(1, 2).contiguous().view(states.shape)


def _sites(model: nn.Module) -> list[Site]:
    return [*_window_sites(model), *_block_sites(model)]


def _block_sites(model: nn.Module) -> list[Site]:
    found = []
    layers = {path: m for path, m in model.named_modules() if looks_blocks_up(m) and is_whole(m.attention_head_size)}
    for path in layers:
        found.append(Site(path=path, kind="blocks", before="blocks of keys by index", after="dense, under a mask"))
    for encoder in sorted({path.rpartition(".layer.")[0] for path in layers}):
        outer = encoder.rpartition(".")[0]
        found.append(
            Site(path=outer, kind="block tokens", before="products of blocked masks", after="made on the host")
        )
        after = "mask of all layers made on the host"
        found.append(Site(path=encoder, kind="block masks", before="masks by block", after=after))
    return found


def _window_sites(model: nn.Module) -> list[Site]:
    found = []
    for path, module in model.named_modules():
        layers = getattr(module, "layer", None)
        if not isinstance(layers, nn.ModuleList) or isinstance(module, HostWindows):
            continue
        inner = [getattr(getattr(layer, "attention", None), "self", None) for layer in layers]
        if not inner or not all(_windowed(part) for part in inner):
            continue
        after = "masks of all layers made on the host"
        outer = model.get_submodule(path.rpartition(".")[0])
        if hasattr(outer, "_merge_to_attention_mask") and not isinstance(outer, HostTokenKinds):
            before = "mask written where tokens are global"
            found.append(Site(path=path.rpartition(".")[0], kind="tokens", before=before, after="made on the host"))
        found.append(Site(path=path, kind="windows", before="masks by chunk", after=after))
        for index in range(len(layers)):
            where = f"{path}.layer.{index}.attention.self".lstrip(".")
            found.append(Site(path=where, kind="attention", before="sliding chunks", after="dense, under a mask"))
    return found


def _windowed(module: Any) -> bool:
    names = {"query_global", "key_global", "value_global", "one_sided_attn_window_size", "head_dim"}
    known = isinstance(module, nn.Module) and names <= set(dir(module))
    width: Any = module.head_dim if known else 0
    return known and is_whole(width)


def _apply(patcher: PatcherProtocol, model: nn.Module, site: Site) -> None:
    patcher.swap_class(model.get_submodule(site.path), _MIXINS[site.kind])


_MIXINS: dict[str, type[nn.Module]] = {
    "tokens": HostTokenKinds,
    "windows": HostWindows,
    "attention": MaskedWindow,
    "block tokens": HostBlocks,
    "block masks": HostBlockMasks,
    "blocks": MaskedBlocks,
}


def _longformer() -> nn.Module:
    from transformers import LongformerConfig, LongformerModel

    torch.manual_seed(6)
    config = LongformerConfig(
        vocab_size=40, hidden_size=128, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        initializer_range=0.1, max_position_embeddings=60, attention_window=[8, 4], pad_token_id=1,
    )  # fmt: skip
    model: nn.Module = LongformerModel(config)
    return model.double().eval()


def _big_bird() -> nn.Module:
    from transformers import BigBirdConfig, BigBirdModel

    torch.manual_seed(6)
    config = BigBirdConfig(
        vocab_size=40, hidden_size=128, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        initializer_range=0.1, max_position_embeddings=60, block_size=2, num_random_blocks=2,
    )  # fmt: skip
    model: nn.Module = BigBirdModel(config)
    return model.double().eval()


def _inputs(chosen: tuple[int, ...]) -> dict[str, Any]:
    ids = torch.randint(3, 40, (2, 27), generator=torch.Generator().manual_seed(1))
    mask = (torch.arange(27)[None, :] < torch.tensor([[27], [14]])).long()
    global_mask = torch.zeros_like(ids)
    global_mask[0, list(chosen)] = 1
    given = {"global_attention_mask": global_mask} if chosen else {}
    return {"input_ids": ids.where(mask.bool(), torch.tensor(1)), "attention_mask": mask, **given}


def _examples() -> list[Example]:
    return [
        Example("windows", _longformer, functools.partial(_inputs, ()), widened=True),
        Example("global_tokens", _longformer, functools.partial(_inputs, (0, 5, 20)), widened=True),
        Example("blocks", _big_bird, functools.partial(_inputs, ()), widened=True),
    ]


ADAPTER = Adapter(
    name="window_attention",
    summary="Sliding windows, by tokens or blocks, and global tokens as dense attention under a mask.",
    rules=("view-stick-split", "indirect-access", "dynamic-shape", "dtype-cast"),
    equivalence="reassociated",
    sites=_sites,
    apply=_apply,
    examples=_examples,
    architectures=("longformer", "big_bird"),
    order=9,
)
