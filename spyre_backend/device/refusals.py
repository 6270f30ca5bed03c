"""What the device refuses outside of compiled code."""

from __future__ import annotations

from collections.abc import Sequence

from spyre_backend.errors import SpyreUnsupported

__all__ = ["mid_stick_copy"]


def mid_stick_copy(offset: int, elements_per_stick: int, shape: Sequence[int], dtype: object) -> SpyreUnsupported:
    """The refusal of a copy on the device whose view begins inside a stick (D2.7, #3798).

    Args:
        offset: Storage offset of the view, in elements.
        elements_per_stick: Elements of its dtype in a stick.
        shape: Size of the view.
        dtype: Its dtype.
    """
    return SpyreUnsupported(
        op="spyre.copy_from_d2d",
        rule="storage-offset",
        shapes=(tuple(shape),),
        dtypes=(str(dtype).removeprefix("torch."),),
        detail=(
            "spyre::copy_from_d2d of a sliced view requires a stick-aligned storage_offset: "
            f"{offset} is not a multiple of elems_per_stick={elements_per_stick}"
        ),
        hint="copy the whole tensor, or slice it on the host",
    )
