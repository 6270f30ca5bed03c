"""Attention and masks through the interfaces that transformers offers for other implementations."""

from __future__ import annotations

import functools
import inspect
import sys
from typing import Any

import torch
from torch import Tensor, nn

from hf_adapters.adapters import _attention, _probe
from hf_adapters.protocols import Adapter, Example, PatcherProtocol, Site

_INTERFACE = "ALL_ATTENTION_FUNCTIONS"
_MASK_MAKERS = (
    "create_causal_mask",
    "create_bidirectional_mask",
    "create_sliding_window_causal_mask",
    "create_bidirectional_sliding_window_mask",
    "create_chunked_causal_mask",
    "create_masks_for_generate",
)


class FiniteMasks(nn.Module):
    """Mixin for models that make masks: a mask that the caller prepared becomes a finite additive one."""

    keeps_signature = True

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As stock; ``attention_mask`` may be ``[batch, 1, queries, keys]``, boolean or additive, or a dict."""
        prepared = kwargs.get("attention_mask")
        if isinstance(prepared, Tensor) and prepared.dim() == 4:
            kwargs["attention_mask"] = self._finite(prepared)
        elif isinstance(prepared, dict):
            kwargs["attention_mask"] = {k: v if v is None else self._finite(v) for k, v in prepared.items()}
        return super().forward(*args, **kwargs)

    def _finite(self, mask: Tensor) -> Tensor:
        parameter = next(p for p in self.parameters() if p.is_floating_point())
        return _attention.finite_mask(mask, parameter.dtype, parameter.device)


def _attends(module: nn.Module) -> bool:
    return _INTERFACE in _probe.code_names(type(module).forward)


def _makes_masks(module: nn.Module) -> bool:
    """A transformers model whose modeling code asks the mask interface, in its forward or in a method of its own."""
    scope = vars(sys.modules.get(type(module).__module__, nn))
    takes_mask = "attention_mask" in inspect.signature(type(module).forward).parameters
    return takes_mask and hasattr(module, "save_pretrained") and any(name in scope for name in _MASK_MAKERS)


def _implementation(module: nn.Module) -> str | None:
    return getattr(module.__dict__.get("config"), "_attn_implementation", None)


def _sites(model: nn.Module) -> list[Site]:
    found = []
    for path, module in model.named_modules():
        stock = _implementation(module)
        if stock is None or stock == _attention.IMPLEMENTATION:
            continue
        if _attends(module):
            meta = {"stock": stock}
            found.append(Site(path=path, kind="attention", before=f"{stock} attention", after="written out", meta=meta))
        elif _makes_masks(module):
            before = f"masks for {stock} attention"
            found.append(Site(path=path, kind="masks", before=before, after="finite additive masks made on the host"))
    return found


def _apply(patcher: PatcherProtocol, model: nn.Module, site: Site) -> None:
    _attention.register()
    module = model.get_submodule(site.path)
    if _implementation(module) != _attention.IMPLEMENTATION:
        patcher.override_config(_config_owner(model, module), _attn_implementation=_attention.IMPLEMENTATION)
    if site.kind == "masks":
        patcher.swap_class(module, FiniteMasks)
    elif site.meta["stock"] == "eager":
        patcher.set_attr(module, "empty_rows", "mean")


def _config_owner(model: nn.Module, module: nn.Module) -> nn.Module:
    """The outermost module that holds the config of ``module``, so that all of its holders share one copy."""
    config = module.__dict__["config"]
    owners = [m for m in model.modules() if m.__dict__.get("config") is config]
    return owners[0]


def _bert(attention: str) -> nn.Module:
    from transformers import BertConfig, BertModel

    torch.manual_seed(2)
    config = BertConfig(
        vocab_size=40, hidden_size=128, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        initializer_range=0.1, max_position_embeddings=32,
    )  # fmt: skip
    config._attn_implementation = attention
    model: nn.Module = BertModel(config)
    return model.double().eval()


def _mistral(window: int, is_causal: bool) -> nn.Module:
    from transformers import MistralConfig, MistralModel

    torch.manual_seed(2)
    config = MistralConfig(
        vocab_size=40, hidden_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=64,
        intermediate_size=64, initializer_range=0.1, sliding_window=window, is_causal=is_causal,
    )  # fmt: skip
    model: nn.Module = MistralModel(config)
    return model.double().eval()


def _inputs(side: str) -> dict[str, Any]:
    ids = torch.randint(2, 40, (3, 11), generator=torch.Generator().manual_seed(1))
    lengths = torch.tensor([11, 4, 1])[:, None]
    steps = torch.arange(11)[None, :]
    mask = steps < lengths if side == "right" else steps >= 11 - lengths
    return {"input_ids": ids, "attention_mask": mask.long()}


def _prepared() -> dict[str, Any]:
    inputs = _inputs("right")
    return {**inputs, "attention_mask": inputs["attention_mask"].bool()[:, None, None, :].expand(-1, 1, 11, -1)}


def _examples() -> list[Example]:
    right, left = functools.partial(_inputs, "right"), functools.partial(_inputs, "left")
    return [
        Example("bidirectional", functools.partial(_bert, "sdpa"), right),
        Example("bidirectional_eager", functools.partial(_bert, "eager"), left),
        Example("prepared_mask", functools.partial(_bert, "sdpa"), _prepared),
        Example("sliding_window", functools.partial(_mistral, 4, True), right),
        Example("sliding_window_left", functools.partial(_mistral, 4, True), left),
        Example("not_causal", functools.partial(_mistral, 4, False), right),
    ]


ADAPTER = Adapter(
    name="additive_masks",
    summary="Attention written out with contiguous heads and finite additive masks made on the host.",
    rules=("inf-constant", "op-unsupported", "double-broadcast", "int64-compare-scalar", "bool-sum"),
    equivalence="reassociated",
    sites=_sites,
    apply=_apply,
    examples=_examples,
    order=40,
)
