"""Low-rank adapters, merged into the weights that they change."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from hf_adapters.natives.family import ForeignWeights, Values, Weights

_ORIGINAL = ".parametrizations.weight.original"
_FIRST, _SECOND = ".parametrizations.weight.0.lora_A", ".parametrizations.weight.0.lora_B"
_PEFT = "base_model.model."


def merge_parametrised(weights: Weights, task: int | None, scaling: float) -> dict[str, Tensor]:
    """Weights with parametrisations -> plain ones.

    A matrix ``[out, in]`` has ``A [tasks, rank, in]`` and ``B [tasks, out, rank]``: ``W + scaling B[t] A[t]``. A table
    ``[entries, width]`` has ``A [tasks, entries, rank]`` and ``B [tasks, rank, width]``: ``W + scaling A[t] B[t]``.

    Args:
        weights: a whole checkpoint; what is not parametrised stays.
        task: index of the adapters; None merges nothing.
        scaling: alpha divided by the rank.

    Raises:
        ForeignWeights: an adapter without its weight, half an adapter, or shapes that do not fit.
    """
    plain = {name: value for name, value in weights.items() if ".parametrizations." not in name}
    used: set[str] = set()
    for name, original in weights.items():
        if not name.endswith(_ORIGINAL):
            continue
        path = name.removesuffix(_ORIGINAL)
        parts = path + _FIRST, path + _SECOND
        missing = [part for part in parts if part not in weights]
        if missing:
            raise ForeignWeights(f"the adapter of {path} lacks {missing[0]}")
        first, second = (weights[part] for part in parts)
        plain[f"{path}.weight"] = original if task is None else _merged(path, original, first, second, task, scaling)
        used.update((name, *parts))
    strangers = sorted(name for name in weights if ".parametrizations." in name and name not in used)
    if strangers:
        raise ForeignWeights(f"parametrisations of an unknown kind: {', '.join(strangers[:3])}")
    return plain


def _merged(path: str, original: Tensor, first: Tensor, second: Tensor, task: int, scaling: float) -> Tensor:
    a, b = first[task].double(), second[task].double()
    rows, columns = original.shape
    # The rank is what both share; a matrix has it in front of A, a table at its end.
    if a.shape[1] == columns and b.shape == (rows, a.shape[0]):
        change = b @ a
    elif a.shape[0] == rows and b.shape == (a.shape[1], columns):
        change = a @ b
    else:
        raise ForeignWeights(f"the adapter of {path} is {tuple(a.shape)}, {tuple(b.shape)} for {tuple(original.shape)}")
    return (original.double() + scaling * change).to(original.dtype)


def merge_peft(weights: Weights, adapters: Weights, settings: Values) -> dict[str, Tensor]:
    """Weights with the adapters of one file in PEFT's layout: ``W + alpha / r B A``, ``A [r, in]``, ``B [out, r]``.

    Raises:
        ForeignWeights: an adapter of another kind, half an adapter, or one without its weight.
    """
    if settings.get("peft_type", "LORA") != "LORA" or settings.get("use_dora") or settings.get("use_rslora"):
        raise ForeignWeights("only plain LoRA adapters can be merged")
    if settings.get("rank_pattern") or settings.get("alpha_pattern"):
        raise ForeignWeights("adapters with a rank or an alpha for each module cannot be merged")
    scaling = float(settings["lora_alpha"]) / int(settings["r"])
    merged, pairs = dict(weights), _pairs(adapters)
    for path, (first, second) in pairs.items():
        name = f"{path}.weight"
        if name not in merged:
            raise ForeignWeights(f"an adapter changes {name}, which the checkpoint does not have")
        change = second.double() @ first.double()
        if change.shape != merged[name].shape:
            raise ForeignWeights(f"the adapter of {name} is {tuple(change.shape)}, not {tuple(merged[name].shape)}")
        merged[name] = (merged[name].double() + scaling * change).to(merged[name].dtype)
    return merged


def _pairs(adapters: Weights) -> Mapping[str, tuple[Tensor, Tensor]]:
    pairs = {}
    for name, first in adapters.items():
        # Like those of the weights, names may or may not have the prefix of a model with a head.
        path = name.removeprefix(_PEFT).removeprefix("model.")
        if path.endswith(".lora_A.weight"):
            other = name.replace(".lora_A.", ".lora_B.")
            if other not in adapters:
                raise ForeignWeights(f"the adapter file lacks {other}")
            pairs[path.removesuffix(".lora_A.weight")] = (first, adapters[other])
    if len(pairs) * 2 != len(adapters):
        raise ForeignWeights("the adapter file holds more than pairs of lora_A and lora_B")
    return pairs
