"""Bundles: what of a tensor's earlier content a launch needs."""

from __future__ import annotations

import warnings

import torch

from spyre_backend.errors import FallbackWarning


def test_pieces_of_a_cat_that_different_bundles_write() -> None:
    """A host operator between two pieces: the second launch must keep what the first one wrote."""

    def pieces(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cat([x + 1, torch.cumsum(y, 0), x * 2], 0)

    x, y = torch.arange(200.0).view(2, 100).half(), torch.ones(3, 100, dtype=torch.float16)
    before = torch.spyre.fallback_counts()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        got = torch.compile(pieces, backend="inductor", dynamic=False)(x.to("spyre"), y.to("spyre")).cpu()
    assert torch.spyre.fallback_counts() != before, "the host operator did break the bundle"
    assert torch.equal(got, pieces(x, y))
