"""How one structure is judged: the same policy in a sweep's worker and in `hf-adapters check`."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from hf_adapters.sweep.messages import Json

if TYPE_CHECKING:
    from torch import nn

    from hf_adapters.corpus.build import BuiltModel
    from hf_adapters.corpus.profiles import Profile
    from hf_adapters.validation.types import Validation

Say = Callable[[str], None]

#: Seed of the random weights: one for all, so that two sweeps build the same models.
SEED = 0


def judge(payload: Json) -> Json:
    """Judge one structure in a sweep's worker.

    Args:
        payload: `profile` (as `Profile.to_json`) and `release`.

    Returns:
        The evidence: fields of the store's verdicts, and more that is kept as details.
    """
    from hf_adapters.corpus import Profile

    try:
        return judge_profile(Profile.from_json(payload["profile"]), release=payload["release"])
    finally:
        release_memory()


def judge_profile(profile: Profile, *, release: str, say: Say | None = None) -> Json:
    """Build a profile's model with seeded random weights and validate it.

    Args:
        profile: the structure.
        release: torch-spyre release to emulate.
        say: told about each step, in words.
    """
    from hf_adapters.corpus import build_model
    from hf_adapters.corpus.errors import CorpusError

    say = say or _silent
    say(f"build: {profile.profile_id}, {profile.expected_parameter_count:,} parameters, seeded random weights")
    try:
        built = build_model(profile, seed=SEED, release=release)
    except CorpusError as error:
        return unbuildable(error)
    for name, (before, after) in built.cut.items():
        say(f"cut: {name} from {before} to {after}")
    arguments = {"profile": profile.to_json(), "release": release}
    evidence = _validate(built.model, arguments, release=release, weights="random", depth=_depth(built), say=say)
    return {**evidence, **_origin(built)}


def rebuild(profile: Mapping[str, Any], release: str) -> nn.Module:
    """The stock model of a profile, built again in the process that computes the reference values."""
    from hf_adapters.corpus import Profile, build_model

    return build_model(Profile.from_json(profile), seed=SEED, release=release).model


def unbuildable(error: Exception) -> Json:
    """Evidence for a model that cannot be built, from the typed error that says why."""
    return {
        "verdict": "unbuildable",
        "reason": str(error),
        "error_code": getattr(error, "code", None),
        "hint": getattr(error, "hint", None),
        "weights": "none",
        "depth": "none",
    }


def evidence_of(validation: Validation) -> Json:
    """A validation as the fields that the store keeps."""
    found = validation.to_dict()
    kept = found.pop("neighbours_kept")
    inputs = found.pop("inputs")
    for name in ("release", "versions", "seconds"):
        found.pop(name)
    return {
        **found,
        "inputs": {"sets": inputs, "seed": found.get("seed")},
        "neighbours_kept": None if kept is None else kept == 1.0,
        "neighbours_share": kept,
        "fallback_count": sum(validation.fallbacks.values()),
    }


def release_memory() -> None:
    """Forget what the last structure left behind: compiled code, cycles, and pages that malloc keeps.

    Dynamo counts compilations per code object, and structures of one family share it: without a reset, the ninth BERT in a
    process would silently stay uncompiled.
    """
    import torch

    torch._dynamo.reset()
    gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def _validate(
    model: nn.Module, arguments: Mapping[str, Any], *, release: str, weights: str, depth: str, say: Say
) -> Json:
    import hf_adapters
    from hf_adapters.validation.source import ModelSource

    say(f"validate: stock in another process, unpatched and patched on the emulated device ({release})")
    validation = hf_adapters.validate(
        model,
        release=release,
        weights="real" if weights == "real" else "random",
        depth=depth,
        source=ModelSource(builder=rebuild, arguments=arguments),
    )
    return evidence_of(validation)


def _depth(built: BuiltModel) -> str:
    if built.depth == "all":
        return "all layers"
    return f"distinct layers {list(built.layers)}" if built.layers else "distinct layers"


def _origin(built: BuiltModel) -> Json:
    return {
        "weights": built.weights,
        "weights_seed": built.seed,
        "cut": {name: {"before": before, "after": after} for name, (before, after) in built.cut.items()},
        "left_out": list(built.left_out),
        "calmed": dict(built.calmed),
        "elements": built.elements,
    }


def _silent(_: str) -> None:
    return None
