"""Where inside a stick a device tensor begins (D2.7)."""

from __future__ import annotations

from torch import Tensor, bfloat16, dtype, float16, float32

STICK_ELEMENTS: dict[dtype, int] = {float16: 64, bfloat16: 64, float32: 32}
"""Elements per stick of the floating dtypes (fixed constants block)."""


def stick_coordinate(tensor: Tensor) -> int:
    """Elements between the start of a stick and the first element of ``tensor``; 0 for a tensor that begins on one.

    A view's rows lie in sticks of their own, so only the part of the storage offset within a row counts.  Integers are
    prepared on the host and may begin anywhere.
    """
    eps = STICK_ELEMENTS.get(tensor.dtype)
    offset = int(tensor.storage_offset())
    if eps is None or offset == 0:
        return 0
    row = min((int(s) for s, n in zip(tensor.stride(), tensor.shape, strict=True) if s > 1 and n > 1), default=0)
    return (offset % row if row else offset) % eps


def refusal_text(name: str, tensor: Tensor) -> str:
    """The device's words for a graph input that begins inside a stick."""
    return (
        f"graph input {name} has a non-stick-aligned device stick coordinate ({stick_coordinate(tensor)}) at "
        f"storage_offset={tensor.storage_offset()}; not yet supported"
    )
