"""What a drafted adapter file may use (`allowed.toml`). Whatever is not listed is refused.

The lists are about reach, not about taste: `torch` leads to `torch.os`, `torch.hub`, `torch.ops`, `torch.utils` and
`torch.from_file`, so only the names listed exist for a draft, and modules can neither be assigned nor passed on.
"""

from __future__ import annotations

import functools
import tomllib
import types
from importlib.resources import files
from typing import Any

_LISTS: dict[str, Any] = tomllib.loads(files(__package__).joinpath("allowed.toml").read_text(encoding="utf-8"))


def _names(key: str) -> frozenset[str]:
    return frozenset(_LISTS[key].split())


IMPORTS: dict[str, frozenset[str]] = {module: frozenset(names.split()) for module, names in _LISTS["imports"].items()}
"""`from module import names`."""

MODULES = frozenset({"torch", "math", "functools"})
"""`import module`."""

NAMED_MODULES = {
    "torch.nn": "torch.nn",
    "torch.nn.functional": "torch.nn.functional",
    "hf_adapters.adapters._probe": "hf_adapters.adapters._probe",
}
"""Imported names that are modules themselves."""

TRANSFORMERS_MODELING = r"transformers\.models\.[a-z0-9_]+\.(modeling|configuration)_[a-z0-9_]+"
"""Modules of which a function may import module and config classes, to build its examples."""

BUILTINS = _names("builtins")
MUTATORS = _names("mutators")
KEYWORDS_REFUSED = _names("keywords_refused")

CHAINS = frozenset(
    [f"torch.{name}" for name in _names("torch")]
    + [f"torch.nn.{name}" for name in _names("nn")]
    + [f"torch.nn.functional.{name}" for name in _names("functional")]
    + [f"math.{name}" for name in _names("math")]
    + [f"hf_adapters.adapters._probe.{name}" for name in IMPORTS["hf_adapters.adapters._probe"]]
    + ["functools.partial"]
)
"""Objects that may be reached through a module, by full name."""

ATTRIBUTES = _names("tensor_attributes") | _names("module_attributes") | _names("python_attributes")
"""Attribute names that are allowed although a class of Python, torch or transformers defines them."""


@functools.cache
def reserved() -> frozenset[str]:
    """Every attribute that Python's own objects, tensors, modules, configs and models of transformers have.

    A name that is none of these belongs to some modeling file (`self.intermediate_act_fn`) and reaches nothing else.
    """
    import torch
    from torch import nn
    from transformers import PretrainedConfig, PreTrainedModel

    def generator() -> Any:
        yield

    async def coroutine() -> None:
        return None

    pending = coroutine()
    pending.close()
    samples: list[Any] = [object, type, str, bytes, bytearray, memoryview, int, float, complex, dict, list, tuple, set]
    samples += [slice, range, BaseException, OSError, ImportError, property, classmethod, super]
    samples += [generator, generator(), pending, generator.__code__, functools.partial, functools.cache(generator)]
    samples += [types.FrameType, types.TracebackType, types.ModuleType, types.MethodType, types.CellType]
    samples += [torch.Tensor, torch.Size, torch.dtype, torch.device, torch.Generator, nn.Parameter]
    samples += [nn.Module, nn.Module(), nn.ModuleList, nn.ModuleDict, nn.Sequential, nn.Embedding]
    samples += [PretrainedConfig, PreTrainedModel]
    return frozenset(name for sample in samples for name in dir(sample)) | _PATCHER


_PATCHER = frozenset({"steps", "derived", "undo", "refresh", "stock_config"})
"""Parts of the patcher that are not for adapters."""
