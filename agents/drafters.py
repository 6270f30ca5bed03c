"""Drafters by name."""

from __future__ import annotations

import importlib
import importlib.util

from hf_adapters.agents.protocol import Drafter
from hf_adapters.errors import HfAdaptersError

DRAFTERS = {
    "rewrite": "hf_adapters.agents.rewrite:RewriteDrafter",
    "openai": "hf_adapters.agents.llm.drafter:OpenAIDrafter",
}
"""Name -> `package.module:Class`."""


class UnknownDrafter(HfAdaptersError, ValueError):
    """There is no such drafter."""

    code = "E_UNKNOWN_DRAFTER"


def make(name: str, *, model: str | None = None) -> Drafter:
    """The drafter of that name.

    Args:
        name: key of `DRAFTERS`.
        model: name of the language model, for drafters that ask one.

    Raises:
        UnknownDrafter: there is none of that name.
    """
    if name not in DRAFTERS:
        raise UnknownDrafter(f"no drafter is called {name!r}; there are {', '.join(DRAFTERS)}")
    module, _, kind = DRAFTERS[name].partition(":")
    if importlib.util.find_spec(module) is None:
        raise UnknownDrafter(f"the drafter {name!r} is not part of this installation")
    made: Drafter = getattr(importlib.import_module(module), kind)(**({"model": model} if name == "openai" else {}))
    return made
