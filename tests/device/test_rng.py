"""Random numbers on the device have a state of their own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

Draw = Callable[[], torch.Tensor]

DRAWS: dict[str, Draw] = {
    "randn": lambda: torch.randn(5, device="spyre", dtype=torch.float16),
    "rand": lambda: torch.rand(5, device="spyre"),
    "randint": lambda: torch.randint(0, 100, (5,), device="spyre", dtype=torch.int32),
    "randperm": lambda: torch.randperm(20, device="spyre", dtype=torch.int32),
    "bernoulli": lambda: torch.zeros(30, device="spyre").bernoulli_(0.5),
    "normal_": lambda: torch.empty(5, device="spyre").normal_(2, 3),
    "uniform_": lambda: torch.empty(5, device="spyre").uniform_(-1, 1),
    "dropout": lambda: torch.nn.functional.dropout(torch.ones(30, device="spyre"), 0.5),
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_seed_determines_the_numbers(name: str) -> None:
    torch.spyre.manual_seed(7)
    first, second = DRAWS[name]().cpu(), DRAWS[name]().cpu()
    torch.manual_seed(7)
    assert torch.equal(DRAWS[name]().cpu(), first)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("name", DRAWS)
def test_the_state_can_be_restored(name: str) -> None:
    state = torch.spyre.get_rng_state()
    first = DRAWS[name]().cpu()
    torch.spyre.set_rng_state(state)
    assert torch.equal(DRAWS[name]().cpu(), first)


@pytest.mark.parametrize("name", DRAWS)
def test_the_cpu_state_is_left_alone(name: str) -> None:
    before = torch.get_rng_state()
    DRAWS[name]()
    assert torch.equal(torch.get_rng_state(), before)


def test_generators_of_the_device() -> None:
    generator = torch.Generator(device="spyre").manual_seed(3)
    first = torch.randn(4, device="spyre", generator=generator).cpu()
    assert generator.device == torch.device("spyre:0")
    assert torch.equal(torch.randn(4, device="spyre", generator=generator.manual_seed(3)).cpu(), first)
    perm = torch.randperm(9, device="spyre", dtype=torch.int32, generator=generator)
    assert sorted(perm.tolist()) == list(range(9))


def test_normal_and_uniform_have_their_parameters() -> None:
    numbers = torch.empty(20000, device="spyre").normal_(2, 3).cpu()
    assert abs(numbers.mean() - 2) < 0.1
    assert abs(numbers.std() - 3) < 0.1
    uniform = torch.empty(20000, device="spyre").uniform_(-1, 3).cpu()
    assert uniform.min() >= -1
    assert uniform.max() <= 3
    assert abs(uniform.mean() - 1) < 0.1


def test_seed_and_initial_seed() -> None:
    seed = torch.spyre.seed()
    assert torch.spyre.initial_seed() == seed
    torch.spyre.manual_seed_all(11)
    assert torch.spyre.initial_seed() == 11


def test_fork_rng_covers_the_device() -> None:
    torch.spyre.manual_seed(1)
    with torch.random.fork_rng(devices=[0], device_type="spyre"):
        inside = torch.randn(3, device="spyre").cpu()
    assert torch.equal(torch.randn(3, device="spyre").cpu(), inside)
