"""What a draft says of itself, against what it was seen to do in the sandbox."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from hf_adapters.agents.screening.declared import Declared
from hf_adapters.validation.functions import NAME as MODULE_EQUIVALENCE
from spyre_backend.capabilities import Capabilities

EXACT = 1e-14
"""Largest relative error in float64 of an adapter that says `exact`: the same function in the same order."""

EXAMPLE = 1e-9
"""Largest relative error in float64 on an adapter's own examples, whatever tolerance they give themselves."""


def before_running(adapter: Declared, chosen: Capabilities, rule: str | None, taken: Collection[str]) -> Iterator[str]:
    """Claims that are wrong by what is already known.

    Args:
        adapter: the claims.
        chosen: the release drafted for.
        rule: the rule that the failing model breaks; None when it was not a refusal.
        taken: names of adapters that exist.
    """
    if adapter.name in taken:
        yield f"an adapter called {adapter.name} exists already; choose another name"
    unknown = [name for name in adapter.rules if name not in chosen.rules]
    if unknown:
        yield f"release {chosen.release} has no rule {', '.join(unknown)}"
    if rule is not None and rule not in adapter.rules:
        yield f"the model breaks {rule}, which is not among the rules that the adapter says it works around"
    if adapter.releases is not None and chosen.release not in adapter.releases:
        yield f"the adapter says that release {chosen.release} does not need it"


def after_running(adapter: Declared, data: Mapping[str, Any], *, prove: bool) -> Iterator[str]:
    """Claims that the run in the sandbox contradicts.

    Args:
        adapter: the claims.
        data: the sandbox's answer.
        prove: whether it was told to run the examples.
    """
    seen = data.get("adapter", {})
    if (seen.get("name"), seen.get("equivalence")) != (adapter.name, adapter.equivalence):
        yield "the adapter that was loaded is not the one that the file declares"
    if prove:
        yield from _examples(data.get("proof", []))
    sites = [str(site["path"]) for site in data.get("sites", [])]
    outside = [path for path in data.get("changed_modules", []) if not any(below(path, site) for site in sites)]
    if outside:
        yield f"it changes modules that it does not name as its sites: {', '.join(outside[:5])}"
    if data.get("changed_code"):
        yield f"code that is not the model's was replaced: {', '.join(data['changed_code'][:5])}"
    if adapter.equivalence == "exact":
        checks = [c for c in data.get("checks", []) if c["name"] == MODULE_EQUIVALENCE and c["value"]]
        errors = [c["value"] for c in checks if any(below(c["where"], s) or below(s, c["where"]) for s in sites)]
        errors += [found["error"] for found in data.get("proof", [])] if prove else []
        if errors and max(errors) > EXACT:
            yield f"it says exact, but differs by {max(errors):.2g} in float64; that is reassociated at best"


def _examples(proof: list[Mapping[str, Any]]) -> Iterator[str]:
    if not proof:
        yield "the adapter has no examples, so nothing proves it"
    for found in proof:
        if not found["sites"]:
            yield f"example {found['name']}: the adapter finds no site in its own example"
        elif not found["complete"]:
            yield f"example {found['name']}: not float64, not undone, or another number of results"
        elif not found["error"] <= EXAMPLE:
            yield f"example {found['name']}: differs from stock by {found['error']:.2g} in float64"


def below(path: str, site: str) -> bool:
    """Whether the module at `path` is the one at `site` or inside it."""
    return site == "" or path == site or path.startswith(site + ".")
