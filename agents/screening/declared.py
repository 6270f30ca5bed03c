"""What a draft says of its adapter, read from the literal arguments of `ADAPTER = Adapter(...)`."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import Any

import libcst as cst

_NAME = re.compile(r"[a-z][a-z0-9_]{2,47}")
_LITERALS = ("name", "summary", "rules", "equivalence", "releases", "architectures", "order")
_CALLABLES = ("sites", "apply", "examples")
_EQUIVALENCES = ("exact", "reassociated", "padded")


@dataclass(frozen=True, kw_only=True, slots=True)
class Declared:
    """The claims of an adapter file; see `hf_adapters.protocols.Adapter`."""

    name: str
    summary: str
    rules: tuple[str, ...]
    equivalence: str
    releases: tuple[str, ...] | None
    order: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Drafted:
    """A draft that passed the screen."""

    adapter: Declared
    source: str


def declared(module: cst.Module) -> tuple[Declared | None, list[tuple[int, str]]]:
    """The claims, and what is missing or not written as a literal."""
    calls = [call for statement in module.body if (call := _adapter_call(statement)) is not None]
    if len(calls) != 1:
        return None, [(1, "a file needs exactly one module-level ADAPTER = Adapter(...)")]
    given: dict[str, Any] = {}
    problems: list[tuple[int, str]] = []
    for argument in calls[0].args:
        key = argument.keyword.value if argument.keyword is not None else None
        if key is None or argument.star:
            problems.append((1, "Adapter(...) takes keyword arguments only"))
        elif key in _LITERALS:
            try:
                given[key] = ast.literal_eval(module.code_for_node(argument.value))
            except (ValueError, SyntaxError):
                problems.append((1, f"Adapter: {key} has to be a literal"))
        elif key in _CALLABLES:
            given[key] = True
        else:
            problems.append((1, f"Adapter has no argument {key}"))
    problems += [(1, text) for text in _wrong(given)]
    if problems:
        return None, problems
    return (
        Declared(
            name=given["name"],
            summary=given["summary"],
            rules=tuple(given["rules"]),
            equivalence=given["equivalence"],
            releases=None if given.get("releases") is None else tuple(given["releases"]),
            order=given.get("order", 100),
        ),
        [],
    )


def _adapter_call(statement: cst.CSTNode) -> cst.Call | None:
    if not isinstance(statement, cst.SimpleStatementLine):
        return None
    for small in statement.body:
        if isinstance(small, cst.Assign):
            targets, value = [target.target for target in small.targets], small.value
        elif isinstance(small, cst.AnnAssign) and small.value is not None:
            targets, value = [small.target], small.value
        else:
            continue
        names = [target.value for target in targets if isinstance(target, cst.Name)]
        called = isinstance(value, cst.Call) and isinstance(value.func, cst.Name) and value.func.value == "Adapter"
        if "ADAPTER" in names and called and isinstance(value, cst.Call):
            return value
    return None


def _wrong(given: dict[str, Any]) -> list[str]:
    found = [f"Adapter: {key} is missing" for key in ("name", "summary", "rules", "equivalence") if key not in given]
    found += [f"Adapter: {key} is missing" for key in _CALLABLES if key not in given]
    if found:
        return found
    if not isinstance(given["name"], str) or not _NAME.fullmatch(given["name"]):
        found.append("Adapter: name has to be lower case, 3 to 48 letters, digits and underscores")
    if not isinstance(given["summary"], str) or not 10 <= len(given["summary"]) <= 300 or "\n" in given["summary"]:
        found.append("Adapter: summary has to be one sentence of 10 to 300 characters")
    if given["equivalence"] not in _EQUIVALENCES:
        found.append(f"Adapter: equivalence has to be one of {', '.join(_EQUIVALENCES)}")
    if not _strings(given["rules"]) or not given["rules"]:
        found.append("Adapter: rules has to name at least one device rule")
    if given.get("releases") is not None and not (_strings(given["releases"]) and given["releases"]):
        found.append("Adapter: releases has to be None or a tuple of names")
    if not _strings(given.get("architectures", ())):
        found.append("Adapter: architectures has to be a tuple of model types")
    if type(given.get("order", 100)) is not int or not 0 <= given.get("order", 100) <= 1000:
        found.append("Adapter: order has to be a number from 0 to 1000")
    return found


def _strings(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and all(isinstance(item, str) for item in value)
