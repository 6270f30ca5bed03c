"""Hands what native code needs of the emulated release to it: the numerics of copies, the number of DMA maps."""

from __future__ import annotations

from spyre_backend import _C
from spyre_backend.capabilities import Numerics, current

__all__ = ["apply", "apply_current"]

_MAGNITUDE = 0x7FFF


def apply(numerics: Numerics) -> None:
    """Makes host-device copies follow `numerics` from now on (D1.5).

    What is already in device memory keeps the codes it was given.
    """
    _C.set_copy_numerics(
        half_rounding=numerics.fp16_to_dl16_rounding,
        halve_subnormals=numerics.halve_subnormals,
        saturate_half=numerics.saturate_fp16_carry,
        half_infinity=numerics.minus_inf_code & _MAGNITUDE,
        truncate_bfloat16=numerics.bf16_to_host == "truncate",
        merged_is_infinity=numerics.merged_nan_reads_as == "inf",
    )


def apply_current() -> None:
    """Applies the numerics (D1.5) and the limit of pinned buffers (D1.4) of the release in force."""
    release = current()
    apply(release.numerics)
    _C.set_dma_maps(release.limits.dma_maps_max)
