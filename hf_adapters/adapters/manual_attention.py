"""Attention that a model computes by hand instead of through transformers' attention interface."""

from __future__ import annotations

import copy
import functools
import inspect
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hf_adapters.adapters import _attention, _probe
from hf_adapters.adapters._sticks import HALF_DTYPES, is_whole
from hf_adapters.protocols import Adapter, Example, PatcherProtocol, Site


class BiasedAttention(nn.Module):
    """Mixin for self-attention with children q, k, v, o and a position bias made elsewhere (MPNet)."""

    real_scaling: float
    attention_head_size: int
    q: nn.Linear
    k: nn.Linear
    v: nn.Linear
    o: nn.Linear

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        position_bias: Tensor | None = None,
        output_attentions: bool = False,
        **kwargs: Any,
    ) -> tuple[Tensor, ...]:
        """As stock: ``[batch, tokens, hidden]`` -> the output, and the weights when asked for."""
        batch, tokens = hidden_states.shape[:2]
        split = (batch, tokens, -1, self.attention_head_size)
        query, key, value = (part(hidden_states).view(split).transpose(1, 2) for part in (self.q, self.k, self.v))
        output, weights = _attention.attend(
            query, key, value, attention_mask, self.real_scaling, bias=position_bias, empty_rows="mean"
        )
        mixed = self.o(output.transpose(1, 2).contiguous().view(batch, tokens, -1))
        return (mixed, weights) if output_attentions else (mixed,)


class TokenMaskAttention(nn.Module):
    """Mixin for self-attention that hides tokens by a mask of ones and zeros, in place (XLM, FlauBERT).

    ``masked_fill_`` does not lower inside a graph (D5.2).
    """

    n_heads: int
    head_dim: int
    layer_id: int
    real_scaling: float
    q_lin: nn.Linear
    k_lin: nn.Linear
    v_lin: nn.Linear
    out_lin: nn.Linear

    def forward(
        self,
        input: Tensor,
        mask: Tensor,
        kv: Tensor | None = None,
        cache: Any = None,
        output_attentions: bool = False,
        **kwargs: Any,
    ) -> tuple[Tensor, ...]:
        """``[batch, tokens, hidden]``, with a mask ``[batch, tokens]`` or ``[batch, tokens, tokens]``."""
        if kv is not None:
            stock: tuple[Tensor, ...] = super().forward(input, mask, kv=kv, cache=cache, **kwargs)
            return stock
        batch, tokens = input.shape[:2]
        split = (batch, tokens, self.n_heads, self.head_dim)
        parts = (self.q_lin, self.k_lin, self.v_lin)
        query, key, value = (part(input).view(split).transpose(1, 2) for part in parts)
        if cache is not None:
            key, value = getattr(cache, "self_attention_cache", cache).update(key, value, self.layer_id)
        keep = mask.to(query.dtype).view((batch, 1, tokens if mask.dim() == 3 else 1, -1))
        hide = (1.0 - keep) * _attention.mask_fill(query.dtype)
        output, weights = _attention.attend(query, key, value, hide, self.real_scaling, keep=keep, empty_rows="mean")
        mixed = self.out_lin(output.transpose(1, 2).contiguous().view(batch, tokens, -1))
        return (mixed, weights) if output_attentions else (mixed,)


