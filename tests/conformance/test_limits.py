"""Limits of D1.4 that no release of today has or that no single graph can reach."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as collectives
from torch.testing._internal.distributed.fake_pg import FakeStore

from spyre_backend import capabilities
from spyre_backend.errors import SpyreUnsupported
from tests.conformance.probe import halves


def _move(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(0, 1) * 2


@pytest.mark.parametrize("eager", [True, False], ids=["eager", "compiled"])
@pytest.mark.parametrize("release", capabilities.available())
def test_rank(release: str, eager: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 2025, "Unsupported tensor rank: n" beyond 4; no release of today bounds it (D6.9 stores into rank 5)."""
    torch._dynamo.reset()
    function = _move if eager else torch.compile(_move, backend="inductor", dynamic=False)
    narrow, wide = (x.to("spyre") for x in halves((2, 3, 2, 64), (2, 3, 2, 2, 64)))
    with capabilities.use(release), torch.no_grad():
        assert torch.equal(function(wide).cpu(), function(wide.cpu()))
        found = capabilities.current()
        assert found.limits.tensor_rank_max == 0
        bounded = replace(found, limits=replace(found.limits, tensor_rank_max=4), fingerprint="rank-4")
        monkeypatch.setattr(capabilities, "current", lambda: bounded)
        torch._dynamo.reset()
        assert torch.equal(function(narrow).cpu(), function(narrow.cpu()))
        with pytest.raises(SpyreUnsupported, match="Unsupported tensor rank: 5") as caught:
            function(wide)
    assert caught.value.rule == "rank-limit"


@pytest.fixture
def two_cards() -> Iterator[None]:
    """A group of two that sends nothing."""
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("width", [24608, 64])
@pytest.mark.parametrize("release", capabilities.available())
@pytest.mark.usefixtures("two_cards")
def test_collectives_are_refused(release: str, width: int) -> None:
    """D6.9: all_gather drops the tail of shards of odd width; there is no "spyreccl" here, so none is wrong."""
    torch._dynamo.reset()
    gather = torch.compile(lambda x: collectives.all_gather_tensor(x, 0, dist.group.WORLD) * 2, dynamic=False)
    (shard,) = (x.to("spyre") for x in halves((2, width)))
    with capabilities.use(release), torch.no_grad():
        with pytest.raises(SpyreUnsupported) as caught:
            gather(shard)
        assert caught.value.rule == "op-unsupported"
        with pytest.raises(RuntimeError, match="No backend type associated with device type spyre"):
            dist.all_gather([torch.empty_like(shard) for _ in range(2)], shard)
