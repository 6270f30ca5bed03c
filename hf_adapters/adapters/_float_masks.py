"""Token masks that a model computes with, handed to it as numbers of its own dtype.

A model that multiplies states by a mask, casts it or compares it does so on integers, which have no cast to floating
point and no comparison on the device (D1.6, D5.2). Made on the host before the first layer, it costs nothing.
"""

from __future__ import annotations

import dis
import inspect
import types
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from hf_adapters.adapters import _probe

NAME = "attention_mask"
_MASKS = frozenset({NAME, "mask", "input_mask"})
_CASTS = frozenset({"to", "type_as", "bool"})
_WITHIN = 12
"""Instructions between reading a mask and what is done with it."""


class FloatTokenMask(nn.Module):
    """Mixin for the model: ``attention_mask`` ``[batch, tokens]`` arrives in the dtype of the parameters.

    Attributes:
        mask_names: names of the forward arguments, in their order.
    """

    keeps_signature = True
    mask_names: tuple[str, ...]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As stock."""
        stock: Any = super().forward
        given = {**dict(zip(self.mask_names, args, strict=False)), **kwargs}
        mask = given.get(NAME)
        if isinstance(mask, Tensor) and mask.dim() == 2 and not mask.is_floating_point():
            parameter = next(p for p in self.parameters() if p.is_floating_point())
            given[NAME] = mask.detach().cpu().to(parameter.dtype).to(mask.device)
        return stock(**given)


def computes_with_masks(model: nn.Module) -> bool:
    """True when a module of the model multiplies, casts or compares a token mask in its forward.

    Looked for in the bytecode: a mask is read, and one of these follows at once.
    """
    if not hasattr(model, "save_pretrained") or isinstance(model, FloatTokenMask):
        return False
    if NAME not in inspect.signature(type(model).forward).parameters:
        return False
    return any(_uses(code) for kind in {type(m) for m in model.modules()} for code in _codes(kind))


def _codes(kind: type) -> Iterator[types.CodeType]:
    """The forward of a class of transformers, and the functions of its module that take a mask."""
    if not kind.__module__.startswith("transformers.models."):
        return
    plain = inspect.unwrap(kind.forward)  # type: ignore[attr-defined]
    if hasattr(plain, "__code__"):
        yield plain.__code__
        for value in _probe.global_names(plain).values():
            function = inspect.unwrap(value) if callable(value) else None
            if getattr(function, "__module__", None) == kind.__module__ and isinstance(function, types.FunctionType):
                yield function.__code__


def _uses(code: types.CodeType) -> bool:
    parameters = set(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
    if not parameters & _MASKS:
        return False
    steps = list(dis.get_instructions(code))
    for at, step in enumerate(steps):
        if step.opname.startswith("LOAD_FAST") and step.argval in _MASKS:
            for following in steps[at + 1 : at + _WITHIN]:
                if following.opname.startswith(("STORE", "LOAD_FAST", "RETURN", "JUMP", "POP_JUMP", "IS_OP")):
                    break
                if following.opname in ("LOAD_METHOD", "LOAD_ATTR") and following.argval in _CASTS:
                    return True
                if following.opname == "COMPARE_OP" or (following.opname == "BINARY_OP" and following.argrepr == "*"):
                    return True
    return False
