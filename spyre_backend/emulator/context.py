"""What an operation knows besides its operands: attributes, dtypes, and the release's numeric settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from spyre_backend.capabilities.model import Numerics
from spyre_backend.emulator.numerics import dl16_round_
from spyre_backend.program import Scalar

TORCH_DTYPES: Mapping[str, torch.dtype] = {
    "float16": torch.float32,
    "bfloat16": torch.float32,
    "float32": torch.float32,
    "float8_e4m3fn": torch.float32,
    "int64": torch.int64,
    "int32": torch.int32,
    "int16": torch.int16,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "bool": torch.bool,
}
"""Working dtype in the executor for each dtype of a program: 16-bit floats are DL16 values held in float32,
and so are those of 8 bits."""

DL16_DTYPES = frozenset({"float16", "bfloat16"})
"""Both are stored as SEN169_FP16 on the device (D1.6)."""


class ExecutionError(Exception):
    """An operation cannot be executed as written; the executor adds which one and where it comes from."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Context:
    """One operation's setting.

    ``dl16`` says that it computes in the 16-bit format: one of its float operands, or its output if it has none, is
    fp16 or bf16.
    """

    name: str
    dims: tuple[int, ...]
    reduced: int
    attrs: Mapping[str, Scalar | str]
    in_dtypes: tuple[str, ...]
    out_dtype: str
    dl16: bool
    numerics: Numerics

    def round(self, x: Tensor) -> Tensor:
        """`x` (a fresh float32 tensor) as the datapath holds it: rounded to DL16 unless the operation runs in fp32."""
        return dl16_round_(x) if self.dl16 else x

    def number(self, name: str, default: float | None = None) -> float:
        """Numeric attribute `name` as the device encodes constants; ExecutionError if missing without default."""
        value = self.attrs.get(name, default)
        if value is None or isinstance(value, str):
            raise ExecutionError(f"attribute {name!r} must be a number, not {value!r}")
        return constant(float(value), self.dl16, self.numerics)

    def integer(self, name: str) -> int:
        """Integer attribute `name`; ExecutionError if it is missing or not integral."""
        value = self.attrs.get(name)
        if value is None or isinstance(value, str) or int(value) != value:
            raise ExecutionError(f"attribute {name!r} must be an integer, not {value!r}")
        return int(value)


Primitive = Callable[..., Tensor]
"""`(context, *operands) -> result`; the executor rounds and casts the result to the output's dtype."""


def constant(value: float, dl16: bool, numerics: Numerics) -> float:
    """A compile-time constant as the device holds it: infinities are encoded as NaN (#4234, D1.5), the rest rounded.

    With ``constant_inf = "keep"`` an infinity of a 32-bit operation survives; DL16 has no code for it.
    """
    if value in (torch.inf, -torch.inf) and (dl16 or numerics.constant_inf == "nan"):
        return torch.nan
    held = torch.tensor(value, dtype=torch.float32, device="cpu")
    return float(dl16_round_(held)) if dl16 else float(held)
