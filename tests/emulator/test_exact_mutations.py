"""A planner's mistakes, made at random in programs that the compiler planned: each is refused or does no harm.

Mutations touch what the plan decides (addresses, offsets, division, core order, layouts, order of operations), never
what is computed.  So a mutated program either gives the result of the unmutated one or is refused; a different result
would be a mistake that the executor lets pass.
"""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._inductor import config

from spyre_backend.compiler import settings, stages
from spyre_backend.emulator.exact import ExactPlan
from spyre_backend.emulator.exact_errors import ExactExecutionError
from spyre_backend.program import Operand, Program
from tests.emulator.exact_programs import values


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = torch.softmax((q * 0.125) @ k.transpose(-1, -2), -1)
    return torch.relu(weights @ v) + q


def norm(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
    scaled = x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1.0) * w
    return torch.cat([scaled + y, scaled * y], 0) * torch.sigmoid(scaled.sum(0))


GRAPHS: dict[str, tuple[Callable[..., Tensor], list[tuple[int, ...]], int]] = {
    "attention": (attention, [(2, 64, 64)] * 3, 4),
    "norm": (norm, [(2, 200), (200,), (2, 200)], 8),
}


def planned(name: str, **changes: Any) -> Program:
    """The program that the compiler makes of a graph."""
    function, sizes, cores = GRAPHS[name]
    torch._dynamo.reset()
    inputs = [torch.ones(size, dtype=torch.float16, device="spyre") for size in sizes]
    uncached = config.patch(force_disable_caches=True)
    with settings.using(cores=cores, **changes), stages.recording() as seen, torch.no_grad(), uncached:
        torch.compile(function, backend="inductor", dynamic=False)(*inputs)
    (text,) = [s.text for s in seen if s.stage == "program"]
    return Program.from_json(text)


def outcome(made: Program) -> dict[str, Tensor]:
    tensors = {t.name: values(t, seed) for seed, t in enumerate(made.tensors) if t.kind != "temp"}
    ExactPlan(made).run(tensors)
    return {t.name: tensors[t.name] for t in made.tensors if t.kind in ("output", "inout")}


def move_resident(made: Program, rng: random.Random) -> Program:
    places = sorted({t.lx_address for t in made.tensors if t.lx_address is not None})
    others = [*places, *(p + 128 for p in places), places[-1] + 64, 1_625_344]
    return _tensor(made, rng, lambda t: t.lx_address is not None, lambda t: {"lx_address": rng.choice(others)})


def move_temporary(made: Program, rng: random.Random) -> Program:
    places = sorted({t.hbm_offset for t in made.tensors if t.hbm_offset is not None})
    others = [None, *places, *(p + 128 for p in places)]
    return _tensor(made, rng, lambda t: t.hbm_offset is not None, lambda t: {"hbm_offset": rng.choice(others)})


def swap_strides(made: Program, rng: random.Random) -> Program:
    def swapped(t: Any) -> dict[str, Any]:
        steps = list(t.layout.stride_map)
        a, b = rng.sample(range(len(steps)), 2)
        steps[a], steps[b] = steps[b], steps[a]
        return {"layout": dataclasses.replace(t.layout, stride_map=tuple(steps))}

    return _tensor(made, rng, lambda t: t.kind == "temp" and len(t.size) > 1, swapped)


def _tensor(made: Program, rng: random.Random, which: Callable[[Any], bool], change: Callable[[Any], Any]) -> Program:
    chosen = rng.choice([t for t in made.tensors if which(t)])
    mutated = dataclasses.replace(chosen, **change(chosen))
    return dataclasses.replace(made, tensors=tuple(mutated if t is chosen else t for t in made.tensors))


def redivide(made: Program, rng: random.Random) -> Program:
    def change(op: Any) -> dict[str, Any]:
        split = list(op.split)
        rng.shuffle(split)
        return {"split": tuple(split)}

    return _op(made, rng, change)


def renumber(made: Program, rng: random.Random) -> Program:
    def change(op: Any) -> dict[str, Any]:
        order = list(op.core_order or range(len(op.dims)))
        rng.shuffle(order)
        return {"core_order": tuple(order[: rng.randint(1, len(order))])}

    return _op(made, rng, change)


def _op(made: Program, rng: random.Random, change: Callable[[Any], dict[str, Any]]) -> Program:
    place = rng.randrange(len(made.ops))
    ops = [dataclasses.replace(op, **change(op)) if i == place else op for i, op in enumerate(made.ops)]
    return dataclasses.replace(made, ops=tuple(ops))


def reorder(made: Program, rng: random.Random) -> Program:
    ops = list(made.ops)
    a, b = rng.sample(range(len(ops)), 2)
    ops[a], ops[b] = ops[b], ops[a]
    return dataclasses.replace(made, ops=tuple(ops))


def restick(made: Program, rng: random.Random) -> Program:
    """An operand claims another stick loop."""

    def change(op: Any) -> dict[str, Any]:
        places = [i for i, o in enumerate(op.inputs) if isinstance(o, Operand)]
        place, stick = rng.choice(places), rng.choice([None, *range(len(op.dims))])
        inputs = list(op.inputs)
        inputs[place] = dataclasses.replace(inputs[place], stick=stick)
        return {"inputs": tuple(inputs)}

    return _op(made, rng, change)


MUTATIONS: dict[str, Callable[[Program, random.Random], Program]] = {
    f.__name__: f for f in (move_resident, move_temporary, swap_strides, redivide, renumber, reorder, restick)
}


@pytest.fixture(scope="module", params=[("attention", True), ("norm", True), ("norm", False)])
def program(request: pytest.FixtureRequest) -> tuple[Program, dict[str, Tensor]]:
    """A planned program and its result, with temporaries in the scratchpads or without."""
    name, resident = request.param
    made = planned(name, lx_planning=resident)
    return made, outcome(made)


@pytest.mark.parametrize("name", MUTATIONS)
def test_mistakes_are_refused_or_harmless(program: tuple[Program, dict[str, Tensor]], name: str) -> None:
    made, expected = program
    placed = {"move_resident": "lx_address", "move_temporary": "hbm_offset"}.get(name)
    if placed is not None and all(getattr(t, placed) is None for t in made.tensors):
        pytest.skip("this plan has nothing there")
    seen: Counter[str] = Counter()
    for seed in range(15):
        mutated = MUTATIONS[name](made, random.Random(seed))
        if mutated == made:
            continue
        try:
            got = outcome(mutated)
        except ExactExecutionError as error:
            seen[type(error).__name__] += 1
            continue
        seen["harmless"] += 1
        for tensor, value in expected.items():
            torch.testing.assert_close(got[tensor], value, rtol=2.0**-6, atol=2.0**-6, msg=f"{name}, seed {seed}")
    assert sum(seen.values()) > seen["harmless"], seen
