"""Runs the exact executor and compares every single operation with the fast one, on the very inputs that it had.

What moves, selects or computes elements must agree to the bit, but for special functions: the host's vector and scalar
code for them differ in the last bits of fp32 by where an element lies, which may turn one rounding to DL16 over (one
unit in the last place, 2^-9; of fp32, four).  GELU is x/2 (1 + erf): where that cancels, the last bit of erf (2^-24)
leaves x 2^-24 between two executors; twice that is allowed.

Sums may differ, because the card adds partial sums in another order; by how much is derived, not guessed:

Both executors sum blocks of at most 64 terms in fp32, round each block's sum to DL16 (relative error u = 2^-10), and
add the rounded sums, rounding each time.  Let M be the largest magnitude of the sum of any consecutive blocks.  Block
sums and running sums, of the whole or of one core's share, are such sums, so each rounding errs by at most u M; with b
blocks on c cores there are at most 2 b + c of them.  Two executors differ by at most the sum of their bounds.  Errors
feed on in later running sums, and fp32 adds 64 * 2^-24 relative to the sum of magnitudes: a factor of 1 + 2^-4 and a
term cover them.  Where several dims are reduced, blocks are cut differently and M becomes the sum of all magnitudes.
fp32 sums have u = 2^-24 and a rounding for each term.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import torch
from torch import Tensor

from spyre_backend.capabilities.model import Numerics
from spyre_backend.emulator.exact import ExactPlan
from spyre_backend.emulator.exact_plan import ExactOp
from spyre_backend.emulator.exact_state import State
from spyre_backend.emulator.fast import Plan
from spyre_backend.emulator.numerics import dl16_round
from spyre_backend.emulator.plan import Access
from spyre_backend.program import Operand, Program
from spyre_backend.slices import cores_used

SPECIAL = frozenset(
    {"exp", "log", "tanh", "sigmoid", "silu", "gelu", "softplus", "sqrt", "rsqrt", "reciprocal", "layernormscale"}
)
SUMS = frozenset({"sum", "mean", "exx2_mean", "exx2_meansq", "batchmatmul", "prod"})


class Lockstep:
    """Observer of an exact run; ``operations`` counts what was compared, ``worst`` is the largest error over bound."""

    def __init__(self, numerics: Numerics | None = None) -> None:
        self.numerics = numerics
        self.operations = 0
        self.cores: set[int] = set()
        self.worst = 0.0
        self._before: dict[str, Tensor] = {}

    def __call__(self, item: ExactOp, state: State, after: bool) -> None:
        names = dict.fromkeys([item.op.output.tensor, *(o.tensor for o in item.op.inputs if isinstance(o, Operand))])
        if not after:
            self._before = {name: state.flat(name) for name in names}
            return
        got = state.flat(item.op.output.tensor)
        tensors = dict(self._before)
        Plan(_alone(item, state), self.numerics).run(tensors)
        expected = tensors[item.op.output.tensor]
        self._compare(item, self._before, got, expected)
        self.operations += 1
        self.cores.add(cores_used(item.op))

    def _compare(self, item: ExactOp, before: dict[str, Tensor], got: Tensor, expected: Tensor) -> None:
        view = item.step.output
        got, expected = (view.view({view.tensor: t}) for t in (got, expected))
        same = (got == expected) | (got.isnan() & expected.isnan())
        if item.op.name in SPECIAL:
            unit = 2.0**-9 if item.step.context.dl16 else 2.0**-21
            bound = unit * expected.double().abs()
            given = item.step.inputs[0]
            if item.op.name == "gelu" and isinstance(given, Access):
                bound = bound + 2.0**-23 * given.view(before).double().abs()
            good = same | ((got.double() - expected.double()).abs() <= bound)
            assert bool(good.all()), _report(item, got, expected, good)
            return
        if item.op.name not in SUMS or not got.is_floating_point():
            assert bool(same.all()), _report(item, got, expected, same)
            return
        bound = allowance(item, before)
        error = torch.where(same, 0.0, (got.double() - expected.double()).abs())
        ratio = error / bound.clamp(min=1e-300)
        self.worst = max(self.worst, float(ratio.max()))
        assert bool((error <= bound).all()), _report(item, got, expected, error <= bound)


def _report(item: ExactOp, got: Tensor, expected: Tensor, good: Tensor) -> str:
    place = tuple(int(i) for i in (~good).nonzero()[0])
    return f"op {item.position} ({item.op.name}) at {place}: exact {got[place]}, fast {expected[place]}"


def _alone(item: ExactOp, state: State) -> Program:
    """The operation as a program of its own, all tensors given."""
    program = state.program
    tensors = tuple(dataclasses.replace(spec, kind="inout", lx_address=None) for spec in program.tensors)
    return dataclasses.replace(program, tensors=tensors, ops=(item.op,), arguments=tuple(t.name for t in tensors))


def allowance(item: ExactOp, before: dict[str, Tensor]) -> Tensor:
    """How far fast and exact may differ in each element of a sum (see the module); float64."""
    context, cores = item.step.context, math.prod(item.op.split[item.kept :]) if item.op.split else 1
    views = [access.view(before).double() for access in item.step.inputs if isinstance(access, Access)]
    count = math.prod(item.op.dims[item.kept :])
    if item.op.name == "batchmatmul":
        a, b = views[0].select(-2, 0), views[1].select(-3, 0)
        sums, size = _products(a, b), torch.matmul(a.abs(), b.abs().transpose(-1, -2))
    else:
        x = views[0].flatten(item.kept)
        if item.op.name == "exx2_meansq":
            x = dl16_round((x * x).float()).double() if context.dl16 else x * x
        sums, size = torch.stack([part.sum(-1) for part in torch.split(x, 64, -1)]), x.abs().sum(-1)
    unit = 2.0**-10 if context.dl16 else 2.0**-24
    if item.op.name == "prod":
        return 2 * count * unit * x.prod(-1).abs() * 2 + 2.0**-31
    running = torch.cat([torch.zeros_like(sums[:1]), sums]).cumsum(0)
    largest = running.amax(0) - running.amin(0)
    blocks = len(sums) if context.dl16 else count
    if item.op.reduced > 1 or not context.dl16:
        largest = size
    bound = (2 * (2 * blocks + cores) * unit * largest) * (1 + 2.0**-4) + 128 * 2.0**-24 * size + 2.0**-31
    if item.op.name != "sum" and item.op.name != "batchmatmul":
        bound = bound / count * (1 + 4 * unit) + 2 * unit * size / count
    return bound


def _products(a: Tensor, b: Tensor) -> Tensor:
    """Float64 [blocks, ..., M, N]: the product over each block of 64 of K."""
    pairs = zip(torch.split(a, 64, -1), torch.split(b, 64, -1), strict=True)
    return torch.stack([torch.matmul(x, y.transpose(-1, -2)) for x, y in pairs])


@contextmanager
def lockstep() -> Iterator[Lockstep]:
    """Compare every operation that an exact plan executes inside the block."""
    observer = Lockstep()
    run = ExactPlan.run

    def observed(self: ExactPlan, tensors: dict[str, Tensor], replaceable: object = ()) -> None:
        run(self, tensors, replaceable, observer)  # type: ignore[arg-type]

    with mock.patch.object(ExactPlan, "run", observed):
        yield observer
        torch.spyre.synchronize()  # Launches run on worker threads; what failed there is raised here.
