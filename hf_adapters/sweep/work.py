"""How one structure is judged: the same policy in a sweep's worker and in `hf-adapters check`."""

from __future__ import annotations

import ctypes
import gc
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_adapters.sweep.messages import Json
from hf_adapters.validation.source import ModelSource

if TYPE_CHECKING:
    from torch import nn

    from hf_adapters.corpus.build import BuiltModel
    from hf_adapters.corpus.profiles import Profile
    from hf_adapters.corpus.references import ModelRef
    from hf_adapters.validation.types import Validation

Say = Callable[[str], None]

#: Seed of the random weights: one for all, so that two sweeps build the same models.
SEED = 0
#: Parameter elements up to which a structure that many people use is judged with all its layers; larger ones, and from
#: a lower limit on those that few use, are judged with one layer of each kind (at least two), as the verdict says.
FULL_ELEMENTS = 400_000_000
SPARING_ELEMENTS = 60_000_000
_MANY_MODELS = 20
_MANY_DOWNLOADS = 1_000_000


def judge(payload: Json) -> Json:
    """Judge one structure in a sweep's worker.

    Args:
        payload: `profile` (as `Profile.to_json`), `release`, the `models` and `downloads` that it stands for, and
            `dtype`, the format that is forced, if any.

    Returns:
        The evidence: fields of the store's verdicts, and more that is kept as details.
    """
    from hf_adapters.corpus.profiles import Profile

    try:
        profile, budget = Profile.from_json(payload["profile"]), budget_for(payload["models"], payload["downloads"])
        return judge_profile(profile, release=payload["release"], max_elements=budget, dtype=payload.get("dtype"))
    finally:
        release_memory()


def budget_for(models: int, downloads: int) -> int:
    """Parameter elements that a structure may have before its depth is cut, by how much depends on it."""
    return FULL_ELEMENTS if models >= _MANY_MODELS or downloads >= _MANY_DOWNLOADS else SPARING_ELEMENTS


def judge_profile(
    profile: Profile,
    *,
    release: str,
    say: Say | None = None,
    max_elements: int = FULL_ELEMENTS,
    dtype: str | None = None,
) -> Json:
    """Build a profile's model with seeded random weights and validate it.

    Args:
        profile: the structure.
        release: torch-spyre release to emulate.
        say: told about each step, in words.
        max_elements: parameter elements above which vocabulary and then depth are cut.
        dtype: "float16" or "bfloat16"; None leaves the choice to the range pass.
    """
    from hf_adapters.corpus.build import build_model
    from hf_adapters.corpus.errors import CorpusError

    say = say or _silent
    say(f"build: {profile.profile_id}, {profile.expected_parameter_count:,} parameters, seeded random weights")
    try:
        built = build_model(profile, seed=SEED, max_elements=max_elements, release=release)
    except CorpusError as error:
        return unbuildable(error)
    arguments = {"profile": profile.to_json(), "release": release, "max_elements": max_elements}
    source = ModelSource(builder=rebuild_profile, arguments=arguments)
    return _judge_built(built, source, release=release, say=say, dtype=dtype)


def judge_streamed(profile: Profile, *, release: str, say: Say | None = None, dtype: str | None = None) -> Json:
    """Validate a profile's model with all its layers, of whatever size: weights are drawn one layer at a time.

    Args:
        profile: the structure.
        release: torch-spyre release to emulate.
        say: told about each step, in words.
        dtype: as in `judge_profile`.
    """
    from hf_adapters.corpus.errors import CorpusError
    from hf_adapters.corpus.streamed import build_streamed

    say = say or _silent
    say(f"build: {profile.profile_id}, one layer of each kind in memory, seeded random weights layer by layer")
    try:
        built = build_streamed(profile, seed=SEED, release=release)
    except CorpusError as error:
        return unbuildable(error)
    arguments = {"profile": profile.to_json(), "release": release, "factors": dict(built.calmed)}
    source = ModelSource(builder=rebuild_streamed, arguments=arguments)
    return _judge_built(built, source, release=release, say=say, dtype=dtype)


def judge_found(
    found: ModelRef,
    *,
    release: str,
    say: Say | None = None,
    full_depth: bool = False,
    dtype: str | None = None,
) -> Json:
    """Load a model that a reference was resolved to, with its real weights where they are at hand, and validate it.

    Args:
        found: what `hf_adapters.corpus.resolve` returned.
        release: torch-spyre release to emulate.
        say: told about each step, in words.
        full_depth: judge all layers of a model too large to be held. Its weights are read layer by layer where they
            lie in safetensors files under the names of a stock class, and are seeded random ones otherwise.
        dtype: as in `judge_profile`.

    Raises:
        CorpusError: the weights are damaged, or had to be downloaded and could not.
    """
    from hf_adapters.corpus.errors import Unbuildable
    from hf_adapters.corpus.references import load_model

    say = say or _silent
    if full_depth and _parameters(found.profile) > FULL_ELEMENTS:
        evidence = _judge_streamed_found(found, release=release, say=say, dtype=dtype)
        return {**evidence, "config_hash": found.config_hash, "weights_revision": found.revision}
    where = found.folder or "bundled profile"
    say(f"build: {found.ref} ({found.kind}, {where}), structure {found.profile.profile_id}, {found.weights} weights")
    if absent := _absent_class(found):
        say(f"note: transformers has no {absent}, which it declares; {found.profile.architecture_class} is judged")
    try:
        built = load_model(found, seed=SEED, release=release)
    except Unbuildable as error:
        return unbuildable(error)
    if found.weights == "real" and built.weights != "real":
        say("too large for its real weights here: cut, with seeded random weights")
    source = ModelSource(builder=rebuild_found, arguments={"found": found, "release": release})
    evidence = _judge_built(built, source, release=release, say=say, dtype=dtype)
    return {**evidence, "config_hash": found.config_hash, "weights_revision": found.revision}