class PackedAttention(nn.MultiheadAttention):
    """Mixin for ``nn.MultiheadAttention`` with one packed projection and the batch first (pooling heads of SigLIP)."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Any]:
        """``[batch, queries, width]`` from ``[batch, keys, width]``; with masks or weights asked for, the stock way."""
        if args or any(option not in (None, False) for option in kwargs.values()):
            return super().forward(query, key, value, *args, **kwargs)
        parts = zip((query, key, value), self.in_proj_weight.chunk(3), self._biases(), strict=True)
        heads = (F.linear(x, w, b).view(*x.shape[:2], self.num_heads, -1).transpose(1, 2) for x, w, b in parts)
        q, k, v = heads
        mixed, _ = _attention.attend(q, k, v, None, self.head_dim**-0.5)
        return self.out_proj(mixed.transpose(1, 2).contiguous().view(query.shape)), None

    def _biases(self) -> tuple[Tensor | None, ...]:
        packed: Tensor | None = self.in_proj_bias
        return (None, None, None) if packed is None else packed.chunk(3)


def _is_packed(module: nn.Module) -> bool:
    if not isinstance(module, nn.MultiheadAttention) or isinstance(module, PackedAttention):
        return False
    plain = module.bias_k is None and module.bias_v is None and not module.add_zero_attn
    same: bool = module._qkv_same_embed_dim
    return plain and same and module.batch_first and is_whole(module.head_dim)


class UnscaledAttention(nn.Module):
    """Mixin for attention whose ``_attn`` hides the future with a boolean buffer and does not scale (GPT-Neo).

    Attributes:
        window: additive form of the buffer ``[1, 1, positions, positions]`` for layers with a local window, derived;
            None for global layers, whose mask the model makes already.
    """

    window: Tensor | None = None

    def _attn(
        self, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """``[batch, heads, tokens, head]`` each; ``attention_mask`` additive and causal."""
        if attention_mask is None:
            stock: tuple[Tensor, Tensor] = super()._attn(query, key, value, None)  # type: ignore[misc]
            return stock
        queries, keys = query.shape[-2], key.shape[-2]
        if self.window is not None:
            attention_mask = torch.minimum(attention_mask, self.window[:, :, keys - queries : keys, :keys])
        if query.dtype not in HALF_DTYPES:
            # The stock layer computes the scores in float32; in 16 bits a float32 matmul has no kernel (D1.6).
            query, key = query.to(torch.float32), key.to(torch.float32)
        output, weights = _attention.attend(query, key, value, attention_mask, 1.0, empty_rows="mean")
        return output, weights.to(value.dtype)


def window_bias(follow: Tensor, visible: Tensor) -> Tensor:
    """Additive form of a boolean buffer, in the dtype of ``follow``."""
    return _attention.additive(visible, follow.dtype)


def _is_biased(module: nn.Module) -> bool:
    children = dict(module.named_children())
    arguments = inspect.signature(type(module).forward).parameters
    return (
        all(isinstance(children.get(name), nn.Linear) for name in "qkvo")
        and "position_bias" in arguments
        and "ALL_ATTENTION_FUNCTIONS" not in _probe.code_names(type(module).forward)
        and isinstance(getattr(module, "attention_head_size", None), int)
        and not isinstance(module, BiasedAttention)
    )


def _is_masked_by_token(module: nn.Module) -> bool:
    names = [name for name in inspect.signature(type(module).forward).parameters if name != "self"]
    children = {name for name, child in module.named_children() if isinstance(child, nn.Linear)}
    known = {"q_lin", "k_lin", "v_lin", "out_lin"} <= children and {"n_heads", "head_dim"} <= set(module.__dict__)
    return known and names[:2] == ["input", "mask"] and not isinstance(module, TokenMaskAttention)


def _proven_token_mask(module: Any) -> bool:
    twin: Any = _probe.double_copy(module)
    twin.real_scaling = twin.head_dim**-0.5
    hidden = 0.1 * torch.randn(2, 5, twin.q_lin.in_features, generator=torch.Generator().manual_seed(6)).double()
    mask = torch.tensor([[1] * 5, [1] * 2 + [0] * 3])
    with torch.no_grad():
        stock, ours = twin(hidden, mask)[0], TokenMaskAttention.forward(twin, hidden, mask)[0]
    # The stock softmax is rounded to float32.
    return _probe.same(ours, stock, 1e-6)


def _is_unscaled(module: nn.Module) -> bool:
    visible = module._buffers.get("bias")
    return (
        hasattr(type(module), "_attn")
        and visible is not None
        and visible.dtype == torch.bool
        and visible.dim() == 4
        and not isinstance(module, UnscaledAttention)
    )


def _proven_biased(module: Any) -> bool:
    """The stock module and the mixin agree in float64 on a random input, mask and bias."""
    twin = copy.deepcopy(module).to(device="cpu", dtype=torch.float64).eval()
    generator = torch.Generator().manual_seed(6)
    hidden = torch.randn(2, 5, twin.q.in_features, generator=generator, dtype=torch.float64)
    heads = twin.q.out_features // twin.attention_head_size
    bias = torch.randn(1, heads, 5, 5, generator=generator, dtype=torch.float64)
    mask = _attention.additive(torch.tensor([[True] * 5, [True] * 2 + [False] * 3]), torch.float64)[:, None, None, :]
    twin.real_scaling = twin.attention_head_size**-0.5
    with torch.no_grad():
        stock = twin(hidden, mask, bias)[0]
        ours = BiasedAttention.forward(twin, hidden, mask, bias)[0]
    return _probe.same(ours, stock, 1e-11)


def _proven_unscaled(module: Any) -> bool:
    generator = torch.Generator().manual_seed(6)
    q, k, v = (torch.randn(1, 2, 5, 4, generator=generator, dtype=torch.float64) for _ in range(3))
    visible = module.bias[:, :, :5, :5].cpu()
    causal = _attention.additive(torch.ones(5, 5, dtype=torch.bool).tril(), torch.float64)[None, None]
    twin = copy.copy(module)
    twin.__dict__["_buffers"] = {**module._buffers, "bias": visible}
    twin.__dict__["window"] = window_bias(q, visible)
    with torch.no_grad():
        stock = twin._attn(q, k, v, causal)[0]
        ours = UnscaledAttention._attn(twin, q, k, v, causal)[0]
    return _probe.same(ours, stock)


def _is_local(module: Any) -> bool:
    """The buffer hides more than the future."""
    visible = module.bias[0, 0].cpu()
    return not torch.equal(visible, torch.ones_like(visible).tril())


def _sites(model: nn.Module) -> list[Site]:
    found = []
    proven: dict[tuple[Any, ...], bool] = {}
    for path, module in model.named_modules():
        if _is_biased(module):
            key = (type(module), module.q.weight.shape)
            if proven.setdefault(key, proven.get(key) or _proven_biased(module)):
                after = "contiguous heads, finite mask"
                found.append(Site(path=path, kind="biased", before="attention by hand", after=after))
        elif _is_packed(module):
            found.append(Site(path=path, kind="packed", before="packed attention", after="contiguous heads"))
        elif _is_masked_by_token(module):
            key = (type(module), module.q_lin.weight.shape)
            if proven.setdefault(key, proven.get(key) or _proven_token_mask(module)):
                after = "factor and additive mask"
                found.append(Site(path=path, kind="token mask", before="masked_fill_ in place", after=after))
        elif _is_unscaled(module) and _proven_unscaled(module):
            after = "additive window instead of a boolean where"
            meta = {"local": _is_local(module)}
            found.append(Site(path=path, kind="unscaled", before="attention by hand", after=after, meta=meta))
    return found


def _apply(patcher: PatcherProtocol, model: nn.Module, site: Site) -> None:
    module: Any = model.get_submodule(site.path)
    if site.kind == "biased":
        patcher.swap_class(module, BiasedAttention, real_scaling=module.attention_head_size**-0.5)
        return
    if site.kind == "packed":
        patcher.swap_class(module, PackedAttention)
        return
    if site.kind == "token mask":
        patcher.swap_class(module, TokenMaskAttention, real_scaling=module.head_dim**-0.5)
        return
    patcher.swap_class(module, UnscaledAttention)
    if site.meta["local"]:
        follow = next(name for name, p in module.named_parameters() if p.is_floating_point())
        patcher.derive(module, "window", (follow, "bias"), window_bias)


def _mpnet() -> nn.Module:
    from transformers import MPNetConfig, MPNetModel

    torch.manual_seed(2)
    config = MPNetConfig(
        vocab_size=40, hidden_size=128, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        initializer_range=0.1, max_position_embeddings=40,
    )  # fmt: skip
    model: nn.Module = MPNetModel(config)
    return model.double().eval()


def _pooling() -> nn.Module:
    from transformers import SiglipVisionConfig
    from transformers.models.siglip.modeling_siglip import SiglipMultiheadAttentionPoolingHead

    torch.manual_seed(2)
    config = SiglipVisionConfig(hidden_size=64, intermediate_size=64, num_attention_heads=1)
    module: nn.Module = SiglipMultiheadAttentionPoolingHead(config)
    return module.double().eval()


def _flaubert() -> nn.Module:
    from transformers import FlaubertConfig, FlaubertModel

    torch.manual_seed(2)
    config = FlaubertConfig(
        vocab_size=40, emb_dim=128, n_layers=2, n_heads=2, max_position_embeddings=40, pad_index=2, pad_token_id=2,
        embed_init_std=0.1, init_std=0.1,
    )  # fmt: skip
    model: nn.Module = FlaubertModel(config)
    return model.double().eval()


def _gpt_neo() -> nn.Module:
    from transformers import GPTNeoConfig, GPTNeoModel

    torch.manual_seed(2)
    config = GPTNeoConfig(
        vocab_size=40, hidden_size=128, num_layers=2, num_heads=2, intermediate_size=64, window_size=4,
        attention_types=[[["global", "local"], 1]], initializer_range=0.1, max_position_embeddings=40,
    )  # fmt: skip
    model: nn.Module = GPTNeoModel(config)
    return model.double().eval()


def _inputs(side: str) -> dict[str, Any]:
    ids = torch.randint(2, 40, (3, 11), generator=torch.Generator().manual_seed(1))
    lengths, steps = torch.tensor([11, 4, 1])[:, None], torch.arange(11)[None, :]
    mask = steps < lengths if side == "right" else steps >= 11 - lengths
    return {"input_ids": ids, "attention_mask": mask.long()}


def _examples() -> list[Example]:
    right, left = functools.partial(_inputs, "right"), functools.partial(_inputs, "left")
    return [
        Example("mpnet", _mpnet, right),
        Example(
            "packed", _pooling, lambda: {"hidden_state": torch.linspace(-2, 2, 2 * 9 * 64).double().view(2, 9, 64)}
        ),
        Example("flaubert", _flaubert, right, widened=True),
        Example("gpt_neo", _gpt_neo, right),
        Example("gpt_neo_left", _gpt_neo, left),
    ]


ADAPTER = Adapter(
    name="manual_attention",
    summary="Attention that a model computes by hand, with contiguous heads and additive windows.",
    rules=("op-unsupported", "double-broadcast", "dtype-fp32-op"),
    equivalence="reassociated",
    sites=_sites,
    apply=_apply,
    examples=_examples,
    order=45,
)
