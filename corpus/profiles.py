"""Structural profiles: configs that stand for the many models that share them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from hf_adapters.corpus import own

Confidence = Literal["exact", "inferred"]

_REQUIRED = ("profile_id", "shape_id", "architecture_class", "config")


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A config and what is known about the models that it stands for.

    `profile_id` is `<shape_id>/v<vocabulary>`; a shape is a profile without its vocabulary.
    `config` is what `CONFIG_MAPPING[model_type](**config)` takes. `expected_parameter_count` counts the
    distinct elements of the parameters of `architecture_class`. `confidence` says whether that count was
    matched exactly by published checkpoints or inferred.
    """

    profile_id: str
    shape_id: str
    model_type: str
    architecture_class: str
    config: Mapping[str, Any]
    representative_checkpoint: str = ""
    expected_parameter_count: int = 0
    pooling: Mapping[str, int]
    confidence: Confidence = "inferred"
    rows: int = 0
    downloads: int = 0

    @property
    def common_pooling(self) -> str:
        """The pooling that most of its models declare ("mean" when none does)."""
        known = {name: count for name, count in self.pooling.items() if name != "unknown"}
        return max(known, key=lambda name: (known[name], name)) if known else "mean"

    def to_json(self) -> dict[str, Any]:
        """Plain data, accepted by `from_json`."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Profile:
        """Rebuild a profile from `to_json` or from one line of the bundled file.

        Raises:
            ValueError: a required field is missing.
        """
        missing = [name for name in _REQUIRED if name not in data]
        if missing:
            raise ValueError(f"profile {data.get('profile_id')!r} lacks {', '.join(missing)}")
        known = {name: data[name] for name in cls.__dataclass_fields__ if name in data}
        # The bundled lines name the type in the config only.
        known.setdefault("model_type", data["config"].get("model_type", ""))
        known.setdefault("pooling", {})
        return cls(**known)


def iter_profiles(text: str) -> Iterator[Profile]:
    """Profiles of a JSON-lines text, in its order."""
    for line in text.splitlines():
        if line.strip():
            yield Profile.from_json(json.loads(line))


@cache
def _bundled() -> Mapping[str, Profile]:
    text = files("hf_adapters.corpus").joinpath("data/profiles.jsonl").read_text(encoding="utf-8")
    found = {profile.profile_id: profile for profile in iter_profiles(text)}
    for line in own.bundled():
        before = found.get(line["profile_id"]) or _own_profile(line["profile_id"], found)
        found[before.profile_id] = replace(
            before,
            rows=before.rows + len(line["ranks"]),
            downloads=before.downloads + line["downloads"],
            pooling=_added(before.pooling, line["pooling"]),
        )
    for line in own.bundled():
        if line["replaces"]:
            _take(found, line)
    return found


def _take(found: dict[str, Profile], line: Mapping[str, Any]) -> None:
    """Take the models of a line away from the profile that they had; without models, it goes."""
    before = found[line["replaces"]]
    left = before.rows - len(line["ranks"])
    if not left:
        del found[before.profile_id]
        return
    found[before.profile_id] = replace(
        before,
        rows=left,
        downloads=before.downloads - line["downloads"],
        pooling=_added(before.pooling, {name: -count for name, count in line["pooling"].items()}),
        # Its best-known model is among those that went.
        representative_checkpoint="",
    )


def _own_profile(profile_id: str, census: Mapping[str, Profile]) -> Profile:
    variant = own.VARIANTS.get(profile_id)
    if variant is not None:
        base = census[variant.base]
        config = {**base.config, **variant.changes}
        return replace(
            base,
            profile_id=profile_id,
            shape_id=profile_id.partition("/")[0],
            model_type=config["model_type"],
            architecture_class=variant.architecture_class or base.architecture_class,
            config=config,
            representative_checkpoint=variant.checkpoint,
            expected_parameter_count=base.expected_parameter_count + variant.added,
            pooling={},
            rows=0,
            downloads=0,
        )
    structure = own.STRUCTURES[profile_id]
    return Profile(
        profile_id=profile_id,
        shape_id=profile_id.partition("/")[0],
        model_type=structure.config["model_type"],
        architecture_class=structure.architecture_class,
        config=structure.config,
        representative_checkpoint=structure.checkpoint,
        expected_parameter_count=structure.count,
        pooling={},
        confidence=structure.confidence,  # type: ignore[arg-type]
    )


def _added(before: Mapping[str, int], more: Mapping[str, int]) -> dict[str, int]:
    sums = {name: before.get(name, 0) + more.get(name, 0) for name in [*before, *(set(more) - set(before))]}
    return {name: count for name, count in sums.items() if count}


def load_profiles() -> dict[str, Profile]:
    """The bundled profiles by id, most widespread first."""
    return dict(_bundled())
