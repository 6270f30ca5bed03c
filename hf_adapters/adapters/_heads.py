"""Where an attention module keeps its projections, found by structure."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from hf_adapters.adapters import _probe
from hf_adapters.adapters._sticks import features

_SEPARATE = (
    ("query", "key", "value"),
    ("q_proj", "k_proj", "v_proj"),
    ("q_lin", "k_lin", "v_lin"),
    ("q", "k", "v"),
)
_FUSED = ("Wqkv", "qkv_proj", "query_key_value", "c_attn")
_OUTPUTS = ("o_proj", "out_proj", "out_lin", "o", "Wo", "dense", "c_proj")
SIZES = ("attention_head_size", "head_dim", "key_value_proj_dim", "head_size")
"""Attributes of an attention module that hold the size of a head."""
COUNTS = ("num_heads", "n_heads", "n_head", "num_attention_heads")
"""Attributes of an attention module that hold how many heads there are."""
ALL_HEADS = "all_head_size"
"""Attribute with the features of all queries (BERT)."""
SPLIT = "split_size"
"""Attribute with the features of all queries, by which some forwards cut a fused product (GPT-2)."""


@dataclass(frozen=True)
class Projections:
    """The projections of one attention module.

    Attributes:
        size_name: attribute of the module that holds the size of a head.
        width: that size.
        inputs: (path below the model, number of heads it produces) of every projection into heads; one that is
            fused makes the heads of queries, keys and values.
        output: (path below the model, number of heads it consumes).
        norms: paths of norms over a single head.
    """

    size_name: str
    width: int
    inputs: tuple[tuple[str, int], ...]
    output: tuple[str, int]
    norms: tuple[str, ...]


def projections(model: nn.Module, path: str) -> Projections | None:
    """The projections of the module at ``path``; None when it is not an attention module of a known structure."""
    module = model.get_submodule(path)
    size_name = next((n for n in SIZES if isinstance(module.__dict__.get(n), int)), None)
    if size_name is None:
        return None
    width = int(module.__dict__[size_name])
    names = _input_names(module)
    if names is None or width < 1:
        return None
    inputs = []
    for name in names:
        heads, rest = divmod(_made(module, name), width)
        if rest:
            return None
        inputs.append((_join(path, name), heads))
    output = _output(model, path, width, inputs)
    if output is None or not _split_by_queries(module, output[1] * width) or _norm_over_heads(module):
        return None
    if _reads_other_sizes(module, {heads * width for _, heads in (*inputs, output)}, size_name):
        return None
    norms = tuple(_join(path, name) for name, child in module.named_children() if _is_head_norm(child, width))
    return Projections(size_name, width, tuple(inputs), output, norms)


def _input_names(module: nn.Module) -> tuple[str, ...] | None:
    children = {name for name, child in module.named_children() if features(child) is not None}
    for names in _SEPARATE:
        if set(names) <= children:
            return names
    return next(((name,) for name in _FUSED if name in children), None)


def _output(model: nn.Module, path: str, width: int, inputs: list[tuple[str, int]]) -> tuple[str, int] | None:
    """(path, heads) of an own child, or, as in BERT, of the ``output.dense`` of the parent."""
    candidates = [_join(path, name) for name in _OUTPUTS]
    candidates.append(_join(path.rpartition(".")[0], "output.dense"))
    for candidate in candidates:
        try:
            size = features(model.get_submodule(candidate))
        except AttributeError:
            continue
        heads, rest = divmod(size[0], width) if size is not None else (0, 0)
        if heads and not rest and _are_queries(heads, inputs):
            return candidate, heads
    return None


def _are_queries(heads: int, inputs: list[tuple[str, int]]) -> bool:
    """The inputs make so many heads of queries, and, when fused, heads of keys and values that these are shared by."""
    first = inputs[0][1]
    if len(inputs) > 1:
        return heads == first
    shared, rest = divmod(first - heads, 2)
    return shared > 0 and not rest and heads % shared == 0


def _split_by_queries(module: nn.Module, queries: int) -> bool:
    """A forward that cuts a fused product by a stored size does it by that of the queries."""
    stored = module.__dict__.get(SPLIT)
    return stored == queries or (stored is None and "c_attn" not in module._modules)


def _reads_other_sizes(module: nn.Module, sizes: set[int], size_name: str) -> bool:
    """The forward takes the features of several heads from an attribute that padding would not change (CodeGen)."""
    read = _probe.code_names(type(module).forward)
    others = {n: v for n, v in module.__dict__.items() if n in read and isinstance(v, int) and "heads" not in n}
    return any(v in sizes for n, v in others.items() if n not in (size_name, ALL_HEADS, SPLIT))


def _norm_over_heads(module: nn.Module) -> bool:
    """Queries or keys are normalised over all heads at once (OLMo 2), where zeros would count."""
    made = {size[1] for child in module.children() if (size := features(child)) is not None}
    normed = ((name, child._parameters.get("weight")) for name, child in module.named_children() if "norm" in name)
    return any(
        weight is not None and weight.dim() == 1 and weight.shape[0] in made
        for name, weight in normed
        if name.startswith(("q_", "k_", "query", "key"))
    )


def _is_head_norm(module: nn.Module, width: int) -> bool:
    weight = module._parameters.get("weight")
    return weight is not None and tuple(weight.shape) == (width,)


def _made(module: nn.Module, name: str) -> int:
    size = features(module.get_submodule(name))
    assert size is not None
    return size[1]


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
