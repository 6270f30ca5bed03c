"""What a reference to a model means: a profile, a local folder, a cached or a published model."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from hf_adapters.corpus.errors import (
    ConfigInvalid,
    ModelNotFound,
    NetworkUnavailable,
)
from hf_adapters.corpus.profiles import Profile, load_profiles
from hf_adapters.corpus.signature import config_hash

if TYPE_CHECKING:
    from hf_adapters.corpus.build import BuiltModel

Kind = Literal["profile", "folder", "cache", "hub"]
_WEIGHT_FILES = ("*.safetensors", "pytorch_model*.bin")
_SUBFOLDER = "0_Transformer"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRef:
    """What a reference was resolved to.

    `folder` holds config.json (None for a bundled profile). `weights` says whether real weights lie there or can
    be downloaded ("real"), or have to be drawn ("random"). `revision` is the commit of a published model. `task` is the
    one whose adapters are merged into the weights.
    """

    ref: str
    kind: Kind
    profile: Profile
    weights: Literal["real", "random"]
    folder: Path | None = None
    model_id: str | None = None
    revision: str | None = None
    config_hash: str
    allow_remote_code: bool = False
    task: str | None = None


def resolve(ref: str, *, allow_remote_code: bool = False, online: bool | None = None) -> ModelRef:
    """Find out what a reference means. In this order it is looked for as

    1. the id of a bundled profile (`bert.base/v30522`),
    2. a local folder with config.json (also that of a SentenceTransformer),
    3. a model id in the local Hub cache,
    4. the representative checkpoint of a bundled profile,
    5. a model id on the Hub (only config.json is fetched).

    Args:
        ref: profile id, path, or model id.
        allow_remote_code: accept models whose class is in their own repository.
        online: False never asks the Hub, True asks it before step 4, None asks it only as the last step.

    Raises:
        ModelNotFound: nothing goes by this name.
        ConfigInvalid: its config.json is absent, damaged, or of an unknown model type.
        RemoteCodeRequired: it needs code from its repository and that was not allowed.
        GatedModel: the Hub wants its owner's permission first.
        NetworkUnavailable: the Hub had to be asked and did not answer.
    """
    ref = ref.strip()
    if not ref:
        raise ModelNotFound("an empty name is no model", hint="give a model id, a folder, or a profile id")
    profiles = load_profiles()
    if ref in profiles:
        return _of_profile(ref, profiles[ref])
    path = Path(ref).expanduser()
    if path.exists() or ref.startswith((".", "/", "~")):
        return _of_folder(ref, path, allow_remote_code)
    if online is not True:
        cached = _cached_folder(ref)
        if cached is not None:
            return _of_published(ref, cached, "cache", allow_remote_code)
        for profile in profiles.values():
            if profile.representative_checkpoint == ref:
                return _of_profile(ref, profile)
    if online is False:
        raise ModelNotFound(
            f"{ref!r} is no profile, no folder, and not in the local Hub cache", hint="allow the Hub to be asked"
        )
    return _of_published(ref, _fetch(ref), "hub", allow_remote_code)


def load_model(
    found: ModelRef, *, seed: int = 0, max_elements: int | None = None, release: str | None = None
) -> BuiltModel:
    """Build a resolved model: with its real weights where they are at hand and fit, else with seeded random ones.

    Args:
        found: what `resolve` returned.
        seed: of random weights (also of single ones that the files lack).
        max_elements: see `build_model`; None takes its default.
        release: see `build_model`.

    Raises:
        Unbuildable, ConfigInvalid: see `build_model`.
        WeightsInvalid: the weights are damaged.
    """
    from hf_adapters.corpus.build import MAX_ELEMENTS, build_model
    from hf_adapters.corpus.real import load_real

    limit = MAX_ELEMENTS if max_elements is None else max_elements
    if found.weights == "real":
        built = load_real(found, seed=seed, max_elements=limit, release=release)
        if built is not None:
            return built
    return build_model(found.profile, seed=seed, max_elements=limit, release=release)


def config_folder(folder: Path) -> Path:
    """The folder that holds config.json: the one given, or the transformer module of a SentenceTransformer.

    Raises:
        ConfigInvalid: there is no config.json, or modules.json is damaged.
    """
    if (folder / "config.json").is_file():
        return folder
    modules = folder / "modules.json"
    if modules.is_file():
        try:
            listed = json.loads(modules.read_text(encoding="utf-8"))
            first = str(listed[0]["path"])
        except (ValueError, LookupError, TypeError) as error:
            raise ConfigInvalid(f"{modules} is not a list of modules: {error}") from error
        if (folder / first / "config.json").is_file():
            return folder / first
    raise ConfigInvalid(f"{folder} holds no config.json", hint="name the folder that save_pretrained wrote")


def has_weights(folder: Path) -> bool:
    """Whether weights lie next to a config."""
    return any(True for pattern in _WEIGHT_FILES for _ in folder.glob(pattern))


def _of_profile(ref: str, profile: Profile) -> ModelRef:
    return ModelRef(ref=ref, kind="profile", profile=profile, weights="random", config_hash=config_hash(profile.config))


def _of_folder(ref: str, path: Path, allow_remote_code: bool) -> ModelRef:
    if not path.is_dir():
        raise ModelNotFound(f"{ref!r} is no folder", hint="name the folder that holds config.json")
    return _from_files(ref, config_folder(path), "folder", allow_remote_code)


def _of_published(ref: str, folder: Path, kind: Kind, allow_remote_code: bool) -> ModelRef:
    return _from_files(ref, folder, kind, allow_remote_code)


def _from_files(ref: str, folder: Path, kind: Kind, allow_remote_code: bool) -> ModelRef:
    from hf_adapters.corpus.match import parse_config, profile_of

    values = parse_config((folder / "config.json").read_bytes(), str(folder / "config.json"))
    published = kind in ("cache", "hub")
    return ModelRef(
        ref=ref,
        kind=kind,
        profile=profile_of(values, ref, allow_remote_code=allow_remote_code),
        # Of a published model, weights are fetched when it is loaded.
        weights="real" if kind == "hub" or has_weights(folder) else "random",
        folder=folder,
        model_id=ref if published else None,
        revision=_revision(folder) if published else None,
        config_hash=config_hash(values),
        allow_remote_code=allow_remote_code,
    )


def _revision(folder: Path) -> str | None:
    """The commit of a cached snapshot: .../snapshots/<commit>/..."""
    parts = folder.parts
    return parts[parts.index("snapshots") + 1] if "snapshots" in parts[:-1] else None


def _cached_folder(model_id: str) -> Path | None:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        for name in ("config.json", f"{_SUBFOLDER}/config.json"):
            found = try_to_load_from_cache(model_id, name)
            if isinstance(found, str):
                return Path(found).parent
    except HFValidationError as error:
        raise ModelNotFound(
            f"{model_id!r} is no profile, no folder, and cannot be a model id",
            hint="a model id looks like owner/name",
        ) from error
    return None


def _fetch(model_id: str) -> Path:
    from hf_adapters.corpus.hub import download_config, hub_reachable

    if not hub_reachable():
        raise NetworkUnavailable(
            f"{model_id!r} is no profile, no folder and not cached, and the Hub cannot be reached to ask for it",
            hint="check the name, the network and HF_ENDPOINT; `hf-adapters corpus info` lists what is bundled",
        )
    return download_config(model_id).parent
