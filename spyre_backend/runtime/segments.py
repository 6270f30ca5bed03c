"""What the segments of device memory hold (D1.4).

A program addresses seven segments of 16 GiB. The first one holds its intermediates; each external tensor sat at the
start of a segment of its own until symbolic addresses lifted that (#2914, #3069).
"""

from __future__ import annotations

from collections.abc import Sequence

from spyre_backend.capabilities import Capabilities
from spyre_backend.errors import SpyreUnsupported
from spyre_backend.program import Program, TensorSpec

__all__ = ["check_segments"]


def check_segments(program: Program, externals: Sequence[TensorSpec], release: Capabilities) -> None:
    """Refuse a program that its release's segments do not hold; limits of 0 are not in force.

    Args:
        program: The program.
        externals: Its arguments.
        release: The release it was compiled for.

    Raises:
        SpyreUnsupported: rule ``external-tensors`` (more arguments than segments) or ``segment-size`` (a tensor larger
            than a segment).
    """
    limits = release.limits
    if limits.external_tensors_max and len(externals) > limits.external_tensors_max:
        raise _refusal(
            release,
            "external-tensors",
            externals,
            f"program {program.name!r} has {len(externals)} tensors that are not intermediates, more than "
            f"{limits.external_tensors_max}: each takes one of {limits.num_segments} segments",
        )
    for spec in externals:
        if limits.segment_bytes and spec.layout.num_bytes > limits.segment_bytes:
            raise _refusal(
                release,
                "segment-size",
                [spec],
                f"tensor {spec.name!r} takes {spec.layout.num_bytes} bytes, a segment holds {limits.segment_bytes}",
            )


def _refusal(release: Capabilities, rule: str, specs: Sequence[TensorSpec], detail: str) -> SpyreUnsupported:
    return SpyreUnsupported(
        op="program",
        rule=rule,
        shapes=tuple(spec.size for spec in specs),
        dtypes=tuple(spec.dtype for spec in specs),
        detail=f"{detail} ({release.rule(rule).source})",
        hint=release.rule(rule).hint,
    )
