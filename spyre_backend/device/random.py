"""Random number state of the device, kept apart from the CPU's."""

from __future__ import annotations

from typing import Any

import torch

from spyre_backend import _C

__all__ = [
    "default_generator",
    "get_rng_state",
    "initial_seed",
    "manual_seed",
    "manual_seed_all",
    "seed",
    "set_rng_state",
]


def default_generator() -> torch.Generator:
    """The generator that device operations use when none is given."""
    return _C.default_generator()


def manual_seed(seed: int) -> None:
    """Seeds the device; `torch.manual_seed` calls this, too."""
    default_generator().manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seeds every device; there is one."""
    manual_seed(seed)


def seed() -> int:
    """Seeds the device from the system's entropy and returns the seed."""
    return default_generator().seed()


def initial_seed() -> int:
    """The current seed."""
    return default_generator().initial_seed()


def get_rng_state(device: Any = "spyre") -> torch.Tensor:
    """State of the generator, a CPU tensor of dtype uint8."""
    return default_generator().get_state()


def set_rng_state(new_state: torch.Tensor, device: Any = "spyre") -> None:
    """Restores a state taken with :func:`get_rng_state`."""
    default_generator().set_state(new_state)