def _parameters(profile: Profile) -> int:
    """Parameter elements of the text tower; 0 for one that cannot be built, which its build then says."""
    from hf_adapters.corpus.architectures import count_parameters, declared, text_tower
    from hf_adapters.corpus.errors import CorpusError

    if profile.expected_parameter_count:
        return profile.expected_parameter_count
    try:
        model_class, config, _ = text_tower(*declared(profile))
        return count_parameters(model_class, config)
    except CorpusError:
        return 0


def _judge_streamed_found(found: ModelRef, *, release: str, say: Say, dtype: str | None) -> Json:
    from hf_adapters.corpus.errors import Unbuildable
    from hf_adapters.corpus.real import streamable_folder
    from hf_adapters.corpus.streamed_files import stream_files

    folder = streamable_folder(found)
    if folder is None:
        if found.weights == "real":
            say("its weights cannot be streamed (no safetensors files of a stock class): seeded random ones instead")
        return judge_streamed(found.profile, release=release, say=say, dtype=dtype)
    say(f"build: {found.ref}, one layer of each kind in memory, the others read from {folder} as they are needed")
    try:
        built = stream_files(found.profile, folder, seed=SEED, release=release)
    except Unbuildable as error:
        return unbuildable(error)
    arguments = {"profile": found.profile.to_json(), "folder": str(folder), "release": release}
    source = ModelSource(builder=rebuild_files, arguments=arguments)
    return _judge_built(built, source, release=release, say=say, dtype=dtype)


def _absent_class(found: ModelRef) -> str | None:
    from hf_adapters.corpus.match import absent_class, parse_config

    if found.folder is None or found.allow_remote_code:
        return None
    path = found.folder / "config.json"
    return absent_class(parse_config(path.read_bytes(), str(path)), found.ref)


def rebuild_profile(profile: Mapping[str, Any], release: str, max_elements: int) -> nn.Module:
    """The stock model of a profile, built again in the process that computes the reference values."""
    from hf_adapters.corpus.build import build_model
    from hf_adapters.corpus.profiles import Profile

    found = Profile.from_json(profile)
    model: nn.Module = build_model(found, seed=SEED, max_elements=max_elements, release=release).model
    return model


def rebuild_streamed(profile: Mapping[str, Any], release: str, factors: Mapping[str, float]) -> nn.Module:
    """The stock carrier of a streamed profile, built again in the process that computes the reference values."""
    from hf_adapters.corpus.profiles import Profile
    from hf_adapters.corpus.streamed import build_streamed

    model: nn.Module = build_streamed(Profile.from_json(profile), seed=SEED, release=release, factors=factors).model
    return model


def rebuild_files(profile: Mapping[str, Any], folder: str, release: str) -> nn.Module:
    """The stock carrier of a checkpoint, built again in the process that computes the reference values."""
    from hf_adapters.corpus.profiles import Profile
    from hf_adapters.corpus.streamed_files import stream_files

    model: nn.Module = stream_files(Profile.from_json(profile), Path(folder), seed=SEED, release=release).model
    return model


def rebuild_found(found: ModelRef, release: str) -> nn.Module:
    """The stock model of a resolved reference, loaded again in the process that computes the reference values."""
    from hf_adapters.corpus.references import load_model

    model: nn.Module = load_model(found, seed=SEED, release=release).model
    return model


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


def describe_adapters(applied: Mapping[str, str]) -> list[Json]:
    """What the store keeps about each version of an adapter, for those that were applied (name -> hash)."""
    from hf_adapters.catalogue import catalogue

    return [
        {
            "name": adapter.name,
            "hash": applied[adapter.name],
            "summary": adapter.summary,
            "equivalence": adapter.equivalence,
            "rules": list(adapter.rules),
            "releases": None if adapter.releases is None else list(adapter.releases),
        }
        for adapter in catalogue()
        if adapter.name in applied
    ]


def release_memory() -> None:
    """Forget what the last structure left behind: compiled code, cycles, and pages that malloc keeps.

    Dynamo counts compilations per code object, and structures of one family share it: without a reset, the ninth BERT
    in a process would silently stay uncompiled.
    """
    import torch

    torch._dynamo.reset()
    gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def _judge_built(built: BuiltModel, source: ModelSource, *, release: str, say: Say, dtype: str | None) -> Json:
    import hf_adapters
    from hf_adapters.validation.ranges import DTYPES
    from spyre_backend.errors import DowncastWarning, FallbackWarning

    for name, (before, after) in built.cut.items():
        say(f"cut: {name} from {before} to {after}")
    say(f"validate: stock in a process of its own, then unpatched and patched on the emulated device ({release})")
    with warnings.catch_warnings():
        # Fallbacks are counted and stored with the verdict; a warning for each would only hide the steps.
        for noise in (DowncastWarning, FallbackWarning):
            warnings.simplefilter("ignore", noise)
        validation = hf_adapters.validate(
            built.model,
            release=release,
            weights="real" if built.weights == "real" else "random",
            depth=_depth(built),
            source=source,
            dtype=None if dtype is None else next(known for name, known in DTYPES.items() if name == dtype),
        )
    return {**evidence_of(validation), **_origin(built), "catalogue": describe_adapters(validation.adapters)}


def _depth(built: BuiltModel) -> str:
    if built.depth == "all":
        return "all layers"
    if built.depth == "full":
        return f"full depth, {len(built.layers or ())} layers, weights streamed"
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
