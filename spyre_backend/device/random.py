"""Random number state of the devices, kept apart from the CPU's."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from spyre_backend import _C
from spyre_backend.device.selection import DeviceLike, device_count, device_index

__all__ = [
    "default_generator",
    "get_rng_state",
    "get_rng_state_all",
    "initial_seed",
    "manual_seed",
    "manual_seed_all",
    "seed",
    "seed_all",
    "set_rng_state",
    "set_rng_state_all",
]


def default_generator(device: DeviceLike = None) -> torch.Generator:
    """The generator that operations on a device use when none is given."""
    return _C.default_generator(device_index(device))


def manual_seed(seed: int) -> None:
    """Seeds the current device."""
    default_generator().manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seeds every device; `torch.manual_seed` calls this, too."""
    for index in range(device_count()):
        default_generator(index).manual_seed(int(seed))


def seed() -> int:
    """Seeds the current device from the system's entropy and returns the seed."""
    return default_generator().seed()


def seed_all() -> None:
    """Seeds every device with one seed from the system's entropy."""
    manual_seed_all(seed())


def initial_seed() -> int:
    """The current device's seed."""
    return default_generator().initial_seed()


def get_rng_state(device: DeviceLike = None) -> torch.Tensor:
    """State of a device's generator, a CPU tensor of dtype uint8."""
    return default_generator(device).get_state()


def get_rng_state_all() -> list[torch.Tensor]:
    """States of all devices' generators."""
    return [get_rng_state(index) for index in range(device_count())]


def set_rng_state(new_state: torch.Tensor, device: DeviceLike = None) -> None:
    """Restores a state taken with :func:`get_rng_state`."""
    default_generator(device).set_state(new_state)


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Restores states taken with :func:`get_rng_state_all`."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)
