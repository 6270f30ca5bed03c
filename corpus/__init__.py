"""The models that a sweep knows: bundled snapshot, Hub client, and how a model is built from its config.

Installed as `hf_adapters.corpus`. Names are loaded on first use, so that importing the package imports
neither transformers nor huggingface_hub.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hf_adapters.corpus.build import BuiltModel as BuiltModel
    from hf_adapters.corpus.build import build_model as build_model
    from hf_adapters.corpus.errors import (
        ConfigInvalid as ConfigInvalid,
    )
    from hf_adapters.corpus.errors import (
        GatedModel as GatedModel,
    )
    from hf_adapters.corpus.errors import (
        ModelNotFound as ModelNotFound,
    )
    from hf_adapters.corpus.errors import (
        NetworkUnavailable as NetworkUnavailable,
    )
    from hf_adapters.corpus.errors import (
        RemoteCodeRequired as RemoteCodeRequired,
    )
    from hf_adapters.corpus.errors import (
        TableInvalid as TableInvalid,
    )
    from hf_adapters.corpus.errors import (
        Unbuildable as Unbuildable,
    )
    from hf_adapters.corpus.hub import PullSummary as PullSummary
    from hf_adapters.corpus.hub import pull as pull
    from hf_adapters.corpus.inputs import make_inputs as make_inputs
    from hf_adapters.corpus.profiles import Profile as Profile
    from hf_adapters.corpus.profiles import load_profiles as load_profiles
    from hf_adapters.corpus.ranking import Ranking as Ranking
    from hf_adapters.corpus.ranking import RankingRow as RankingRow
    from hf_adapters.corpus.ranking import load_ranking as load_ranking
    from hf_adapters.corpus.references import ModelRef as ModelRef
    from hf_adapters.corpus.references import load_model as load_model
    from hf_adapters.corpus.references import resolve as resolve
    from hf_adapters.corpus.signature import (
        StructureGroup as StructureGroup,
    )
    from hf_adapters.corpus.signature import (
        group_profiles as group_profiles,
    )
    from hf_adapters.corpus.signature import (
        structural_signature as structural_signature,
    )
    from hf_adapters.corpus.table import import_table as import_table
    from hf_adapters.corpus.table import read_table as read_table

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
    "RemoteCodeRequired": "errors",
    "GatedModel": "errors",
    "TableInvalid": "errors",
}

__all__ = sorted(_EXPORTS)


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(import_module(f"hf_adapters.corpus.{_EXPORTS[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
