"""Rotary position embeddings without sin, cos and slices on the device."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from hf_adapters.adapters import _probe, _rotary
from hf_adapters.protocols import Adapter, Example, PatcherProtocol, Site

_PROBE_WIDTH = 12
_FUNCTIONS: dict[bool, Callable[..., tuple[Tensor, Tensor]]] = {
    False: _rotary.apply_rotary,
    True: _rotary.apply_rotary_float32,
}


@functools.cache
def _recognise(function: Callable[..., Any]) -> tuple[bool, bool] | None:
    """(interleaved, in_float32) of a stock rotary function; None when it does something else."""
    generator = torch.Generator().manual_seed(9)
    q, k = (torch.randn(1, heads, 3, _PROBE_WIDTH, generator=generator, dtype=torch.float64) for heads in (2, 1))
    angles = torch.randn(1, 3, _PROBE_WIDTH, generator=generator, dtype=torch.float64)
    cos, sin = angles.cos(), angles.sin()
    try:
        stock = function(q, k, cos, sin)
    except Exception:  # another signature: not a function this adapter knows
        return None
    if not (isinstance(stock, tuple) and len(stock) == 2):
        return None
    for interleaved in (False, True):
        matrix = _rotary.rotation_matrix(q, width=_PROBE_WIDTH, padded=_PROBE_WIDTH, interleaved=interleaved)
        for in_float32, replacement in _FUNCTIONS.items():
            ours = replacement(q, k, cos, (sin, matrix))
            if all(_probe.same(a, b) for a, b in zip(ours, stock, strict=True)):
                return interleaved, in_float32
    return None


def _rotating(module: nn.Module) -> dict[str, Any] | None:
    """What has to be known to rebind an attention module; None when it does not rotate in a known way."""
    forward = type(module).forward
    parameters = list(inspect.signature(forward).parameters)
    if _rotary.POSITION_EMBEDDINGS not in parameters or isinstance(module, _rotary.MatrixRotary):
        return None
    names = {n: f for n, f in _probe.global_names(forward).items() if "rotary" in n and callable(f)}
    width = getattr(module, "head_dim", None) or getattr(module, "attention_head_size", None)
    source = _smallest(module)
    if len(names) != 1 or not isinstance(width, int) or source is None:
        return None
    name, function = next(iter(names.items()))
    known = _recognise(function)
    if known is None:
        return None
    return {
        "name": name,
        "interleaved": known[0],
        "in_float32": known[1],
        "width": width,
        "source": source,
        "tables_at": parameters.index(_rotary.POSITION_EMBEDDINGS) - 1,
    }


def _smallest(module: nn.Module) -> str | None:
    """Name of the smallest floating parameter below a module; derived constants follow its dtype and device."""
    sizes = {name: p.numel() for name, p in module.named_parameters() if p.is_floating_point()}
    return min(sizes, key=lambda name: (sizes[name], name), default=None)


def _makes_tables(module: nn.Module) -> bool:
    frequencies = any("inv_freq" in name for name in module._buffers)
    arguments = [p for p in inspect.signature(type(module).forward).parameters if p != "self"]
    takes_positions = len(arguments) > 1 and "position" in arguments[1]
    return frequencies and takes_positions and not isinstance(module, _rotary.HostTables)


def _sites(model: nn.Module) -> list[Site]:
    found = []
    for path, module in model.named_modules():
        if _makes_tables(module):
            after = "tables made on the host in float32"
            found.append(Site(path=path, kind="tables", before="cos and sin on the device", after=after))
            continue
        meta = _rotating(module)
        if meta is not None:
            after = "x * cos + (x @ R) * sin"
            found.append(Site(path=path, kind="rotation", before=f"{meta['name']} with slices", after=after, meta=meta))
    return found


def _apply(patcher: PatcherProtocol, model: nn.Module, site: Site) -> None:
    module = model.get_submodule(site.path)
    if site.kind == "tables":
        patcher.swap_class(module, _rotary.HostTables, host=(_rotary.host_copy(module),))
        return
    meta = site.meta
    patcher.rebind(module, {meta["name"]: _FUNCTIONS[meta["in_float32"]]})
    patcher.swap_class(
        module, _rotary.MatrixRotary, tables_at=meta["tables_at"], rotary_style=(meta["interleaved"], meta["source"])
    )
    place_rotation(patcher, module, meta["width"], meta["width"])


def place_rotation(patcher: PatcherProtocol, module: nn.Module, width: int, padded: int) -> None:
    """Gives a rebound attention module its matrix; called again when its heads are padded.

    Args:
        patcher: records the steps.
        module: a module with the :class:`MatrixRotary` mixin.
        width: elements of a real head.
        padded: elements of a padded head.
    """
    interleaved, source = module.__dict__["rotary_style"]
    kwargs = {"width": width, "padded": padded, "interleaved": interleaved}
    patcher.derive(module, "rotation", (source,), _rotary.rotation_matrix, **kwargs)


def _model(family: str) -> nn.Module:
    import transformers

    sizes = {
        "vocab_size": 40, "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2,
        "intermediate_size": 64, "initializer_range": 0.1, "max_position_embeddings": 64,
    }  # fmt: skip
    torch.manual_seed(4)
    if family == "llama":
        model: nn.Module = transformers.LlamaModel(transformers.LlamaConfig(**sizes, num_key_value_heads=1))
    elif family == "modernbert":
        extra = {"layer_types": ["full_attention", "sliding_attention"], "pad_token_id": 0}
        model = transformers.ModernBertModel(transformers.ModernBertConfig(**sizes, local_attention=6, **extra))
    else:
        config = transformers.NomicBertConfig(**sizes, rope_parameters={"rope_type": "default", "rope_theta": 1000.0})
        model = transformers.NomicBertModel(config)
    return model.double().eval()


def _inputs() -> dict[str, Any]:
    ids = torch.randint(2, 40, (2, 13), generator=torch.Generator().manual_seed(1))
    return {"input_ids": ids, "attention_mask": (torch.arange(13)[None, :] < torch.tensor([[13], [5]])).long()}


def _far() -> dict[str, Any]:
    return {**_inputs(), "position_ids": torch.arange(4000, 4013)[None, :]}


def _examples() -> list[Example]:
    families = ("llama", "modernbert", "nomic_bert")
    cases = [Example(name, functools.partial(_model, name), _inputs) for name in families]
    return [*cases, Example("llama_far_positions", functools.partial(_model, "llama"), _far)]


ADAPTER = Adapter(
    name="rotary",
    summary="Rotary position embeddings as a product with a constant matrix, their tables made on the host.",
    rules=("rope-half-stick", "slice-stick-offset", "op-unsupported"),
    equivalence="exact",
    sites=_sites,
    apply=_apply,
    examples=_examples,
    order=50,
)
