"""Attention with a bias that grows with the distance (BLOOM): bias made on the host, heads contiguous."""

from __future__ import annotations

import functools
import inspect
import sys
from typing import Any

import torch
from torch import Tensor, nn

from hf_adapters.adapters import _attention, _probe
from hf_adapters.protocols import Adapter, Example, PatcherProtocol, Site

_MAKER = "build_alibi_tensor"


class HostAlibi(nn.Module):
    """Mixin for the model: its biases come from integer masks, which have no kernel (D5.2, D5.3)."""

    def build_alibi_tensor(self, attention_mask: Tensor, num_heads: int, dtype: torch.dtype) -> Tensor:
        """Mask ``[batch, tokens]`` -> biases ``[batch * heads, 1, tokens]`` on the device of the parameters."""
        made: Tensor = super().build_alibi_tensor(  # type: ignore[misc]
            attention_mask.detach().cpu().long(), num_heads, torch.float32
        )
        return made.to(dtype).to(next(self.parameters()).device)


class AlibiAttention(nn.Module):
    """Mixin for attention with one projection whose heads are interleaved, and a bias for each key.

    Attributes:
        real_scaling: factor of the scores, from the unpadded head.
    """

    real_scaling: float
    num_heads: int
    layer_idx: int
    head_dim: int
    query_key_value: nn.Linear
    dense: nn.Linear

    def forward(
        self,
        hidden_states: Tensor,
        residual: Tensor,
        alibi: Tensor,
        attention_mask: Tensor | None,
        layer_past: Any = None,
        use_cache: bool = False,
        output_attentions: bool = False,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor]:
        """As stock: the output with the residual added, and the weights."""
        batch, tokens, _ = hidden_states.shape
        split = self.query_key_value(hidden_states).view(batch, tokens, self.num_heads, 3, self.head_dim)
        query, key, value = (split[..., part, :].transpose(1, 2) for part in range(3))
        if layer_past is not None:
            key, value = layer_past.update(key, value, self.layer_idx)
        output, weights = _attention.attend(
            query,
            key,
            value,
            attention_mask,
            self.real_scaling,
            bias=alibi.view(batch, self.num_heads, 1, -1),
            empty_rows="mean",
        )
        mixed = output.transpose(1, 2).contiguous().view(batch, tokens, -1)
        return residual + self.dense(mixed), weights


def _attends(module: nn.Module) -> bool:
    arguments = inspect.signature(type(module).forward).parameters
    known = {"query_key_value", "dense", "num_heads", "head_dim", "inv_norm_factor"} <= set(dir(module))
    exact = bool(getattr(module, "slow_but_exact", False)) and getattr(module, "pretraining_tp", 1) > 1
    fresh = not isinstance(module, AlibiAttention)
    return known and fresh and {"alibi", "residual"} <= set(arguments) and not exact and bool(module.beta == 1.0)


def _proven(module: Any) -> bool:
    """The mixin computes what the stock module does, up to the float32 softmax of both."""
    twin: Any = _probe.double_copy(module)
    generator = torch.Generator().manual_seed(6)
    states, residual = (
        0.1 * torch.randn(2, 5, twin.hidden_size, generator=generator, dtype=torch.float64) for _ in "xy"
    )
    alibi = torch.randn(2 * twin.num_heads, 1, 5, generator=generator, dtype=torch.float64)
    mask = _attention.additive(torch.ones(5, 5, dtype=torch.bool).tril(), torch.float64)[None, None]
    twin.real_scaling = twin.inv_norm_factor
    with torch.no_grad():
        stock = twin(states, residual, alibi, mask)[0]
        ours = AlibiAttention.forward(twin, states, residual, alibi, mask)[0]
    return _probe.same(ours, stock, 1e-6)


def _makes_bias(module: nn.Module) -> bool:
    scope = vars(sys.modules.get(type(module).__module__, nn))
    return hasattr(type(module), _MAKER) and _MAKER in scope and not isinstance(module, HostAlibi)


def _sites(model: nn.Module) -> list[Site]:
    found = []
    proven: dict[tuple[Any, ...], bool] = {}
    for path, module in model.named_modules():
        if _attends(module):
            key = (type(module), module.hidden_size, module.num_heads)
            if proven.setdefault(key, proven.get(key) or _proven(module)):
                after = "contiguous heads, bias by key"
                found.append(Site(path=path, kind="attention", before="attention by hand", after=after))
        elif _makes_bias(module):
            found.append(Site(path=path, kind="bias", before="bias on the device", after="bias made on the host"))
    return found


def _apply(patcher: PatcherProtocol, model: nn.Module, site: Site) -> None:
    module: Any = model.get_submodule(site.path)
    if site.kind == "bias":
        patcher.swap_class(module, HostAlibi)
    else:
        patcher.swap_class(module, AlibiAttention, real_scaling=float(module.inv_norm_factor))


def _bloom() -> nn.Module:
    from transformers import BloomConfig, BloomModel

    torch.manual_seed(6)
    config = BloomConfig(vocab_size=40, hidden_size=128, n_layer=2, n_head=2, initializer_range=0.1)
    model: nn.Module = BloomModel(config)
    return model.double().eval()


def _inputs() -> dict[str, Any]:
    ids = torch.randint(4, 40, (3, 11), generator=torch.Generator().manual_seed(1))
    mask = torch.arange(11)[None, :] < torch.tensor([11, 4, 1])[:, None]
    return {"input_ids": ids, "attention_mask": mask.long(), "use_cache": False}


def _examples() -> list[Example]:
    no_mask = _inputs()
    no_mask.pop("attention_mask")
    return [
        Example("right", _bloom, _inputs, widened=True),
        Example("no_mask", _bloom, functools.partial(dict, no_mask), widened=True),
    ]


ADAPTER = Adapter(
    name="alibi_attention",
    summary="BLOOM's attention with a bias by distance, the bias made on the host.",
    rules=("dtype-cast", "op-fallback", "int64-compare-scalar"),
    equivalence="reassociated",
    sites=_sites,
    apply=_apply,
    examples=_examples,
    architectures=("bloom",),
    order=46,
)
