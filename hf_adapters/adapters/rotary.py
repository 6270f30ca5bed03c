"""Rotary position embeddings without sin, cos and slices on the device."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from hf_adapters.adapters import _probe, _rotary
from hf_adapters.protocols import Adapter, Example, PatcherProtocol, Site

_PROBE_WIDTH = 12
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "both": _rotary.apply_rotary,
    "both in float32": _rotary.apply_rotary_float32,
    "one": _rotary.apply_rotary_single,
}
_SIZES = ("head_dim", "attention_head_size", "head_size")
_ROTATED = ("rotary_ndims", "rotary_dim")
_METHOD = "apply_rotary_position_embeddings"


@functools.cache
def _recognise(function: Callable[..., Any]) -> tuple[str, bool] | None:
    """(key of :data:`_FUNCTIONS`, interleaved) of a stock rotary function; None when it does something else."""
    generator = torch.Generator().manual_seed(9)
    q, k = (torch.randn(1, heads, 3, _PROBE_WIDTH, generator=generator, dtype=torch.float64) for heads in (2, 1))
    angles = torch.randn(1, 3, _PROBE_WIDTH, generator=generator, dtype=torch.float64)
    for kind, replacement in _FUNCTIONS.items():
        cos, sin = angles.cos(), angles.sin()
        try:
            stock: Any
            if kind == "one":
                half = (sin[..., : _PROBE_WIDTH // 2], cos[..., : _PROBE_WIDTH // 2])
                stock = (function(q.transpose(1, 2), *half),)
                sin, cos = (table.repeat_interleave(2, dim=-1) for table in half)
            else:
                stock = function(q, k, cos, sin)
        except Exception:  # another signature: not this kind of function
            continue
        if not isinstance(stock, tuple) or len(stock) > 2:
            continue
        for interleaved in (False, True):
            width = _PROBE_WIDTH
            matrix = (sin, _rotary.rotation_matrix(q, width=width, padded=width, interleaved=interleaved))
            ours = (replacement(q.transpose(1, 2), matrix, cos),) if kind == "one" else replacement(q, k, cos, matrix)
            if all(_probe.same(a, b) for a, b in zip(ours, stock, strict=True)):
                return kind, interleaved
    return None


def _rotating(module: nn.Module) -> dict[str, Any] | None:
    """What has to be known to rebind an attention module; None when it does not rotate in a known way."""
    forward = type(module).forward
    parameters = list(inspect.signature(forward).parameters)
    if _rotary.POSITION_EMBEDDINGS not in parameters or isinstance(module, _rotary.MatrixRotary):
        return None
    names = {n: f for n, f in _probe.global_names(forward).items() if "rotary" in n and callable(f)}
    width = next((w for w in (module.__dict__.get(n) for n in _SIZES) if isinstance(w, int)), None)
    source = _smallest(module)
    if len(names) != 1 or width is None or source is None:
        return None
    name, function = next(iter(names.items()))
    known = _recognise(function)
    if known is None:
        return None
    part = next((n for n in _ROTATED if isinstance(module.__dict__.get(n), int)), None)
    return {
        "name": name,
        "kind": known[0],
        "interleaved": known[1],
        "width": width,
        "rotated": width if part is None else module.__dict__[part],
        "told": part is not None,
        "part": part if part in _probe.code_names(forward) else None,
        "source": source,
        "tables_at": parameters.index(_rotary.POSITION_EMBEDDINGS) - 1,
    }


def _smallest(module: nn.Module) -> str | None:
    """Name of the smallest floating parameter below a module; derived constants follow its dtype and device."""
    sizes = {name: p.numel() for name, p in module.named_parameters() if p.is_floating_point()}
    return min(sizes, key=lambda name: (sizes[name], name), default=None)


def _makes_tables(module: nn.Module) -> bool:
    frequencies = any("inv_freq" in name or name == "embed_positions" for name in module._buffers)
    arguments = [p for p in inspect.signature(type(module).forward).parameters if p != "self"]
    takes_positions = len(arguments) > 1 and "position" in arguments[1]
    return frequencies and takes_positions and not isinstance(module, _rotary.HostTables)


def _paired(module: nn.Module) -> bool:
    """Attention with a method that rotates neighbours and takes one table of sines and cosines."""
    method = getattr(type(module), _METHOD, None)
    if method is None or isinstance(module, _rotary.PairedRotary):
        return False
    generator = torch.Generator().manual_seed(9)
    q, k = (torch.randn(1, 2, 3, _PROBE_WIDTH, generator=generator, dtype=torch.float64) for _ in "qk")
    angles = torch.randn(1, 1, 3, _PROBE_WIDTH // 2, generator=generator, dtype=torch.float64)
    tables = [angles.sin(), angles.cos()]
    stock = method(torch.cat(tables, dim=-1), q, k)
    sin, cos = (table.repeat_interleave(2, dim=-1) for table in tables)
    matrix = _rotary.rotation_matrix(q, width=_PROBE_WIDTH, padded=_PROBE_WIDTH, interleaved=True)
    ours = (_rotary.rotate(x, cos, sin, matrix, in_float32=False) for x in (q, k))
    return all(_probe.same(a, b) for a, b in zip(ours, stock, strict=True))


def _settle_widths(model: nn.Module, found: list[Site], tables: list[str]) -> None:
    """Heads that do not say how much of them is rotated (Phi-3) are rotated as far as the tables next to them reach.

    Rotations next to tables of several widths are taken out: which of them a head gets is not known.
    """
    for site in [site for site in found if site.kind == "rotation" and not site.meta["told"]]:
        widths = {width for path in _nearest(site.path, tables) for width in _table_widths(model.get_submodule(path))}
        if len(widths) > 1:
            found.remove(site)
        elif widths and min(widths) < site.meta["width"]:
            found[found.index(site)] = replace(site, meta={**site.meta, "rotated": min(widths)})


def _table_widths(tables: nn.Module) -> set[int]:
    buffers = {name: b for name, b in tables._buffers.items() if b is not None and "inv_freq" in name}
    return {2 * buffer.numel() for buffer in buffers.values()}


def _nearest(path: str, others: list[str]) -> list[str]:
    """Those that share the longest beginning with a path: of two towers, the tables of its own."""
    shared = {other: _shared(path.split("."), other.split(".")) for other in others}
    longest = max(shared.values(), default=0)
    return [other for other, length in shared.items() if length == longest]


def _shared(first: list[str], second: list[str]) -> int:
    pairs = zip(first, second, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))


def _sites(model: nn.Module) -> list[Site]:
    found, tables = [], []
    for path, module in model.named_modules():
        if _makes_tables(module):
            tables.append(path)
        elif _paired(module):
            width = next(module.__dict__[n] for n in _SIZES if n in module.__dict__)
            meta = {"width": width, "source": _smallest(module)}
            found.append(Site(path=path, kind="pairs", before=_METHOD, after="x * cos + (x @ R) * sin", meta=meta))
        elif isinstance(module, nn.Embedding) and "SinusoidalPositional" in type(module).__name__:
            if any(_paired(other) for other in model.modules()) and not isinstance(module, _rotary.PairedTable):
                after = "table of pairs made on the host"
                found.append(Site(path=path, kind="pair table", before="sines and cosines in one row", after=after))
        else:
            meta = _rotating(module) or {}
            if meta:
                before, after = f"{meta['name']} with slices", "x * cos + (x @ R) * sin"
                found.append(Site(path=path, kind="rotation", before=before, after=after, meta=meta))
    _settle_widths(model, found, tables)
    rotations = [site.meta for site in found if site.kind == "rotation"]
    wide = {m["width"] for m in rotations} if any(m["rotated"] < m["width"] for m in rotations) else set()
    single = any(m["kind"] == "one" for m in rotations)
    meta = {"width": wide.pop() if len(wide) == 1 else None, "single": single}
    for path in tables:
        after = "tables made on the host in float32"
        found.append(Site(path=path, kind="tables", before="cos and sin on the device", after=after, meta=meta))
    return found


def _apply(patcher: PatcherProtocol, model: nn.Module, site: Site) -> None:
    module, meta = model.get_submodule(site.path), site.meta
    if site.kind == "tables":
        patcher.swap_class(module, _rotary.HostTables, host=(_rotary.host_copy(module),))
        patcher.set_attr(module, "table_width", meta["width"])
        if meta["single"]:
            patcher.set_attr(module, "sine_first", True)
            patcher.set_attr(module, "pairs", True)
    elif site.kind == "pair table":
        patcher.swap_class(module, _rotary.PairedTable)
    elif site.kind == "pairs":
        patcher.swap_class(module, _rotary.PairedRotary, rotary_style=(True, meta["source"], meta["width"], None))
        place_rotation(patcher, module, meta["width"])
    else:
        patcher.rebind(module, {meta["name"]: _FUNCTIONS[meta["kind"]]})
        style = (meta["interleaved"], meta["source"], meta["rotated"], meta["part"])
        patcher.swap_class(module, _rotary.MatrixRotary, tables_at=meta["tables_at"], rotary_style=style)
        if meta["kind"] == "one":
            patcher.set_attr(module, "sine_first", True)
        place_rotation(patcher, module, meta["width"])


def place_rotation(patcher: PatcherProtocol, module: nn.Module, padded: int) -> None:
    """Gives a rebound attention module its matrix; called again when its heads are padded.

    A module that rotates only a part of each head has the rest rotated by nothing instead of cut off and put back,
    which would cut sticks (D6.2b).

    Args:
        patcher: records the steps.
        module: a module with the :class:`MatrixRotary` mixin.
        padded: elements of a padded head.
    """
    interleaved, source, rotated, part = module.__dict__["rotary_style"]
    if part is not None and module.__dict__[part] != padded:
        patcher.set_attr(module, part, padded)
    kwargs = {"width": rotated, "padded": padded, "interleaved": interleaved}
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
    elif family == "phi3":
        part = {"rope_type": "default", "rope_theta": 1000.0, "partial_rotary_factor": 0.5}
        ends = {"num_key_value_heads": 1, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
        model = transformers.Phi3Model(transformers.Phi3Config(**sizes, **ends, rope_parameters=part))
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
    families = ("llama", "modernbert", "nomic_bert", "phi3")
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
