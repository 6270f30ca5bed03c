"""Where an attention module keeps its projections, found by structure."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

_SEPARATE = (
    ("query", "key", "value"),
    ("q_proj", "k_proj", "v_proj"),
    ("q_lin", "k_lin", "v_lin"),
    ("q", "k", "v"),
)
_FUSED = ("Wqkv", "qkv_proj", "query_key_value")
_OUTPUTS = ("o_proj", "out_proj", "out_lin", "o", "Wo", "dense")
_SIZES = ("attention_head_size", "head_dim", "key_value_proj_dim")


@dataclass(frozen=True)
class Projections:
    """The projections of one attention module.

    Attributes:
        size_name: attribute of the module that holds the size of a head.
        width: that size.
        inputs: (path below the model, number of heads it produces) of every projection into heads.
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
    size_name = next((n for n in _SIZES if isinstance(module.__dict__.get(n), int)), None)
    if size_name is None:
        return None
    width = int(module.__dict__[size_name])
    names = _input_names(module)
    if names is None or width < 1:
        return None
    inputs = []
    for name in names:
        heads, rest = divmod(_linear(module, name).out_features, width)
        if rest:
            return None
        inputs.append((_join(path, name), heads))
    fused = len(names) == 1
    query_heads = inputs[0][1] // 3 if fused else inputs[0][1]
    output = _output(model, path, query_heads * width)
    if output is None or (fused and inputs[0][1] % 3):
        return None
    norms = tuple(_join(path, name) for name, child in module.named_children() if _is_head_norm(child, width))
    return Projections(size_name, width, tuple(inputs), (output, query_heads), norms)


def _input_names(module: nn.Module) -> tuple[str, ...] | None:
    children = {name for name, child in module.named_children() if isinstance(child, nn.Linear)}
    for names in _SEPARATE:
        if set(names) <= children:
            return names
    return next(((name,) for name in _FUSED if name in children), None)


def _output(model: nn.Module, path: str, features: int) -> str | None:
    """Own child, or, as in BERT, the ``output.dense`` of the parent."""
    candidates = [_join(path, name) for name in _OUTPUTS]
    candidates.append(_join(path.rpartition(".")[0], "output.dense"))
    for candidate in candidates:
        try:
            child = model.get_submodule(candidate)
        except AttributeError:
            continue
        if isinstance(child, nn.Linear) and child.in_features == features:
            return candidate
    return None


def _is_head_norm(module: nn.Module, width: int) -> bool:
    weight = module._parameters.get("weight")
    return weight is not None and tuple(weight.shape) == (width,)


def _linear(module: nn.Module, name: str) -> nn.Linear:
    child = module.get_submodule(name)
    assert isinstance(child, nn.Linear)
    return child


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
