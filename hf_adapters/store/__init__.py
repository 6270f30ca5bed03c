"""The store: the only code that talks to a database.

Names are loaded on first use, so that importing the package does not import SQLAlchemy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hf_adapters.store.models import ACCEPTED, LADDER, VERDICTS
    from hf_adapters.store.records import CurrentVerdict, VerdictRecord
    from hf_adapters.store.store import Store

_EXPORTS = {
    "Store": "hf_adapters.store.store",
    "VerdictRecord": "hf_adapters.store.records",
    "CurrentVerdict": "hf_adapters.store.records",
    "VERDICTS": "hf_adapters.store.models",
    "ACCEPTED": "hf_adapters.store.models",
    "LADDER": "hf_adapters.store.models",
}

__all__ = ["ACCEPTED", "LADDER", "VERDICTS", "CurrentVerdict", "Store", "VerdictRecord"]


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(import_module(_EXPORTS[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
