"""Predicted times of compiled operations against a roofline: bounds from the data sheet, not a fit.

Nothing can be faster than the card's peaks allow: 98.3 TFLOP/s of DL16 (D1.3) and 204.8 GB/s (D1.2) for each input read
and each output written once. And nothing that is spread over the cores should take more than a few times what the
measured rates give: 1140 MAC/ns a core (D1.3), 105 GB/s of balanced traffic (D1.2), with every temporary of the formula
written and read once.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from spyre_backend.compiler import explain_model
from spyre_backend.emulator.clock import program_time
from spyre_backend.program import Program

PEAK_FLOPS, PEAK_BANDWIDTH = 98.304e6, 204.8e3
"""Floating-point operations and bytes in a microsecond."""
SUSTAINED_FLOPS, BALANCED_BANDWIDTH = 2 * 1140e3 * 32, 105e3
SLACK = 2.0
"""Above the pessimistic roofline: uneven division, the rates of single operations (D7.2 to D7.5)."""


@pytest.fixture(autouse=True)
def fresh_dynamo() -> None:
    torch._dynamo.reset()


def predicted(function: Callable[..., Tensor], *sizes: tuple[int, ...]) -> float:
    """Microseconds of all programs that one call compiles to."""
    tensors = {f"x{i}": torch.zeros(size, dtype=torch.float16).to("spyre") for i, size in enumerate(sizes)}
    compiled = torch.compile(function, backend="inductor", dynamic=False)
    stages = explain_model(lambda **named: compiled(*named.values()), tensors)
    programs = [text.partition("\n")[2] for stage, text in stages if stage == "program"]
    return sum(program_time(Program.from_json(text)).us for text in programs)


def roofline(flops: float, once: float, temporaries: float) -> tuple[float, float]:
    """The least and the most microseconds for `flops`, bytes that must move and bytes that may."""
    least = max(flops / PEAK_FLOPS, once / PEAK_BANDWIDTH)
    most = flops / SUSTAINED_FLOPS + (once + 2 * temporaries) / BALANCED_BANDWIDTH
    return least, SLACK * most


@pytest.mark.parametrize("shape", [(512, 512, 512), (1024, 1024, 1024), (64, 4096, 1024), (512, 128, 2048)])
def test_matmul(shape: tuple[int, int, int]) -> None:
    rows, columns, width = shape
    least, most = roofline(2.0 * rows * columns * width, 2.0 * (rows * width + width * columns + rows * columns), 0.0)
    assert least <= predicted(torch.matmul, (rows, width), (width, columns)) <= most


@pytest.mark.parametrize("shape", [(512, 1024), (4096, 1024), (2048, 256)])
def test_softmax(shape: tuple[int, int]) -> None:
    """amax, sub, exp, sum, div: five passes; a reduced value takes a stick of 128 bytes for each row (D7.4)."""
    size = shape[0] * shape[1]
    least, most = roofline(5.0 * size, 4.0 * size, 2.0 * 2.0 * size + 2 * 128 * shape[0])
    assert least <= predicted(lambda x: torch.softmax(x, -1), shape) <= most


@pytest.mark.parametrize("shape", [(512, 1024), (4096, 1024), (2048, 2048)])
def test_rms_norm(shape: tuple[int, int]) -> None:
    """Square, mean, rsqrt, two products."""
    size = shape[0] * shape[1]
    least, most = roofline(5.0 * size, 4.0 * size + 2 * shape[1], 2.0 * 2.0 * size + 3 * 128 * shape[0])
    assert least <= predicted(lambda x, w: F.rms_norm(x, (shape[1],), w, 1e-6), shape, shape[1:]) <= most


def test_time_grows_with_the_work() -> None:
    """Twice the rows: never faster, and at most a little more than twice as long."""
    for function, size in ((lambda x: torch.softmax(x, -1), (1024, 1024)), (lambda x: x * 2 + 1, (2048, 1024))):
        small, large = predicted(function, size), predicted(function, (2 * size[0], size[1]))
        assert small < large < 2.2 * small
