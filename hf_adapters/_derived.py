"""Tensors computed from parameters (zero-padded weights and the like) that follow the parameters they came from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

Token = tuple[Any, ...]
SAMPLES = 16
PLACE = 6
"""Leading elements of a token that do not come from the values."""


@dataclass
class Derived:
    """One derived tensor: ``module.<name> = fn(*sources, **kwargs)``.

    Attributes:
        module: the module that holds it, as a plain attribute (neither parameter nor buffer: state_dict stays stock).
        name: the attribute.
        sources: names of tensors below the module, dotted (``"query.weight"``); a missing one is given as None.
        fn: importable function; gets CPU copies of the sources and returns a CPU tensor or None.
        kwargs: further keyword arguments of ``fn``; must pickle.
        token: state of the sources when it was computed last.
    """

    module: nn.Module
    name: str
    sources: tuple[str, ...]
    fn: Callable[..., Tensor | None]
    kwargs: dict[str, Any] = field(default_factory=dict)
    token: Token | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Data pointers and versions mean nothing in another process or in a copy: recompute there.
        return {**self.__dict__, "token": None}


def lookup(module: nn.Module, path: str) -> Tensor | None:
    """The tensor at a dotted path below ``module``; None when it or its owner is None."""
    owner: Any = module
    for part in path.split("."):
        owner = getattr(owner, part)
        if owner is None:
            return None
    if not isinstance(owner, Tensor):
        raise TypeError(f"{path} of {type(module).__name__} is a {type(owner).__name__}, not a tensor")
    return owner


def token_of(tensor: Tensor | None, *, sample_device: bool = False) -> Token:
    """A value that changes when the tensor is replaced, moved, cast or written to.

    Writes through ``tensor.data`` do not raise the version counter of ``tensor``, so a few sampled values belong to the
    token. Off the host only sources of derived tensors are sampled, since each sample is a copy.
    """
    if tensor is None:
        return ()
    version = -1 if tensor.is_inference() else tensor._version
    place = (id(tensor), version, tensor.data_ptr(), tensor.device, tensor.dtype, tuple(tensor.shape))
    return (*place, *_samples(tensor)) if sample_device or tensor.device.type == "cpu" else place


def _samples(tensor: Tensor) -> tuple[float, ...]:
    tensor = tensor.t() if is_turned(tensor) else tensor
    if tensor.numel() == 0 or not tensor.is_contiguous():
        return ()
    step = max(1, tensor.numel() // SAMPLES)
    return tuple(tensor.detach().view(-1)[::step].cpu().tolist())


def is_turned(tensor: Tensor) -> bool:
    """Whether a matrix lies with its dim 0 along the stick, as weights of linear layers do on the device (D2.2)."""
    return tensor.dim() == 2 and not tensor.is_contiguous() and tensor.t().is_contiguous()


def placed(value: Tensor, device: torch.device, *, turned: bool) -> Tensor:
    """``value`` on ``device``; ``turned`` puts dim 0 of a matrix along the stick (dim_order [1, 0] in D2.2)."""
    return value.t().contiguous().to(device).t() if turned and value.dim() == 2 else value.contiguous().to(device)


def refresh_one(entry: Derived, masters: dict[int, Tensor]) -> bool:
    """Recompute the entry when a source changed since; returns whether it did.

    Args:
        entry: the derived tensor.
        masters: ``id(device parameter)`` -> the host tensor it was made from, used instead of reading it back. A pair
            is removed when the device parameter turns out to have been written to behind its version counter.
    """
    sources = [lookup(entry.module, path) for path in entry.sources]
    token = tuple(token_of(source, sample_device=True) for source in sources)
    if token == entry.token and entry.name in entry.module.__dict__:
        return False
    for source, old, new in zip(sources, entry.token or (), token, strict=False):
        if old != new and old[:PLACE] == new[:PLACE]:
            masters.pop(id(source), None)
    first = next((source for source in sources if source is not None), None)
    host = [None if s is None else masters.get(id(s), s).detach().cpu().clone() for s in sources]
    with torch.inference_mode(False), torch.no_grad():
        value = entry.fn(*host, **entry.kwargs)
        if value is not None and first is not None:
            # Cast on the host, then move: casting and moving in one step gives odd results on the device (D6.10).
            value = placed(value.to(first.dtype), first.device, turned=is_turned(first)).detach()
    entry.module.__dict__[entry.name] = value
    entry.token = token
    return True
