"""Build the model that a profile describes, with seeded random weights and small enough to be judged here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from hf_adapters.corpus.architectures import declared, text_tower
from hf_adapters.corpus.cut import Depth, fit
from hf_adapters.corpus.errors import Unbuildable
from hf_adapters.corpus.inputs import longest_input, text_inputs
from hf_adapters.corpus.profiles import Profile
from hf_adapters.corpus.signature import structural_signature
from hf_adapters.corpus.weights import calm_attention, draw_weights

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

#: 1.6 GB of float32: every base and large encoder whole, larger models cut.
MAX_ELEMENTS = 400_000_000
CALMING_TOKENS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltModel:
    """A model ready to be judged.

    `depth` is "all", "distinct" (only one layer of each kind, see `layers`) or "full" (all layers, streamed through one
    of each kind); `cut` maps each config field
    that was lowered to its value before and after; `left_out` names the parts that do not embed text
    ("vision", "audio"); `elements` counts distinct parameter elements as built; `calmed` maps attentions whose
    query weights were shrunk to the factor.
    """

    model: PreTrainedModel
    profile: Profile
    signature: str
    seed: int
    depth: Depth
    elements: int
    weights: str = "random"
    cut: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    layers: tuple[int, ...] | None = None
    left_out: tuple[str, ...] = ()
    calmed: Mapping[str, float] = field(default_factory=dict)

    @property
    def config(self) -> PretrainedConfig:
        """The config as built (after the cut, of the text tower)."""
        return self.model.config


def build_model(
    profile: Profile,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    max_elements: int | None = MAX_ELEMENTS,
    release: str | None = None,
) -> BuiltModel:
    """Build a profile's text tower on the CPU, in eval mode, with weights seeded from its signature.

    Nothing larger than the cut model is ever allocated. Weights are drawn with standard deviation 0.1 in
    float32 and then converted, so that every dtype has the same model.

    Args:
        profile: what to build.
        seed: another seed gives other weights.
        dtype: of all floating-point parameters.
        max_elements: parameter elements above which vocabulary and then depth are cut; None never cuts.
        release: whose rules the signature follows; None leaves the vocabulary out of it.

    Raises:
        ConfigInvalid: transformers does not know the model type or refuses the config.
        Unbuildable: there is no such class, or it refuses the config.
        NoTextInputs: no part of the model takes text.
    """
    signature = structural_signature(profile, release)
    model_class, config, left_out = text_tower(*declared(profile))
    cut = fit(model_class, config, max_elements)
    model = construct(model_class, cut.config)
    draw_weights(model, signature, seed)
    lengths = [min(CALMING_TOKENS, longest_input(model))]
    calmed = calm_attention(model, text_inputs(model, lengths, signature))
    return BuiltModel(
        model=model.to(dtype),
        profile=profile,
        signature=signature,
        seed=seed,
        depth=cut.depth,
        elements=cut.elements,
        cut=cut.changes,
        layers=cut.layers,
        left_out=left_out,
        calmed=calmed,
    )


def construct(model_class: type[PreTrainedModel], config: PretrainedConfig) -> PreTrainedModel:
    """A model of that config, float32, in eval mode, its parameters not yet filled.

    Raises:
        Unbuildable: the constructor refuses the config.
    """
    from transformers.initialization import no_init_weights

    try:
        with no_init_weights():
            model = model_class._from_config(config, dtype=torch.float32)
        # Tying is part of the initialisation that was skipped.
        model.tie_weights()
    except Exception as error:  # a constructor may raise anything
        raise Unbuildable(f"{model_class.__name__} cannot be built: {type(error).__name__}: {error}") from error
    return model.eval()
