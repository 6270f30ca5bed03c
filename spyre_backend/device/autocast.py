"""Autocast: matrix products run in the chosen 16-bit dtype, everything else as it is.

The device multiplies matrices in DL16 only (D1.6), so these are the operators whose float32 operands autocast lowers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

__all__ = ["LOWERED", "install"]

LOWERED = ("mm", "bmm", "addmm", "baddbmm", "matmul", "linear")
_KEY = "AutocastPrivateUse1"
_libraries: list[torch.library.Library] = []


def install(device: str) -> None:
    """Registers the kernels of autocast (idempotent)."""
    if _libraries:
        return
    every, aten = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    every.fallback(torch.library.fallthrough_kernel, _KEY)  # type: ignore[no-untyped-call]
    for name in LOWERED:
        aten.impl(name, _lowered(getattr(torch.ops.aten, name).default, device), _KEY)  # type: ignore[no-untyped-call]
    _libraries.extend((every, aten))


def _lowered(op: torch._ops.OpOverload, device: str) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        dtype = torch.get_autocast_dtype(device)

        def cast(tensor: Tensor) -> Tensor:
            return tensor.to(dtype) if tensor.is_floating_point() and tensor.device.type == device else tensor

        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, _KEY))):
            args, kwargs = pytree.tree_map_only(Tensor, cast, (args, kwargs))
            return op(*args, **kwargs)

    kernel.__name__ = f"spyre_autocast_{op.__name__}"
    return kernel
