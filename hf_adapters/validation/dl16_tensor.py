"""A CPU tensor that says it is float16 or bfloat16 and holds DL16 values in float32.

Model code asks tensors for their dtype (`hidden.to(input_dtype)`, `torch.finfo(x.dtype).min`), so the simulation must
show the dtype of the model while keeping the device's format, which both have there (D1.5, D1.6).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map


class DL16Tensor(torch.Tensor):
    """A half-precision tensor to its reader, float32 with DL16 values inside (`dl16`)."""

    dl16: Tensor

    @staticmethod
    def __new__(cls, values: Tensor, dtype: torch.dtype = torch.float16) -> DL16Tensor:
        """Wrap float32 `values`, which must be DL16 numbers already; storage is shared. `dtype` is what it shows."""
        return torch.Tensor._make_wrapper_subclass(
            cls,
            values.size(),
            strides=values.stride(),
            storage_offset=values.storage_offset(),
            dtype=dtype,
            device=values.device,
        )

    def __init__(self, values: Tensor, dtype: torch.dtype = torch.float16) -> None:
        self.dl16 = values

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def __repr__(self) -> str:  # type: ignore[override]
        return f"DL16Tensor({self.dl16!r})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        from hf_adapters.validation.floor import device_format

        with device_format():
            return func(*args, **(kwargs or {}))


def plain(value: Any) -> Any:
    """Replace every `DL16Tensor` in a nest of containers by its float32 values."""
    return tree_map(lambda leaf: leaf.dl16 if isinstance(leaf, DL16Tensor) else leaf, value)
