"""Run unmodified Hugging Face embedding models on IBM Spyre.

    >>> import hf_adapters
    >>> hf_adapters.compile(model)           # CPU tensors in, CPU tensors out, computed on the device
    >>> hf_adapters.patch(model)             # only make the model legal for the device, place and compile it yourself

Importing this package is cheap: torch and transformers are imported on first use. It also makes
``SentenceTransformer(path, backend="spyre")`` work, see :mod:`hf_adapters.st_backend`.
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import TYPE_CHECKING, Any

from hf_adapters import st_backend as _st_backend
from hf_adapters.errors import (
    AdapterError,
    DeviceUnavailableError,
    HfAdaptersError,
    InputError,
    ModelTypeError,
    NotPatchedError,
    PatchConflictError,
    SequenceTooLongError,
    TrainingModeError,
    UnknownAdapterError,
    UnknownTargetError,
    UnsupportedOptionError,
    WeightRangeError,
)

if TYPE_CHECKING:
    from hf_adapters.catalogue import catalogue
    from hf_adapters.diagnose import diagnose
    from hf_adapters.patching import patch, patch_report, patched, unpatch
    from hf_adapters.protocols import Adapter, PatchReport
    from hf_adapters.runner import compile, decompile
    from hf_adapters.validate import validate

_LAZY = {
    "Adapter": "hf_adapters.protocols",
    "PatchReport": "hf_adapters.protocols",
    "catalogue": "hf_adapters.catalogue",
    "compile": "hf_adapters.runner",
    "decompile": "hf_adapters.runner",
    "diagnose": "hf_adapters.diagnose",
    "patch": "hf_adapters.patching",
    "patch_report": "hf_adapters.patching",
    "patched": "hf_adapters.patching",
    "unpatch": "hf_adapters.patching",
    "validate": "hf_adapters.validate",
}

__all__ = [
    "Adapter",
    "AdapterError",
    "DeviceUnavailableError",
    "HfAdaptersError",
    "InputError",
    "ModelTypeError",
    "NotPatchedError",
    "PatchConflictError",
    "PatchReport",
    "SequenceTooLongError",
    "TrainingModeError",
    "UnknownAdapterError",
    "UnknownTargetError",
    "UnsupportedOptionError",
    "WeightRangeError",
    "catalogue",
    "compile",
    "decompile",
    "diagnose",
    "patch",
    "patch_report",
    "patched",
    "unpatch",
    "validate",
]


class _Package(types.ModuleType):
    """Keeps public functions from being hidden by submodules of the same name, which importlib would set."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _LAZY and isinstance(value, types.ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
_st_backend.install()


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
