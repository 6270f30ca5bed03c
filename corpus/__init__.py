"""The models that a sweep knows: bundled snapshot, Hub client, and how a model is built from its config.

Installed as `hf_adapters.corpus`. Names are loaded on first use, so that importing the package imports
neither transformers nor huggingface_hub.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hf_adapters.corpus.build import BuiltModel, build_model
    from hf_adapters.corpus.errors import (
        ConfigInvalid,
        GatedModel,
        HubRefused,
        ModelNotFound,
        NetworkUnavailable,
        NoTextInputs,
        RemoteCodeRequired,
        TableInvalid,
        Unbuildable,
        WeightsInvalid,
    )
    from hf_adapters.corpus.hub import PullSummary, pull
    from hf_adapters.corpus.inputs import make_inputs
    from hf_adapters.corpus.profiles import Profile, load_profiles
    from hf_adapters.corpus.ranking import Ranking, RankingRow, load_ranking
    from hf_adapters.corpus.references import ModelRef, load_model, resolve
    from hf_adapters.corpus.signature import StructureGroup, group_profiles, structural_signature
    from hf_adapters.corpus.table import import_table, read_table

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
    "resolve": "references",
    "load_model": "references",
    "ModelRef": "references",
    "pull": "hub",
    "PullSummary": "hub",
    "read_table": "table",
    "import_table": "table",
    "Unbuildable": "errors",
    "ModelNotFound": "errors",
    "ConfigInvalid": "errors",
    "NetworkUnavailable": "errors",
    "HubRefused": "errors",
    "WeightsInvalid": "errors",
    "NoTextInputs": "errors",
    "RemoteCodeRequired": "errors",
    "GatedModel": "errors",
    "TableInvalid": "errors",
}

__all__ = [
    "BuiltModel",
    "ConfigInvalid",
    "GatedModel",
    "HubRefused",
    "ModelNotFound",
    "ModelRef",
    "NetworkUnavailable",
    "NoTextInputs",
    "Profile",
    "PullSummary",
    "Ranking",
    "RankingRow",
    "RemoteCodeRequired",
    "StructureGroup",
    "TableInvalid",
    "Unbuildable",
    "WeightsInvalid",
    "build_model",
    "group_profiles",
    "import_table",
    "load_model",
    "load_profiles",
    "load_ranking",
    "make_inputs",
    "pull",
    "read_table",
    "resolve",
    "structural_signature",
]


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(import_module(f"hf_adapters.corpus.{_EXPORTS[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
