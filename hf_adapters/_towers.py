"""Models of several transformers models, one for each kind of input, whose embeddings methods give (CLIP, SigLIP).

Their callers use `get_text_features` and `get_image_features` far more than the forward. Each tower is compiled by
itself, so that every method that calls it runs it on the device; the projections between them stay on the host in the
caller's dtype, as the heads of a ``SentenceTransformer`` do.
"""

from __future__ import annotations

import sys
from typing import Any

from torch import nn

from hf_adapters._patcher import Patcher
from hf_adapters.errors import ModelTypeError

STATE = "_hf_adapters_towers"
METHOD = "get_text_features"


class CompiledTowers:
    """Mixin of a model whose towers are compiled: its files are those of the stock model."""

    def save_pretrained(self, *args: Any, **kwargs: Any) -> Any:
        """As stock; writes the original weights and configs."""
        from hf_adapters.runner import stock_twin

        return stock_twin(self).save_pretrained(*args, **kwargs)


def is_transformer(model: nn.Module) -> bool:
    """True for a model of the transformers library."""
    # A model of the library exists only when its modeling_utils has been imported.
    library = sys.modules.get("transformers.modeling_utils")
    return library is not None and isinstance(model, library.PreTrainedModel)


def outermost_transformers(model: nn.Module) -> list[nn.Module]:
    """The transformers models inside of a module, without those inside of another one."""
    if is_transformer(model):
        return [model]
    return [found for child in model.children() for found in outermost_transformers(child)]


def parts(model: nn.Module) -> list[nn.Module]:
    """The models that are compiled in place of this one; none when it is compiled itself.

    Raises:
        ModelTypeError: an embedding of a text comes from a method, and the model has no towers to compile instead.
    """
    if not is_transformer(model):
        return outermost_transformers(model)
    if not hasattr(model, METHOD):
        return []
    towers = [child for child in model.children() if is_transformer(child)]
    if not towers:
        raise ModelTypeError(
            f"compile: {type(model).__name__} embeds texts by {METHOD}, which is not its forward and would not be "
            "compiled, and no part of it is a transformers model; load its text model alone and compile that"
        )
    return towers


def mark(model: nn.Module) -> None:
    """Note on a transformers model that its towers are compiled."""
    if is_transformer(model) and STATE not in model.__dict__:
        patcher = Patcher(model)
        patcher.swap_class(model, CompiledTowers)
        model.__dict__[STATE] = patcher


def unmark(model: nn.Module) -> None:
    """Undo :func:`mark`."""
    patcher: Patcher | None = model.__dict__.pop(STATE, None)
    if patcher is not None:
        patcher.undo()
