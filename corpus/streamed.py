"""Build a structure of any depth that never lies in memory whole: one layer of each kind, and a stream of the others.

Weights are those that `build_model` would draw for the whole model, so a small structure gives the same values either
way. Only the vocabulary is cut: no verdict depends on it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hf_adapters.corpus.architectures import declared, on_meta, text_tower
from hf_adapters.corpus.build import CALMING_TOKENS, BuiltModel, construct
from hf_adapters.corpus.cut import SMALL_VOCABULARY, cut_vocabulary, layer_path, one_of_each_kind
from hf_adapters.corpus.errors import Unbuildable
from hf_adapters.corpus.inputs import longest_input, text_inputs
from hf_adapters.corpus.profiles import Profile
from hf_adapters.corpus.signature import structural_signature
from hf_adapters.corpus.weights import (
    SCORE_LIMIT,
    ScoreRecorder,
    calming_factor,
    draw_parameter,
    draw_weights,
    eager_attention,
    generator_of,
    is_norm_module,
    norm_centre,
    query_of,
    tracked,
)
from hf_adapters.validation.streaming import LayerStream, attach, run

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Drawn = tuple[str, tuple[int, ...], float]
"""Name of a parameter below its layer, its shape, and the centre of its values."""


@dataclass(frozen=True, slots=True)
class RandomLayers:
    """Seeded random weights of the layers of a structure; see `weights.py`.

    Attributes:
        prefix: path of the list of layers.
        signature: structural signature.
        seed: another seed gives other weights.
        kinds: for each layer its kind.
        drawn: the parameters of each kind.
        factors: what single parameters of single layers are multiplied by.
    """

    prefix: str
    signature: str
    seed: int
    kinds: tuple[int, ...]
    drawn: tuple[tuple[Drawn, ...], ...]
    factors: Mapping[str, float] = field(default_factory=dict)

    def __call__(self, index: int) -> Iterator[tuple[str, Tensor]]:
        """See `LayerWeights`."""
        for name, shape, centre in self.drawn[self.kinds[index]]:
            full_name = f"{self.prefix}.{index}.{name}"
            value = torch.empty(shape)
            draw_parameter(value, centre, generator_of(self.signature, self.seed, full_name))
            yield name, value.mul_(self.factors[full_name]) if full_name in self.factors else value


@dataclass(frozen=True, slots=True, kw_only=True)
class Carrier:
    """A model with one layer of each kind, its weights not yet filled, and what the whole model has.

    Attributes:
        model: the carrier, float32 on the CPU.
        path: of its list of layers.
        kinds: for each layer of the whole model, the index of the carrier's layer that computes it.
        elements: of the parameters of the whole model, its vocabulary cut.
        changes: what was cut, as in `Cut`.
        left_out: towers that are not built.
        signature: structural signature of the profile.
    """

    model: PreTrainedModel
    path: str
    kinds: tuple[int, ...]
    elements: int
    changes: dict[str, tuple[Any, Any]]
    left_out: tuple[str, ...]
    signature: str

    @property
    def layers(self) -> tuple[nn.Module, ...]:
        """The layers that are held, one of each kind."""
        return tuple(self.model.get_submodule(self.path).children())


def build_carrier(profile: Profile, release: str | None = None) -> Carrier:
    """The carrier of a profile's text tower.

    Raises:
        ConfigInvalid, NoTextInputs, Unbuildable: see `build_streamed`.
    """
    model_class, config, left_out = text_tower(*declared(profile))
    # Layers would add to one cache of keys, for the carrier's layer has one number.
    config.use_cache = False
    changes = cut_vocabulary(config, SMALL_VOCABULARY)
    whole = on_meta(model_class, config)
    path = layer_path(whole)
    shallow = one_of_each_kind(model_class, config)
    if path is None or shallow is None:
        raise Unbuildable(f"{model_class.__name__} has no list of repeated layers, so it cannot be streamed")
    return Carrier(
        model=construct(model_class, shallow[0]),
        path=path,
        kinds=shallow[1],
        elements=sum(parameter.numel() for parameter in whole.parameters()),
        changes=changes,
        left_out=left_out,
        signature=structural_signature(profile, release),
    )


def build_streamed(
    profile: Profile,
    *,
    seed: int = 0,
    release: str | None = None,
    factors: Mapping[str, float] | None = None,
) -> BuiltModel:
    """Build the carrier of a profile's text tower, float32 on the CPU, with a stream of all its layers.

    Args:
        profile: what to build; a model of repeated layers.
        seed: another seed gives other weights.
        release: see `build_model`.
        factors: what `calmed` of an earlier build of the same structure says; measured when None, which runs every
            layer once.

    Raises:
        ConfigInvalid, NoTextInputs: see `build_model`.
        Unbuildable: see `build_model`; also where layers are not repeated.
    """
    carrier = build_carrier(profile, release)
    model, path, kinds, signature = carrier.model, carrier.path, carrier.kinds, carrier.signature
    draw_weights(model, signature, seed)
    drawn = tuple(_drawn(layer) for layer in carrier.layers)
    layers = RandomLayers(path, signature, seed, kinds, drawn)
    attach(model, LayerStream(path, kinds, layers))
    if factors is None:
        inputs = text_inputs(model, [min(CALMING_TOKENS, longest_input(model))], signature)
        factors = _calming(model, path, inputs)
    if factors:
        layers = RandomLayers(path, signature, seed, kinds, drawn, dict(factors))
        attach(model, LayerStream(path, kinds, layers))
    return BuiltModel(
        model=model,
        profile=profile,
        signature=signature,
        seed=seed,
        depth="full",
        elements=carrier.elements,
        cut=carrier.changes,
        layers=tuple(range(len(kinds))),
        left_out=carrier.left_out,
        calmed=dict(factors),
    )


def _drawn(layer: nn.Module) -> tuple[Drawn, ...]:
    found: list[Drawn] = []
    for path, module in layer.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            centre = norm_centre(module) if is_norm_module(module) and name == "weight" else 0.0
            found.append((f"{path}.{name}" if path else name, tuple(parameter.shape), centre))
    return tuple(found)


def _calming(model: PreTrainedModel, path: str, inputs: Mapping[str, Any]) -> dict[str, float]:
    """Factors for the query weights of layers whose attention scores spread too far; as `calm_attention`."""
    running: list[str] = []
    recorder = ScoreRecorder(running)
    factors: dict[str, float] = {}

    def note(_: int, layer: int, __: Tensor) -> None:
        for place, spread in recorder.spreads.items():
            query = query_of(model, place) if math.isfinite(spread) and spread > SCORE_LIMIT else None
            if query is not None:
                found = next(name for name, module in model.named_modules() if module is query)
                below = found.removeprefix(f"{path}.").partition(".")[2]
                for name, _parameter in query.named_parameters(recurse=False):
                    factors[f"{path}.{layer}.{below}.{name}"] = calming_factor(spread)
        recorder.spreads.clear()

    # The carrier's own first call is of no layer of the stream.
    with eager_attention(model), tracked(model, running), torch.no_grad(), recorder:
        run(model, [inputs], note)
    return factors
