"""Stream the layers of a published model from its safetensors files: one layer lies in memory at a time.

Every weight has to find its place, as when a model is loaded whole. Only the vocabulary is cut, as in `streamed.py`:
the rows of the first tokens stay, and those of special tokens whose ids were moved move with them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hf_adapters.corpus.build import BuiltModel
from hf_adapters.corpus.errors import WeightsInvalid
from hf_adapters.corpus.streamed import Carrier, build_carrier
from hf_adapters.corpus.weights import draw_weights
from hf_adapters.validation.streaming import LayerStream, attach

if TYPE_CHECKING:
    from hf_adapters.corpus.profiles import Profile

#: What checkpoints may hold besides the weights of an encoder: heads, and tables that are computed today.
_HEADS = ("lm_head.", "classifier.", "score.")
_COMPUTED = re.compile(r"rotary_emb\.inv_freq$|position_ids$|masked_bias$|attn\.bias$")
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class FileLayers:
    """Weights of the layers of a checkpoint, float32; see `LayerWeights`.

    Attributes:
        files: for each tensor the file that holds it.
        prefix: what the files put before the model's own names, and the path of the list of layers.
        kinds: for each layer its kind.
        names: for each kind the parameters and their shapes.
    """

    files: Mapping[str, str]
    prefix: str
    kinds: tuple[int, ...]
    names: tuple[Mapping[str, tuple[int, ...]], ...]

    def __call__(self, index: int) -> Iterator[tuple[str, Tensor]]:
        """See `LayerWeights`.

        Raises:
            WeightsInvalid: a tensor has another shape, or its file is damaged.
        """
        for name, shape in self.names[self.kinds[index]].items():
            full_name = f"{self.prefix}.{index}.{name}"
            yield name, _read(self.files, full_name, shape)


def safetensors_files(folder: Path) -> dict[str, str]:
    """The tensors of the safetensors files in a folder, by name, with the file of each; empty without such files.

    Raises:
        WeightsInvalid: a file is damaged.
    """
    from safetensors import SafetensorError, safe_open

    found: dict[str, str] = {}
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="pt") as opened:
                found.update(dict.fromkeys(opened.keys(), str(path)))
        except (SafetensorError, OSError) as error:
            raise WeightsInvalid(f"{path} cannot be read: {error}", hint="the file may be cut off") from error
    return found


def stream_files(profile: Profile, folder: Path, *, seed: int = 0, release: str | None = None) -> BuiltModel:
    """Build the carrier of a model's text tower, float32 on the CPU, whose layers are read from `folder`.

    Args:
        profile: structure of the model; one of repeated layers.
        folder: holds its safetensors files.
        seed: of the weights of a pooler that the files lack.
        release: see `build_model`.

    Raises:
        ConfigInvalid, NoTextInputs, Unbuildable: see `build_streamed`.
        WeightsInvalid: a weight is missing, left over, damaged, or of another shape.
    """
    built = build_carrier(profile, release)
    files = safetensors_files(folder)
    own = _names_of_whole(built)
    prefix = _prefix(files, own, built, folder)
    # A pooler is often absent; what has no weights is drawn, as for a model that is loaded whole.
    draw_weights(built.model, built.signature, seed)
    _fill_rest(built, files, prefix)
    _check_shapes(built, files, prefix)
    names = tuple(
        {name: tuple(parameter.shape) for name, parameter in layer.named_parameters()} for layer in built.layers
    )
    layers = FileLayers(files, prefix + built.path, built.kinds, names)
    attach(built.model, LayerStream(built.path, built.kinds, layers))
    return BuiltModel(
        model=built.model,
        profile=profile,
        signature=built.signature,
        seed=seed,
        depth="full",
        elements=built.elements,
        weights="real",
        cut=built.changes,
        layers=tuple(range(len(built.kinds))),
        left_out=built.left_out,
    )


def _names_of_whole(built: Carrier) -> frozenset[str]:
    """Names of the parameters of the whole model; tied ones once, by the name that comes first."""
    rest = {name for name, _ in built.model.named_parameters() if not name.startswith(f"{built.path}.")}
    layers = [[name for name, _ in layer.named_parameters()] for layer in built.layers]
    every = {f"{built.path}.{index}.{name}" for index, kind in enumerate(built.kinds) for name in layers[kind]}
    return frozenset(rest | every)


def _prefix(files: Mapping[str, str], own: frozenset[str], built: Carrier, folder: Path) -> str:
    """What the files put before the model's own names ("model." in those of a decoder with its head)."""
    needed = [name for name in own if "pooler." not in name]
    sample = max(needed, key=lambda name: (name.count("."), name))
    prefixes = [name.removesuffix(sample) for name in files if name == sample or name.endswith(f".{sample}")]
    class_name = type(built.model).__name__
    found = next((prefix for prefix in prefixes if all(prefix + name in files for name in needed)), None)
    if found is None:
        near = min(prefixes, key=lambda prefix: sum(prefix + name not in files for name in needed), default="")
        raise _foreign(folder, class_name, [name for name in needed if near + name not in files], [])
    left = [name for name in files if name.startswith(found) and name.removeprefix(found) not in own]
    parts = {name.partition(".")[0] for name in own}
    if built.left_out:  # without a prefix, other towers lie beside the parts of the text tower
        left = [name for name in left if name.removeprefix(found).partition(".")[0] in parts]
    if strangers := [name for name in left if not name.startswith(_HEADS) and not _COMPUTED.search(name)]:
        raise _foreign(folder, class_name, [], strangers)
    return found


