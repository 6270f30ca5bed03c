"""Which profiles share one structure: the same operations, shapes and constants, hence the same verdict."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from hf_adapters.corpus.profiles import Profile

_VOCABULARY = "vocab_size"
#: Names, provenance, token ids and training settings: they change no operation of an encoder's forward.
IRRELEVANT = frozenset(
    {
        "_name_or_path",
        "architectures",
        "attention_dropout",
        "attention_probs_dropout_prob",
        "auto_map",
        "bos_token_id",
        "classifier_dropout",
        "cls_token_id",
        "decoder_start_token_id",
        "dropout",
        "dtype",
        "embd_pdrop",
        "eos_token_id",
        "hidden_dropout_prob",
        "id2label",
        "initializer_factor",
        "initializer_range",
        "label2id",
        "mask_token_id",
        "pad_token_id",
        "sep_token_id",
        "torch_dtype",
        "transformers_version",
        "unk_token_id",
    }
)
_LENGTH = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class StructureGroup:
    """Profiles with one signature; `representative` is the one with the most downloads."""

    signature: str
    representative: Profile
    profiles: tuple[Profile, ...]


def embeddings_on_device(release: str | None) -> bool:
    """Whether a release looks token embeddings up on the device (then the size of the table matters).

    Raises:
        UnknownRelease: there is no such release (a ValueError).
    """
    if release is None:
        return False
    from spyre_backend import capabilities

    entry = capabilities.load(release).operator("aten.embedding.default")
    return entry is not None and entry.compiled in ("native", "decomposed")


def structural_signature(profile: Profile, release: str | None = None) -> str:
    """Hash of everything in a profile that decides what is compiled and computed.

    The vocabulary is left out, unless the release looks embeddings up on the device: then the table is a
    tensor that the device addresses, and its span has a limit.

    Args:
        profile: any profile.
        release: emulated torch-spyre release; None leaves the vocabulary out.

    Returns:
        16 hexadecimal digits.

    Raises:
        UnknownRelease: there is no such release (a ValueError).
    """
    return _signature(profile, keep_vocabulary=embeddings_on_device(release))


def group_profiles(profiles: Iterable[Profile], release: str | None = None) -> dict[str, StructureGroup]:
    """Group profiles by signature; groups and their members come with the most downloads first."""
    keep_vocabulary = embeddings_on_device(release)
    members: dict[str, list[Profile]] = {}
    for profile in sorted(profiles, key=lambda item: (-item.downloads, item.profile_id)):
        members.setdefault(_signature(profile, keep_vocabulary=keep_vocabulary), []).append(profile)
    return {
        signature: StructureGroup(signature=signature, representative=found[0], profiles=tuple(found))
        for signature, found in members.items()
    }


def config_hash(config: Mapping[str, Any]) -> str:
    """Hash of a whole config, for provenance."""
    return _digest(config)


def _signature(profile: Profile, *, keep_vocabulary: bool) -> str:
    essence = {
        "architecture": profile.architecture_class,
        "model_type": profile.model_type,
        "config": _essence(profile.config, keep_vocabulary=keep_vocabulary),
    }
    return _digest(essence)


def _essence(config: Mapping[str, Any], *, keep_vocabulary: bool) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for name, value in config.items():
        if name in IRRELEVANT or (name == _VOCABULARY and not keep_vocabulary):
            continue
        kept[name] = _essence(value, keep_vocabulary=keep_vocabulary) if isinstance(value, Mapping) else value
    return kept


def _digest(data: Any) -> str:
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:_LENGTH]
