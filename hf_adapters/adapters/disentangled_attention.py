"""Attention over content and relative positions (DeBERTa), whose gathers become products with one-hot matrices.

Which row of the position table belongs to a query and a key depends on their distance only. The device cannot gather
along a stick (D5.4), so the encoder makes, on the host and once for all layers, a matrix of 0 and 1 for each query,
and the layer multiplies the scores against all rows of the table by it: every sum has one term that is not zero.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hf_adapters.adapters import _attention
from hf_adapters.adapters._sticks import HALF_DTYPES, is_whole, round_up
from hf_adapters.protocols import Adapter, Example, PatcherProtocol, Site

_FUSED, _SEPARATE = "in_proj", "query_proj"


class OneHotPositions(nn.Module):
    """Mixin for the encoder: masks become additive ones, relative positions become one-hot matrices.

    Attributes:
        span: number of rows on either side of the middle of the position table.
        buckets: number of log buckets, 0 where distances are not bucketed.
        largest: distance from which on the buckets end.
        trimmed: no more rows of the table than tokens on either side are used.
    """

    span: int
    buckets: int
    largest: int
    trimmed: bool

    def get_attention_mask(self, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        """``[batch, tokens]`` or the pairs ``[batch, tokens, tokens]`` of ones and zeros.

        Returns:
            A factor of the scores and what is added to them, both ``[batch, 1, tokens, tokens]``: where a pair is
            hidden the score itself counts for nothing, as after ``masked_fill``.
        """
        visible = attention_mask.detach().cpu() != 0
        if visible.dim() <= 2:
            visible = visible[:, None, :] & visible[:, :, None]
        visible = visible.unsqueeze(1) if visible.dim() == 3 else visible
        like = _table(self)
        keep = visible.to(like.dtype).contiguous()
        return keep.to(like.device), _attention.additive(visible, like.dtype).contiguous().to(like.device)

    def get_rel_pos(self, hidden_states: Tensor, query_states: Any = None, relative_pos: Any = None) -> Any:
        """(first row of the table that is used, one-hot matrices by query, one-hot matrices by key)."""
        rows = bucketed(hidden_states.shape[-2], self.buckets, self.largest) if relative_pos is None else relative_pos
        rows = rows.detach().cpu().long()
        rows = rows.reshape(rows.shape[-2:])
        # The first generation uses only as much of the table as there are tokens.
        reach = min(rows.shape[0], self.span) if self.trimmed else self.span
        index = torch.clamp(torch.stack([rows, -rows]) + reach, 0, 2 * reach - 1)
        like = _table(self)
        # Products sum whole sticks; rows that are added are chosen by nobody.
        matches = index[:, :, None, :] == torch.arange(round_up(2 * reach))[None, None, :, None]
        by_query, by_key = matches.to(like.dtype).to(like.device)
        return self.span - reach, by_query, by_key


def _table(encoder: Any) -> Tensor:
    table: Tensor = encoder.rel_embeddings.weight
    return table


def bucketed(tokens: int, buckets: int, largest: int) -> Tensor:
    """Distances query - key, int64 ``[tokens, tokens]``, in buckets that widen logarithmically beyond half of them."""
    steps = torch.arange(tokens)
    distance = steps[:, None] - steps[None, :]
    if buckets <= 0 or largest <= 0:
        return distance
    middle = buckets // 2
    near = torch.where((distance < middle) & (distance > -middle), torch.tensor(middle - 1), distance.abs())
    far = torch.log(near / middle) / torch.log(torch.tensor((largest - 1) / middle)) * (middle - 1)
    far = torch.ceil(far) + middle
    return torch.where(near <= middle, distance.to(far.dtype), far * torch.sign(distance)).long()


class DisentangledProducts(nn.Module):
    """Mixin for the self-attention of both generations of DeBERTa, without talking heads.

    Attributes:
        layout: ``"in_proj"`` for one projection with the heads interleaved (DeBERTa), ``"query_proj"`` for three.
        head_width: elements of a head.
        kinds: how many sorts of scores are added up.
    """

    layout: str
    head_width: int
    kinds: int
    num_attention_heads: int
    pos_att_type: list[str]

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: tuple[Tensor, Tensor],
        output_attentions: bool = False,
        query_states: Tensor | None = None,
        relative_pos: tuple[int, Tensor, Tensor] | None = None,
        rel_embeddings: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """As stock: ``[batch, tokens, hidden]`` -> the same, and the weights when asked for.

        Raises:
            NotImplementedError: queries of other tokens (the enhanced mask decoder of pre-training).
        """
        if query_states is not None:
            raise NotImplementedError("queries of other tokens are not available on the device")
        query, key, value = self._heads(hidden_states)
        scale = self._scale()
        scores = torch.matmul((query * scale).contiguous(), key.contiguous().transpose(2, 3))
        if relative_pos is not None and rel_embeddings is not None:
            scores = self._with_positions(scores, query, key, relative_pos, rel_embeddings, scale)
        keep, hide = attention_mask
        weights = F.softmax(scores * keep + hide, dim=-1)
        if query.dtype in HALF_DTYPES:
            weights = weights * _attention._kept(hide, "mean")
        mixed = torch.matmul(weights, value.contiguous())
        mixed = mixed.transpose(1, 2).contiguous().view(*hidden_states.shape[:2], -1)
        return mixed, weights if output_attentions else None

    def _scale(self) -> float:
        """Factor of the scores; outside of a graph by the stock module's own steps, which round to float32."""
        size = self.head_width * self.kinds
        return size**-0.5 if torch.compiler.is_compiling() else 1.0 / float(torch.sqrt(torch.tensor(float(size))))

    def _heads(self, states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        module: Any = self
        split = (*states.shape[:2], self.num_attention_heads, -1)
        if self.layout == _SEPARATE:
            made = (part(states).view(split) for part in (module.query_proj, module.key_proj, module.value_proj))
            query, key, value = (part.transpose(1, 2) for part in made)
            return query, key, value
        query, key, value = module.in_proj(states).view(split).transpose(1, 2).chunk(3, dim=-1)
        heads = (1, 1, self.num_attention_heads, self.head_width)
        query = query + module.q_bias.view(heads).transpose(1, 2)
        return query, key, value + module.v_bias.view(heads).transpose(1, 2)

    def _with_positions(
        self,
        scores: Tensor,
        query: Tensor,
        key: Tensor,
        relative_pos: tuple[int, Tensor, Tensor],
        table: Tensor,
        scale: float,
    ) -> Tensor:
        low, by_query, by_key = relative_pos
        rows = table[low : low + by_query.shape[1]]
        if rows.shape[0] < by_query.shape[1]:
            rows = torch.cat([rows, rows.new_zeros(by_query.shape[1] - rows.shape[0], rows.shape[1])])
        rows = rows.unsqueeze(0)
        position_key, position_query = self._position_projections()
        if position_key is not None:
            against = self._table_heads(position_key(rows))
            scores = scores + chosen((query * scale).contiguous(), against, by_query)
        if position_query is not None:
            against = self._table_heads(position_query(rows))
            scores = scores + chosen(key.contiguous(), against * scale, by_key).transpose(2, 3)
        return scores

    def _table_heads(self, rows: Tensor) -> Tensor:
        return rows.view(1, rows.shape[1], self.num_attention_heads, self.head_width).transpose(1, 2).contiguous()

    def _position_projections(self) -> tuple[Any, Any]:
        """Projections of the position table into keys and into queries, None for what the model does not use."""
        module: Any = self
        names = ("pos_proj", "pos_q_proj") if self.layout == _FUSED else ("pos_key_proj", "pos_query_proj")
        if getattr(module, "share_att_key", False):
            names = ("key_proj", "query_proj")
        used = [kind in self.pos_att_type for kind in ("c2p", "p2c")]
        first, second = (getattr(module, name) if use else None for name, use in zip(names, used, strict=True))
        return first, second


def _kinds(module: Any, layout: str) -> int:
    """Content to content, and what the config lists; the second generation counts only what it knows."""
    return 1 + sum(layout == _FUSED or kind in ("c2p", "p2c") for kind in module.pos_att_type)


def chosen(states: Tensor, table: Tensor, one_hot: Tensor) -> Tensor:
    """Scores against the rows that the one-hot matrices choose.

    Args:
        states: ``[batch, heads, tokens, head]``.
        table: ``[1, heads, rows, head]``.
        one_hot: ``[tokens, rows, others]``.

    Returns:
        ``[batch, heads, tokens, others]``.
    """
    batch, heads, tokens, _ = states.shape
    scores = torch.matmul(states, table.transpose(2, 3))
    by_token = scores.permute(2, 0, 1, 3).contiguous().view(tokens, batch * heads, -1)
    picked = torch.bmm(by_token, one_hot)
    return picked.view(tokens, batch, heads, -1).permute(1, 2, 0, 3).contiguous()


class MaskedConvolution(nn.Module):
    """Mixin for the convolution beside the first layer: its mask is a factor; ``masked_fill_`` has no kernel (D5.2)."""

    conv: nn.Module
    LayerNorm: nn.Module
    conv_act: str

    def forward(self, hidden_states: Tensor, residual_states: Tensor, input_mask: Tensor) -> Tensor:
        """``[batch, tokens, hidden]`` twice, and a mask ``[batch, tokens]`` of ones and zeros."""
        from transformers.activations import ACT2FN

        mask = input_mask.to(hidden_states.dtype).unsqueeze(2)
        convolved = self.conv(hidden_states.transpose(1, 2)).transpose(1, 2) * mask
        states: Tensor = self.LayerNorm(residual_states + ACT2FN[self.conv_act](convolved)) * mask
        return states


def _layout(module: nn.Module) -> str | None:
    """Which of the two layouts an attention module has; None when it is another module or uses what is not here."""
    if not {"pos_att_type", "relative_attention"} <= set(module.__dict__) or isinstance(module, DisentangledProducts):
        return None
    heads = next((module.__dict__[n] for n in ("attention_head_size",) if n in module.__dict__), 0)
    if not module.__dict__["relative_attention"] or not is_whole(heads) or getattr(module, "talking_head", False):
        return None
    names = {name for name, child in module.named_children() if isinstance(child, nn.Linear)}
    return next((layout for layout in (_FUSED, _SEPARATE) if layout in names), None)


def _sites(model: nn.Module) -> list[Site]:
    found = []
    for path, module in model.named_modules():
        layers = [m for m in module.modules() if _layout(m) is not None] if hasattr(type(module), "get_rel_pos") else []
        if not layers or not isinstance(getattr(module, "rel_embeddings", None), nn.Embedding):
            continue
        span, rest = divmod(module.rel_embeddings.num_embeddings, 2)
        if rest:
            continue
        buckets = max(0, getattr(module, "position_buckets", 0))
        meta = {"span": span, "buckets": buckets, "largest": module.max_relative_positions}
        meta["trimmed"] = any(_layout(layer) == _FUSED for layer in layers)
        before, after = "relative positions gathered", "one-hot matrices made on the host"
        found.append(Site(path=path, kind="positions", before=before, after=after, meta=meta))
        if isinstance(getattr(module, "conv", None), nn.Module) and hasattr(module.conv, "conv_act"):
            where = f"{path}.conv".lstrip(".")
            found.append(Site(path=where, kind="convolution", before="masked_fill_ in place", after="factor"))
        for inner, layer in module.named_modules():
            layout = _layout(layer)
            if layout is not None:
                where = f"{path}.{inner}" if path else inner
                after = "products with one-hot matrices"
                found.append(Site(path=where, kind="attention", before="gather", after=after, meta={"layout": layout}))
    return found


def _apply(patcher: PatcherProtocol, model: nn.Module, site: Site) -> None:
    module: Any = model.get_submodule(site.path)
    if site.kind == "positions":
        patcher.swap_class(module, OneHotPositions, **site.meta)
    elif site.kind == "convolution":
        patcher.swap_class(module, MaskedConvolution)
    else:
        layout, width = site.meta["layout"], module.attention_head_size
        patcher.swap_class(module, DisentangledProducts, layout=layout, head_width=width, kinds=_kinds(module, layout))


_OPTIONS: dict[str, dict[str, Any]] = {
    "deberta": {"max_relative_positions": 64, "pos_att_type": ["c2p", "p2c"], "relative_attention": True},
    "v2": {
        "relative_attention": True, "position_buckets": 32, "norm_rel_ebd": "layer_norm", "share_att_key": True,
        "pos_att_type": ["p2c", "c2p"], "position_biased_input": False,
    },
    "v2_few_buckets": {"relative_attention": True, "position_buckets": 8, "pos_att_type": ["p2c", "c2p"]},
    "v2_not_shared": {
        "relative_attention": True, "max_relative_positions": 32, "pos_att_type": ["c2p", "p2c"],
        "conv_kernel_size": 3, "conv_act": "gelu",
    },
}  # fmt: skip


def _model(name: str) -> nn.Module:
    import transformers

    family = "Deberta" if name == "deberta" else "DebertaV2"
    torch.manual_seed(4)
    config = getattr(transformers, f"{family}Config")(
        vocab_size=40, hidden_size=128, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        initializer_range=0.1, max_position_embeddings=96, layer_norm_eps=1e-7, **_OPTIONS[name],
    )  # fmt: skip
    model: nn.Module = getattr(transformers, f"{family}Model")(config)
    return model.double().eval()


def _inputs(tokens: int) -> dict[str, Any]:
    ids = torch.randint(2, 40, (2, tokens), generator=torch.Generator().manual_seed(1))
    return {"input_ids": ids, "attention_mask": (torch.arange(tokens)[None] < torch.tensor([[tokens], [5]])).long()}


def _examples() -> list[Example]:
    return [
        Example(f"{name}_{n}", functools.partial(_model, name), functools.partial(_inputs, n))
        for name in _OPTIONS
        for n in (13, 70)
    ]


ADAPTER = Adapter(
    name="disentangled_attention",
    summary="DeBERTa's attention over relative positions, with products of one-hot matrices in place of gathers.",
    rules=("indirect-access", "op-unsupported", "dtype-fp32-op"),
    equivalence="reassociated",
    sites=_sites,
    apply=_apply,
    examples=_examples,
    architectures=("deberta", "deberta-v2"),
    order=46,
)