def _foreign(folder: Path, class_name: str, missing: list[str], unexpected: list[str]) -> WeightsInvalid:
    return WeightsInvalid(
        f"the weights in {folder} are not those of {class_name}: missing {sorted(missing)[:_SHOWN] or 'none'}, "
        f"unexpected {sorted(unexpected)[:_SHOWN] or 'none'}",
        hint="a weight that is not found would be random",
    )


def _check_shapes(built: Carrier, files: Mapping[str, str], prefix: str) -> None:
    """Look at every layer before the first one runs: the headers say the shapes."""
    from safetensors import safe_open

    layers = built.layers
    wanted = {
        f"{prefix}{built.path}.{index}.{name}": list(parameter.shape)
        for index, kind in enumerate(built.kinds)
        for name, parameter in layers[kind].named_parameters()
    }
    for path in sorted({files[name] for name in wanted}):
        with safe_open(path, framework="pt") as opened:
            for name in wanted.keys() & set(opened.keys()):
                found = list(opened.get_slice(name).get_shape())
                if found != wanted[name]:
                    raise WeightsInvalid(f"{name} is {found}, expected {wanted[name]}", hint=f"see {path}")


def _fill_rest(built: Carrier, files: Mapping[str, str], prefix: str) -> None:
    """Fill what is not of a layer: embeddings, the first rows of them only, and final norms."""
    with torch.no_grad():
        for name, parameter in built.model.named_parameters():
            if not name.startswith(f"{built.path}.") and prefix + name in files:
                parameter.copy_(_read(files, prefix + name, tuple(parameter.shape), rows=_rows(built.changes)))


def _rows(changes: Mapping[str, tuple[Any, Any]]) -> dict[int, int]:
    """Rows of the cut vocabulary that hold a token of another id: row -> id in the whole vocabulary."""
    return {after: before for name, (before, after) in changes.items() if name.endswith("_token_id")}


def _read(files: Mapping[str, str], name: str, shape: tuple[int, ...], rows: Mapping[int, int] | None = None) -> Tensor:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(files[name], framework="pt") as opened:
            lying = opened.get_slice(name)
            found = tuple(lying.get_shape())
            if rows is not None and found[1:] == shape[1:] and found[0] > shape[0]:
                value: Tensor = lying[: shape[0]].to(torch.float32)
                for row, token in rows.items():
                    if token < found[0]:  # some configs name a token that their vocabulary does not have
                        value[row] = lying[token : token + 1][0]
                return value
            if found != shape:
                raise WeightsInvalid(f"{name} is {list(found)}, expected {list(shape)}", hint=f"see {files[name]}")
            value = opened.get_tensor(name).to(torch.float32)
            return value
    except (SafetensorError, OSError) as error:
        raise WeightsInvalid(f"{files[name]} cannot be read: {error}", hint="the file may be cut off") from error
