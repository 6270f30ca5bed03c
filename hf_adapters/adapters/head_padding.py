"""Attention heads narrower or wider than whole sticks, padded with zeros to whole sticks."""

from __future__ import annotations

import dis
import functools
import inspect
from typing import Any

import torch
from torch import nn

from hf_adapters.adapters import _attention, _probe
from hf_adapters.adapters._heads import ALL_HEADS, SPLIT, Projections, projections
from hf_adapters.adapters._rms import pad_any_norm
from hf_adapters.adapters._rotary import POSITION_EMBEDDINGS, HostTables, MatrixRotary
from hf_adapters.adapters._sticks import is_whole, pad_linear, round_up
from hf_adapters.adapters.alibi_attention import AlibiAttention
from hf_adapters.adapters.manual_attention import BiasedAttention, TokenMaskAttention, UnscaledAttention
from hf_adapters.adapters.rotary import place_rotation
from hf_adapters.protocols import Adapter, Example, PatcherProtocol, Site

_SCALINGS = ("scaling", "scale", "softmax_scale", "real_scaling")


def _understood(module: nn.Module) -> bool:
    """The scale does not come from the size that will change, and heads are rotated, if at all, by our matrix."""
    if isinstance(module, (AlibiAttention, BiasedAttention, TokenMaskAttention, UnscaledAttention)):
        return True
    names = _probe.code_names(type(module).forward)
    through_interface = "ALL_ATTENTION_FUNCTIONS" in names
    config = module.__dict__.get("config")
    ours = getattr(config, "_attn_implementation", None) == _attention.IMPLEMENTATION
    rotated = POSITION_EMBEDDINGS in names or any("rotary" in name for name in names)
    scaled = any(isinstance(module.__dict__.get(name), float) for name in _SCALINGS)
    return through_interface and (ours or scaled) and (not rotated or isinstance(module, MatrixRotary))


def _scales_by(module: nn.Module, size_name: str) -> bool:
    """The forward raises the size of a head to a power, which scales the queries (ESM)."""
    steps = list(dis.get_instructions(inspect.unwrap(type(module).forward)))
    reads = [at for at, step in enumerate(steps) if step.opname == "LOAD_ATTR" and step.argval == size_name]
    return any(step.opname == "BINARY_OP" and step.argrepr == "**" for at in reads for step in steps[at + 1 : at + 4])


def _sites(model: nn.Module) -> list[Site]:
    found = []
    for path, module in model.named_modules():
        parts = projections(model, path)
        if parts is None or is_whole(parts.width) or not _understood(module):
            continue
        padded = round_up(parts.width)
        meta = {"parts": parts, "padded": padded}
        before, after = f"heads of {parts.width}", f"heads of {padded}, zeros at the end"
        found.append(Site(path=path, kind="heads", before=before, after=after, meta=meta))
    return found


def _apply(patcher: PatcherProtocol, model: nn.Module, site: Site) -> None:
    parts: Projections = site.meta["parts"]
    padded: int = site.meta["padded"]
    module = model.get_submodule(site.path)
    for path, heads in parts.inputs:
        pad_linear(patcher, model.get_submodule(path), rows=(heads, parts.width, padded))
    path, heads = parts.output
    pad_linear(patcher, model.get_submodule(path), columns=(heads, parts.width, padded))
    for path in parts.norms:
        pad_any_norm(patcher, model.get_submodule(path), parts.width, padded)
    scaling = next((name for name in _SCALINGS if isinstance(module.__dict__.get(name), float)), None)
    if scaling is not None and _scales_by(module, parts.size_name):
        patcher.set_attr(module, scaling, module.__dict__[scaling] * (padded / parts.width) ** 0.5)
    elif scaling is None:
        # What the module derives from the padded size and hands to the attention function is replaced there.
        patcher.set_attr(module, "real_scaling", parts.width**-0.5)
    patcher.set_attr(module, parts.size_name, padded)
    for name in (ALL_HEADS, SPLIT):
        if name in module.__dict__:
            patcher.set_attr(module, name, heads * padded)
    if isinstance(module, MatrixRotary):
        place_rotation(patcher, module, padded)
        for tables in model.modules():
            if isinstance(tables, HostTables) and tables.table_width != padded:
                patcher.set_attr(tables, "table_width", padded)


def _model(family: str) -> nn.Module:
    import transformers

    sizes: dict[str, Any] = {
        "vocab_size": 40, "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 64, "initializer_range": 0.1, "max_position_embeddings": 40,
    }  # fmt: skip
    options = {
        "bert": (transformers.BertModel, transformers.BertConfig, {}),
        "bert_wide": (transformers.BertModel, transformers.BertConfig, {"hidden_size": 192, "num_attention_heads": 2}),
        "albert": (transformers.AlbertModel, transformers.AlbertConfig, {"embedding_size": 64}),
        "gpt2": (transformers.GPT2Model, transformers.GPT2Config, {"bos_token_id": 1, "eos_token_id": 2}),
    }
    model_class, config_class, extra = options[family]
    torch.manual_seed(4)
    model: nn.Module = model_class(config_class(**{**sizes, **extra}))
    return model.double().eval()


def _inputs() -> dict[str, Any]:
    ids = torch.randint(2, 40, (2, 13), generator=torch.Generator().manual_seed(1))
    return {"input_ids": ids, "attention_mask": (torch.arange(13)[None, :] < torch.tensor([[13], [5]])).long()}


def _examples() -> list[Example]:
    return [Example(name, functools.partial(_model, name), _inputs) for name in ("bert", "bert_wide", "albert", "gpt2")]


ADAPTER = Adapter(
    name="head_padding",
    summary="Attention heads padded with zeros to whole sticks; the scale stays that of the real head.",
    rules=("view-stick-split", "rope-half-stick"),
    equivalence="padded",
    sites=_sites,
    apply=_apply,
    examples=_examples,
    order=60,
)
