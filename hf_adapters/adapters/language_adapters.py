"""Small networks chosen by the language of each row (X-MOD), by masks instead of by selecting rows."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn

from hf_adapters.protocols import Adapter, Example, PatcherProtocol, Site

_CHOICE = "lang_adapter"
Languages = tuple[tuple[int, Tensor | None], ...]
"""(number of the language, rows that have it as ``[batch, 1, 1]`` of ones and zeros, None for all rows)."""


class LanguagesByMask(nn.Module):
    """Mixin for the encoder: finds out on the host which languages there are, before the first layer."""

    keeps_signature = True

    def forward(self, hidden_states: Tensor, lang_ids: Any, *args: Any, **kwargs: Any) -> Any:
        """As stock; ``lang_ids`` is ``[batch]``."""
        if isinstance(lang_ids, Tensor):
            lang_ids = languages(lang_ids, hidden_states)
        return super().forward(hidden_states, lang_ids, *args, **kwargs)


def languages(lang_ids: Tensor, like: Tensor) -> Languages:
    """The languages of a batch, with masks in the dtype and on the device of ``like`` where there are several."""
    ids = lang_ids.detach().cpu()
    present = sorted({int(i) for i in ids})
    if len(present) == 1:
        return ((present[0], None),)
    return tuple((i, (ids == i).to(like.dtype)[:, None, None].to(like.device)) for i in present)


class MaskedLanguages(nn.Module):
    """Mixin for the output of a layer with one network for each language; boolean indexing has no kernel (D5.4)."""

    adapter_modules: nn.ModuleDict
    adapter_layer_norm: nn.Module | None
    adapter_reuse_layer_norm: bool
    ln_before_adapter: bool
    LayerNorm: nn.Module

    def lang_adapter(self, lang_ids: Languages, hidden_states: Tensor) -> Tensor:
        """``[batch, tokens, hidden]`` plus what the network of each row's language makes of it.

        Raises:
            IndexError: a language has no network.
        """
        residual = hidden_states
        if self.adapter_layer_norm is not None:
            hidden_states = self.adapter_layer_norm(hidden_states)
        elif self.adapter_reuse_layer_norm:
            hidden_states = self.LayerNorm(hidden_states)
        if self.ln_before_adapter:
            residual = hidden_states
        networks = list(self.adapter_modules.values())
        total = residual
        for index, rows in lang_ids:
            if not 0 <= index < len(networks):
                raise IndexError(f"language {index} has no network, there are {len(networks)}")
            made = networks[index](hidden_states)
            total = total + (made if rows is None else made * rows)
        return total


def _sites(model: nn.Module) -> list[Site]:
    found = []
    outputs = [p for p, m in model.named_modules() if hasattr(type(m), _CHOICE) and hasattr(m, "adapter_modules")]
    for path, module in model.named_modules():
        layers = getattr(module, "layer", None)
        inside = [p for p in outputs if p.startswith(f"{path}.layer." if path else "layer.")]
        if isinstance(layers, nn.ModuleList) and inside and not isinstance(module, LanguagesByMask):
            after = "found out on the host"
            found.append(Site(path=path, kind="languages", before="languages by row", after=after))
            before, after = "rows selected by language", "masks"
            found += [
                Site(path=p, kind="networks", before=before, after=after)
                for p in inside
                if not isinstance(model.get_submodule(p), MaskedLanguages)
            ]
    return found


def _apply(patcher: PatcherProtocol, model: nn.Module, site: Site) -> None:
    mixin = LanguagesByMask if site.kind == "languages" else MaskedLanguages
    patcher.swap_class(model.get_submodule(site.path), mixin)


def _xmod(norm_before: bool, reuse: bool) -> nn.Module:
    from transformers import XmodConfig, XmodModel

    torch.manual_seed(6)
    config = XmodConfig(
        vocab_size=40, hidden_size=64, num_hidden_layers=2, num_attention_heads=1, intermediate_size=64,
        initializer_range=0.1, max_position_embeddings=40, languages=("en_XX", "de_DE", "fr_XX"),
        default_language="de_DE", ln_before_adapter=norm_before, adapter_reuse_layer_norm=reuse,
        adapter_layer_norm=not reuse,
    )  # fmt: skip
    model: nn.Module = XmodModel(config)
    return model.double().eval()


def _inputs(lang_ids: list[int] | None) -> dict[str, Any]:
    ids = torch.randint(3, 40, (3, 11), generator=torch.Generator().manual_seed(1))
    given = {} if lang_ids is None else {"lang_ids": torch.tensor(lang_ids)}
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **given}


def _examples() -> list[Example]:
    before, after = functools.partial(_xmod, True, True), functools.partial(_xmod, False, False)
    return [
        Example("default_language", before, functools.partial(_inputs, None)),
        Example("several_languages", before, functools.partial(_inputs, [2, 0, 2])),
        Example("own_norm", after, functools.partial(_inputs, [1, 1, 0])),
    ]


ADAPTER = Adapter(
    name="language_adapters",
    summary="X-MOD's networks chosen by language, by masks instead of boolean indexing.",
    rules=("dynamic-shape", "indirect-access", "index-duplicate"),
    equivalence="exact",
    sites=_sites,
    apply=_apply,
    examples=_examples,
    architectures=("xmod",),
    order=47,
)
