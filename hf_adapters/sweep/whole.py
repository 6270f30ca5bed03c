"""A patched model compiled whole, as ``torch.compile(model)`` does without :func:`hf_adapters.compile`.

Layer by layer, embeddings and masks run ahead of the first region, and the host may prepare integers there. In one
graph with everything else they have to lower.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import nn

    from spyre_backend.errors import SpyreUnsupported

LENGTHS = (64, 23)
"""Tokens of the two rows of the input, the second padded."""
GIVEN = ("input_ids", "attention_mask")
"""What callers give; the model makes positions and segments itself."""


def refusal(model: nn.Module, names: Sequence[str], release: str) -> SpyreUnsupported | None:
    """What the device refuses of a model that is patched, moved and compiled whole; None when it runs.

    Args:
        model: stock, on the CPU; left as it was.
        names: adapters to use.
        release: torch-spyre release to emulate.
    """
    import hf_adapters
    from hf_adapters.validation.inputs import draw, spec_of, structure_seed
    from hf_adapters.validation.unsupported import unsupported_in
    from spyre_backend import capabilities

    batch = draw(spec_of(model), name="whole", lengths=LENGTHS, padding="right", seed=structure_seed(model))
    twin = hf_adapters.patch(copy.deepcopy(model), only=names, release=release).half().to("spyre")
    inputs = {name: value.to("spyre") for name, value in batch.kwargs.items() if name in GIVEN}
    torch._dynamo.reset()
    try:
        with capabilities.use(release), torch.no_grad():
            torch.compile(twin, dynamic=False)(**inputs)
    except Exception as error:
        refused = unsupported_in(error)
        if refused is None:
            raise
        return refused
    finally:
        torch._dynamo.reset()
    return None
