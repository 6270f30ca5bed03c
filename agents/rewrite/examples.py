"""The CPU proof of a drafted adapter: the failing model's class, small, with the config that made it fail."""

from __future__ import annotations

import inspect
import re
from typing import Any

from torch import nn

_MODELING = re.compile(r"transformers\.models\.[a-z0-9_]+\.modeling_[a-z0-9_]+")
_LEFT_OUT = ("transformers_version", "dtype", "torch_dtype", "architectures", "model_type", "_name_or_path", "id2label")
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_VOCABULARY = 60


def is_of_transformers(model: nn.Module) -> bool:
    """Whether an adapter file may import the model's class."""
    return getattr(model, "config", None) is not None and bool(_MODELING.fullmatch(type(model).__module__))


def example_of(model: nn.Module, *, widened: bool = False, additive: bool = False) -> str:
    """The functions `_build`, `_inputs` and `_examples` of an adapter file.

    Args:
        model: the failing model, stock.
        widened: see `Example.widened`.
        additive: the form takes masks that are added to scores, which transformers' eager attention is given.

    Raises:
        ValueError: the model is none of the transformers library, or its config is no plain data.
    """
    model_class: Any = type(model)
    config: Any = getattr(model, "config", None)
    if not is_of_transformers(model):
        raise ValueError(f"{model_class.__name__} is no model of transformers, so no example of it can be written")
    values = _values(config)
    if additive and getattr(config, "_attn_implementation", "eager") != "eager":
        values["attn_implementation"] = "eager"
    written = ", ".join(f"{name}={_literal(value)}" for name, value in values.items())
    lines = f"config = {type(config).__name__}({written})"
    imports = sorted(
        [
            f"from {model_class.__module__} import {model_class.__name__}",
            f"from {type(config).__module__} import {type(config).__name__}",
        ]
    )
    options = "".join(
        f', "{name}": False' for name in ("use_cache",) if name in inspect.signature(model_class.forward).parameters
    )
    vocabulary = int(getattr(config, "vocab_size", _VOCABULARY))
    spread = max(8, min(40, vocabulary - 12))
    return f"""def _build() -> nn.Module:
    {imports[0]}
    {imports[1]}

    {_broken(lines)}
    return {model_class.__name__}(config).double().eval()


def _inputs() -> dict[str, Any]:
    ids = 8 + torch.arange(84).reshape(2, 42) % {spread}
    mask = torch.arange(42) < torch.tensor([[42], [29]])
    return {{"input_ids": ids, "attention_mask": mask.long(){options}}}


def _examples() -> list[Example]:
    return [Example(name="small_model", build=_build, inputs=_inputs{", widened=True" if widened else ""})]"""


def _values(config: Any) -> dict[str, Any]:
    values = {key: item for key, item in config.to_diff_dict().items() if key not in _LEFT_OUT}
    values = {key: item for key, item in values.items() if _is_plain(item) and not key.startswith("_")}
    for name in _LAYERS:
        if isinstance(values.get(name), int) and not isinstance(getattr(config, "layer_types", None), list):
            values[name] = min(values[name], 2)
    return values


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(item) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return all(_is_plain(item) for item in value)
    return value is None or isinstance(value, (bool, int, float, str))


def _literal(value: Any) -> str:
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_literal(k)}: {_literal(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_literal(item) for item in value) + "]"
    return repr(value)


def _broken(line: str, width: int = 112) -> str:
    """A call that is too long, with its arguments in lines of their own."""
    if len(line) <= width:
        return line
    head, _, rest = line.partition("(")
    out: list[str] = []
    current, depth = "", 0
    for character in rest[:-1]:
        depth += (character in "([{") - (character in ")]}")
        current += character
        if character == "," and not depth and len(current) > width - 40:
            out.append(current.strip())
            current = ""
    out.append(current.strip() + ",")
    return head + "(\n        " + "\n        ".join(out) + "\n    )"
