"""The models that a sweep knows: bundled snapshot, Hub client, and how a model is built from its config.

Installed as `hf_adapters.corpus`. Names are loaded on first use, so that importing the package imports
neither transformers nor huggingface_hub.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_EXPORTS = {
    "Profile": "profiles",
    "load_profiles": "profiles",
    "RankingRow": "ranking",
    "Ranking": "ranking",
    "load_ranking": "ranking",
    "structural_signature": "signature",
    "group_profiles": "signature",
    "StructureGroup": "signature",
    "build_model": "build",
    "BuiltModel": "build",
    "make_inputs": "inputs",
    "resolve": "resolve",
    "load_model": "resolve",
    "ModelRef": "resolve",
    "pull": "hub",
    "PullSummary": "hub",
    "read_table": "table",
    "import_table": "table",
    "Unbuildable": "errors",
    "ModelNotFound": "errors",
    "ConfigInvalid": "errors",
    "NetworkUnavailable": "errors",
    "RemoteCodeRequired": "errors",
    "GatedModel": "errors",
    "TableInvalid": "errors",
}

__all__ = sorted(_EXPORTS)


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(import_module(f"hf_adapters.corpus.{_EXPORTS[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
