"""Reads release files and turns them into `Capabilities`.

A file `YYYY_MM.toml` describes one release. `include` lists further files whose tables are merged in (rules and
operators have their own files to keep each readable), `extends` names the release that this one changes.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from dataclasses import fields, replace
from functools import cache
from importlib import resources
from typing import Any, TypeVar

from spyre_backend.capabilities.model import (
    SUPPORT,
    Capabilities,
    DType,
    DTypes,
    Limits,
    Numerics,
    OperatorEntry,
    Rule,
    Settings,
    SilentBug,
    Support,
)

_T = TypeVar("_T")
_RELEASE_FILE = re.compile(r"(\d{4})_(\d{2})\.toml")
_WHOLE_ENTRIES = ("operators", "rules")
"""Tables whose entries a later file replaces as a whole: half an operator entry of another release would be a lie."""


class UnknownRelease(ValueError):
    """A torch-spyre release was named for which no capability file exists."""

    code = "E_UNKNOWN_RELEASE"


class CapabilityFileError(ValueError):
    """A capability file is malformed: unknown key, missing key, unknown rule id or support level."""

    code = "E_CAPABILITY_FILE"


@cache
def available() -> tuple[str, ...]:
    """Names of the emulated releases, oldest first, e.g. `("2026.07", "2026.09")`."""
    names = (_RELEASE_FILE.fullmatch(entry.name) for entry in resources.files(__package__).iterdir())
    return tuple(sorted(f"{m.group(1)}.{m.group(2)}" for m in names if m))


@cache
def load(name: str) -> Capabilities:
    """Capabilities of the release `name` ("2026.07").

    Raises:
        UnknownRelease: no file for this name; the message lists the names that exist.
        CapabilityFileError: the file is malformed.
    """
    if name not in available():
        raise UnknownRelease(f"unknown torch-spyre release {name!r}; available: {', '.join(available())}")
    return _build(name, _read_release(name))


@cache
def with_bugs(release: Capabilities, names: str) -> Capabilities:
    """The release with these silent bugs (names, separated by commas) switched on, under a fingerprint of its own.

    Raises:
        CapabilityFileError: no file describes a bug of this name, or nothing emulates it.
    """
    wanted = sorted({name.strip() for name in names.split(",") if name.strip()})
    bugs = dict(release.settings.silent_bugs)
    for name in wanted:
        if name not in bugs or not bugs[name].emulated:
            known = ", ".join(sorted(key for key, bug in bugs.items() if bug.emulated))
            raise CapabilityFileError(f"silent bug {name!r} cannot be switched on; there are: {known}")
        bugs[name] = replace(bugs[name], enabled=True)
    marked = f"{release.fingerprint}+{'+'.join(wanted)}" if wanted else release.fingerprint
    return replace(release, settings=replace(release.settings, silent_bugs=bugs), fingerprint=marked)


def load_as(name: str, fingerprint: str) -> Capabilities:
    """Capabilities of the release `name` with the silent bugs that were on when a program got this fingerprint.

    Raises:
        UnknownRelease: no file for this name.
    """
    release = load(name)
    return with_bugs(release, ",".join(part for part in fingerprint.split("+") if part in release.settings.silent_bugs))


def _read_release(name: str) -> dict[str, Any]:
    """Merged tables of a release: what it extends, then its includes, then the file itself."""
    main = _read_file(name.replace(".", "_") + ".toml")
    merged: dict[str, Any] = _read_release(main.pop("extends")) if "extends" in main else {}
    for included in main.pop("include", []):
        _merge(merged, _read_file(included))
    _merge(merged, main)
    return merged


def _read_file(filename: str) -> dict[str, Any]:
    text = resources.files(__package__).joinpath(filename).read_text(encoding="utf-8")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise CapabilityFileError(f"{filename} is not valid TOML: {error}") from error


def _merge(base: dict[str, Any], update: dict[str, Any], table: str = "") -> None:
    for key, value in update.items():
        if isinstance(value, dict) and isinstance(base.get(key), dict) and table not in _WHOLE_ENTRIES:
            _merge(base[key], value, key)
        else:
            base[key] = value


def _build(name: str, data: dict[str, Any]) -> Capabilities:
    fingerprint = hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
    rules = {key: _record(Rule, f"rules.{key}", {"id": key, **entry}) for key, entry in data["rules"].items()}
    operators = {key: _operator(key, entry) for key, entry in data["operators"].items()}
    defaults = data["defaults"]
    capabilities = Capabilities(
        release=name,
        title=data["title"],
        limits=_record(Limits, "limits", data["limits"]),
        numerics=_record(Numerics, "numerics", data["numerics"]),
        dtypes=_dtypes(data["dtypes"], data["limits"]["elems_per_stick"]),
        settings=_settings(data["settings"]),
        rules=rules,
        operators=operators,
        default_compiled=_support("defaults", defaults["compiled"]),
        default_eager=_support("defaults", defaults["eager"]),
        default_rule=defaults["rule"],
        fingerprint=fingerprint,
    )
    for key, entry in operators.items():
        if entry.rule not in rules:
            raise CapabilityFileError(f"release {name}: operator {key} names the unknown rule {entry.rule!r}")
    return capabilities


def _record(cls: type[_T], where: str, values: dict[str, Any]) -> _T:
    """Build a dataclass from a table, naming the keys that are missing or unknown."""
    known = {f.name for f in fields(cls)}  # type: ignore[arg-type]
    unknown = sorted(set(values) - known)
    if unknown:
        raise CapabilityFileError(f"[{where}] has unknown keys: {', '.join(unknown)}")
    try:
        return cls(**values)
    except TypeError as error:
        raise CapabilityFileError(f"[{where}] is incomplete: {error}") from error


def _support(where: str, value: str) -> Support:
    for level in SUPPORT:
        if value == level:
            return level
    raise CapabilityFileError(f"[{where}] has the support level {value!r}; one of {', '.join(SUPPORT)} is needed")


def _operator(name: str, entry: dict[str, Any]) -> OperatorEntry:
    where = f'operators."{name}"'
    for column in ("compiled", "eager"):
        _support(where, entry.get(column, "missing"))
    return _record(OperatorEntry, where, {"name": name, **entry})


def _dtypes(data: dict[str, Any], stick_elems: dict[str, int]) -> DTypes:
    formats = {
        key: DType(
            name=key,
            host_format=entry.get("host", ""),
            device_format=entry.get("device", ""),
            stick_elems=stick_elems.get(key, 0),
            refused="device" not in entry,
            note=entry.get("note", ""),
        )
        for key, entry in data["formats"].items()
    }
    return DTypes(
        formats=formats,
        fp32_ops=frozenset(data["fp32_ops"]),
        int32_ops=frozenset(data["int32_ops"]),
        int64_ops=frozenset(data["int64_ops"]),
        bool_ops=frozenset(data["bool_ops"]),
        casts={(source, target): op for source, row in data["casts"].items() for target, op in row.items()},
    )


def _settings(data: dict[str, Any]) -> Settings:
    values = dict(data)
    bugs = values.pop("silent_bugs", {})
    values["silent_bugs"] = {
        key: _record(SilentBug, f"settings.silent_bugs.{key}", {"name": key, **bug}) for key, bug in bugs.items()
    }
    return _record(Settings, "settings", values)
