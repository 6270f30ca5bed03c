"""Registers the device with PyTorch: its name, its module, its printing."""

from __future__ import annotations

import atexit
import gc
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import backend_registration

_on_first_use: list[Callable[[], None]] = []


def on_first_use(callback: Callable[[], None]) -> None:
    """Calls `callback` when the device is first used in this process.

    A callback added later than that is called at once.
    """
    from spyre_backend import _C

    if _C.is_initialised():
        callback()
    else:
        _on_first_use.append(callback)


def register(name: str) -> None:
    """Makes `torch.device(name)`, `torch.<name>` and `Tensor.<name>()` work."""
    backend_registration.rename_privateuse1_backend(name)
    from spyre_backend import _C

    if not hasattr(_C, "Launcher"):
        raise ImportError(
            "the native part of spyre_backend is older than its Python part; build it again with "
            "`pip install --no-build-isolation -e .`, or `python setup.py build_ext --inplace` in the checkout"
        )
    from spyre_backend.device import module

    torch._register_device_module(name, module)  # type: ignore[no-untyped-call]
    backend_registration.generate_methods_for_privateuse1_backend(for_storage=True)
    _C.set_pressure_callback(gc.collect)
    _C.set_initialise_callback(_run_callbacks)
    on_first_use(_apply_release)
    _print_through_host(name)


def _run_callbacks() -> None:
    while _on_first_use:
        _on_first_use.pop(0)()


def _apply_release() -> None:
    from spyre_backend import _C, capabilities
    from spyre_backend.device import autocast, numerics
    from spyre_backend.runtime import dispatch

    numerics.apply_current()
    capabilities.on_change(numerics.apply_current)
    dispatch.apply()
    autocast.install("spyre")
    # Worker threads end before the interpreter does; registered late, so that it runs early.
    atexit.register(_C.shut_down)


def _print_through_host(name: str) -> None:
    """Formats tensors on the CPU, so that printing one counts no fallback."""
    from torch import _tensor_str

    stock: Any = _tensor_str._tensor_str

    def from_host(tensor: torch.Tensor, indent: int) -> Any:
        return stock(tensor.cpu() if tensor.device.type == name else tensor, indent)

    _tensor_str._tensor_str = from_host
