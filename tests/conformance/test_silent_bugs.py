"""Silent bugs of D2.8 and D6.7: off, the device is right; switched on, the numbers are wrong and nothing complains."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from spyre_backend import capabilities
from spyre_backend.compiler import silent_bugs
from tests.conformance.probe import halves

RELEASES = capabilities.available()


@dataclass(frozen=True)
class Bug:
    """A function that meets the trigger, its inputs, and the releases that lower it."""

    name: str
    fn: Callable[..., Tensor]
    inputs: Callable[[], tuple[Tensor, ...]]
    eager: bool = False
    release: str = "2026.07"


def _rms(x: Tensor) -> Tensor:
    heads = x.view(2, 8, 2, 64).transpose(1, 2)
    return heads * torch.rsqrt((heads * heads).mean(-1, keepdim=True) + 1e-6)


def _resident_halves(x: Tensor) -> Tensor:
    y = torch.tanh(x)
    return y[:, :64] * y[:, 64:]


def _second_of_three(x: Tensor) -> Tensor:
    return x[1] + x[1]


def _two_gathers(table: Tensor, first: Tensor, second: Tensor) -> Tensor:
    return table.index_select(0, first) * 2 + table.index_select(0, second)


def _indices() -> tuple[Tensor, ...]:
    table = halves((32, 64))[0]
    return table, torch.tensor([1, 5, 9], dtype=torch.int32), torch.tensor([2, 30, 0], dtype=torch.int32)


BUGS = (
    Bug("issue-3264", lambda x: x.narrow(1, 64, 64).clone(), lambda: halves((8, 192))),
    Bug("issue-4260", lambda x: x.view(8, 2, 128)[..., :64] + 1, lambda: halves((8, 256))),
    Bug("issue-1783", lambda x: x.view(1, 64, 2, 64).transpose(1, 2) * 2, lambda: halves((1, 64, 128))),
    Bug("issue-1781", _rms, lambda: (halves((2, 8, 128))[0] * torch.arange(1, 9)[:, None],)),
    Bug("issue-2062", _resident_halves, lambda: halves((64, 128))),
    Bug("issue-1760", lambda x, y: torch.cat((x, y), 0), lambda: halves((4, 64), (1, 64))),
    Bug("issue-3502", _two_gathers, _indices, release="2026.09"),
    Bug("issue-1918", F.linear, lambda: halves((8, 64), (2112, 64)), eager=True),
    Bug(
        "issue-4411",
        lambda x, i, v: x.index_put((i,), v, accumulate=True),
        lambda: (halves((3, 64))[0], torch.tensor([0, 1, 1]), halves((3, 64))[0]),
        eager=True,
    ),
)
OUTSIDE_BUNDLES = {"issue-3770", "issue-4411"}
"""Emulated by launches and by eager kernels."""


def _run(bug: Bug) -> Tensor:
    torch._dynamo.reset()
    fn = bug.fn if bug.eager else torch.compile(bug.fn, backend="inductor", dynamic=False)
    with torch.no_grad():
        return fn(*(x.to("spyre") for x in bug.inputs())).cpu().float()


def _error(bug: Bug) -> float:
    exact = bug.fn(*(x.float() if x.is_floating_point() else x for x in bug.inputs()))
    return float((_run(bug) - exact).abs().max() / exact.abs().max())


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_wrong_only_when_switched_on(bug: Bug) -> None:
    with capabilities.use(bug.release):
        if bug.name != "issue-4411":  # without the bug, the device refuses: see below
            assert _error(bug) < 1e-2
        with capabilities.silent_bugs(bug.name):
            assert _error(bug) > 0.1


def _doubled(base: Tensor) -> list[Tensor]:
    torch._dynamo.reset()
    double = torch.compile(lambda x: x + x, backend="inductor", dynamic=False)
    return [double(part).cpu() for part in base]


def test_storage_offsets_are_ignored_only_with_3770() -> None:
    base = halves((3, 4, 64))[0]
    assert torch.equal(torch.stack(_doubled(base.to("spyre"))), base * 2)
    with capabilities.silent_bugs("issue-3770"):
        assert torch.equal(torch.stack(_doubled(base.to("spyre"))), (base[:1] * 2).expand(3, -1, -1))


def test_index_add_with_repeated_indices_keeps_the_last_with_4411() -> None:
    x, index, values = torch.zeros(3, 64), torch.tensor([0, 1, 1]), halves((3, 64))[0]
    with capabilities.silent_bugs("issue-4411"):
        got = x.half().to("spyre").index_add_(0, index.to("spyre"), values.to("spyre")).cpu()
    assert torch.equal(got[0], values[0])
    assert torch.equal(got[1], values[2])
    assert not got[2].any()


@pytest.mark.parametrize("release", RELEASES)
def test_every_bug_is_emulated_and_tested_or_says_what_is_missing(release: str) -> None:
    bugs = capabilities.load(release).settings.silent_bugs
    emulated = {name for name, bug in bugs.items() if bug.emulated}
    assert emulated == set(silent_bugs.EFFECTS) | OUTSIDE_BUNDLES
    assert emulated == {bug.name for bug in BUGS} | {"issue-3770"}
    assert all(bool(bug.missing) != bug.emulated for bug in bugs.values())


def test_what_cannot_be_switched_on(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("issue-0", "issue-1765"):
        with pytest.raises(capabilities.CapabilityFileError, match=name), capabilities.silent_bugs(name):
            pass
    monkeypatch.setenv(capabilities.SILENT_BUGS_VARIABLE, "issue-3264, issue-1760")
    chosen = capabilities.current()
    assert chosen.settings.bug("issue-3264")
    assert chosen.settings.bug("issue-1760")
    assert not chosen.settings.bug("issue-3770")
    assert chosen.fingerprint != capabilities.load(chosen.release).fingerprint
    with capabilities.silent_bugs() as plain:
        assert plain is capabilities.load(chosen.release)
