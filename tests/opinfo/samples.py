"""Which calls of an OpInfo or ModuleInfo entry are run: a spread of a few, or all (``SPYRE_OPINFO=all``)."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from tests.opinfo.judge import Call, Outcome, judge

CORE = tuple((Path(__file__).parent / "core.txt").read_text(encoding="utf-8").split())
"""Operators that embedding models use, as PyTorch's OpInfo names them."""
ALL = os.environ.get("SPYRE_OPINFO") == "all"
FEW = {"eager": 3, "compiled": 2}
"""Samples of each operator in an ordinary run."""


DTYPES = (torch.float16, torch.int64, torch.bfloat16, torch.float32, torch.bool)
"""Dtypes that the device stores, in the order in which one stands for all."""
MODES = ("eager", "compiled")


def dtypes_of(info: Any) -> list[torch.dtype]:
    """Dtypes to run an OpInfo or ModuleInfo in: all of them, or fp16, or int64 for what knows integers only."""
    known = [dtype for dtype in DTYPES if dtype in info.dtypes]
    return known if ALL else known[:1]


def standing(info: Any) -> Any:
    """The OpInfo or ModuleInfo with the dtypes to run only."""
    entry = copy.copy(info)
    entry.dtypes = dtypes_of(info)
    return entry


def spread(count: int, few: int) -> list[int]:
    """Positions of ``few`` samples out of ``count``, from the first to the last; the first if one is wanted."""
    if ALL or count <= few:
        return list(range(count))
    return sorted({round(i * (count - 1) / max(few - 1, 1)) for i in range(few)})


def calls(op: Any, dtype: torch.dtype, mode: str) -> Iterator[tuple[int, Call]]:
    """Numbered samples of an OpInfo, made on the CPU from one seed."""
    torch.manual_seed(0)
    samples = list(op.sample_inputs("cpu", dtype, requires_grad=False))
    for position in spread(len(samples), FEW[mode]):
        sample = samples[position]
        yield position, ((sample.input, *sample.args), dict(sample.kwargs))


def in_mode(function: Callable[..., Any], mode: str) -> Callable[..., Any]:
    """The function as it is, or freshly compiled."""
    if mode == "eager":
        return function
    torch._dynamo.reset()
    return torch.compile(function, backend="inductor", dynamic=False)


UNSEEDED = {
    "item": torch.Tensor.item,
    "nn.functional.dropout": torch.nn.functional.dropout,
    "nn.functional.scaled_dot_product_attention": torch.nn.functional.scaled_dot_product_attention,
}
"""PyTorch's own entries seed the generators inside the function, which Dynamo cannot trace on any device: to restore
their state where no tensor may be faked hides the refusal that led there."""


def outcomes(op: Any, dtype: torch.dtype, mode: str, device: str) -> Iterable[tuple[int, Outcome]]:
    """Run the chosen samples of an OpInfo."""

    def seeded(*args: Any, **kwargs: Any) -> Any:
        return op.op(*args, **kwargs)

    function = UNSEEDED.get(op.full_name, seeded) if mode == "compiled" else seeded
    for position, call in calls(op, dtype, mode):
        yield position, judge(in_mode(function, mode), call, device, reference=seeded)
