"""The structure of one step of Granite 3.3 8B, batch 1: its layers and head compiled at full size, without values.

Weights are device tensors that nobody writes, so they take no host memory; launches take their simulated time and
compute nothing (:func:`structure_only`).  A layer is compiled as two regions, attention and MLP: 81 launches of a step.
How many programs the published runs launched is not known.  Two for a layer were chosen to fit the published 1.7x and
2.4x, as the number of copies (``STEP_COPIES``) was chosen to fit 9.9 % and 13.6 %; both are inferred.  With one launch
for a layer the graph path would cost half as much.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from spyre_backend import _C

LAYERS = 40
HIDDEN = 4096
HEADS = 32
KV_HEADS = 8
HEAD_DIM = HIDDEN // HEADS
INTERMEDIATE = 12_800
VOCABULARY = 49_280  # 49,159 padded to a stick count that the cores divide
CONTEXT = 1024
RESIDUAL = 0.22


class RMSNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(HIDDEN))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * self.weight


class Attention(nn.Module):
    """The first half of a decoder layer: grouped attention over a cache of `CONTEXT` positions."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = RMSNorm()
        self.q = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.k = nn.Linear(HIDDEN, KV_HEADS * HEAD_DIM, bias=False)
        self.v = nn.Linear(HIDDEN, KV_HEADS * HEAD_DIM, bias=False)
        self.o = nn.Linear(HIDDEN, HIDDEN, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, keys: Tensor, values: Tensor) -> Any:
        batch, length, _ = x.shape
        normed = self.norm(x)
        q = self.q(normed).view(batch, length, HEADS, HEAD_DIM).transpose(1, 2)
        k = self.k(normed).view(batch, length, KV_HEADS, HEAD_DIM).transpose(1, 2)
        v = self.v(normed).view(batch, length, KV_HEADS, HEAD_DIM).transpose(1, 2)
        q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
        # In prefill the step's own keys are the context; a decoding step reads the cache.
        context = (k, v) if length == CONTEXT else (keys, values)
        attended = _attend(q, *context, mask)
        return x + self.o(attended.transpose(1, 2).reshape(batch, length, HIDDEN)) * RESIDUAL, k, v


class MLP(nn.Module):
    """The second half of a decoder layer: a gated MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = RMSNorm()
        self.gate, self.up = (nn.Linear(HIDDEN, INTERMEDIATE, bias=False) for _ in range(2))
        self.down = nn.Linear(INTERMEDIATE, HIDDEN, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm(x)
        return x + self.down(torch.nn.functional.silu(self.gate(normed)) * self.up(normed)) * RESIDUAL


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = HEAD_DIM // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    group = HEADS // KV_HEADS
    k, v = (t[:, :, None].expand(-1, -1, group, -1, -1).reshape(1, HEADS, CONTEXT, HEAD_DIM) for t in (k, v))
    scores = q @ k.transpose(2, 3) * 0.0078125 + mask
    return torch.softmax(scores, -1) @ v


@dataclass(frozen=True)
class Step:
    """What a step launches: the compiled halves of a layer and the head, with their arguments."""

    attention: Any
    mlp: Any
    head: Any
    arguments: tuple[Tensor, ...]

    def run(self, copies: int) -> None:
        """Queue one step with `copies` copies of one stick between host and device, half of them to the host."""
        host, device = torch.empty(64, dtype=torch.float16), _empty(64)
        for _ in range(copies - copies // 2):
            device.copy_(host)
        x = self.arguments[0]
        for _ in range(LAYERS):
            x = self.mlp(self.attention(x, *self.arguments[1:])[0])
        self.head(x)
        for _ in range(copies // 2):
            host.copy_(device)


def _empty(*size: int) -> Tensor:
    return torch.empty(size, dtype=torch.float16, device="spyre")


def _on_device(module: nn.Module) -> nn.Module:
    return module.half().to_empty(device="spyre").eval()


@torch.no_grad()
def make_step(length: int) -> Step:
    """Compile the step for `length` new positions: `CONTEXT` (prefill) or 1 (decode)."""
    with torch.device("meta"):
        modules = (Attention(), MLP(), RMSNorm(), nn.Linear(HIDDEN, VOCABULARY, bias=False))
    attention, mlp, norm, head = (_on_device(module) for module in modules)

    def last(x: Tensor) -> Tensor:
        scores: Tensor = head(norm(x[:, -1:]))
        return scores

    tables = (_empty(1, 1, length, HEAD_DIM), _empty(1, 1, length, HEAD_DIM), _empty(1, 1, length, CONTEXT))
    cache = (_empty(1, KV_HEADS, CONTEXT, HEAD_DIM), _empty(1, KV_HEADS, CONTEXT, HEAD_DIM))
    step = Step(
        *(torch.compile(part, backend="inductor", dynamic=False) for part in (attention, mlp, last)),
        (_empty(1, length, HIDDEN), *tables, *cache),
    )
    step.run(0)  # compiles
    torch.spyre.synchronize()
    return step


@contextmanager
def structure_only() -> Iterator[None]:
    """Launches take simulated time and compute nothing, in the whole process."""
    torch.spyre.synchronize()
    _C.skip_compute(True)
    try:
        yield
    finally:
        torch.spyre.synchronize()
        _C.skip_compute(False)
