"""Tiny checkpoints as they are published (names, shapes, config keys), and plain formulas that run on those names.

Nothing here uses the code under test: each formula reads the published weights and follows the description of its
family step by step, one sentence at a time, in float64.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

Weights = dict[str, Tensor]
WIDTH, HEADS, INNER, WORDS, LAYERS = 128, 2, 192, 50, 2


def write(folder: Path, config: dict[str, Any], weights: Weights) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file({name: value.contiguous() for name, value in weights.items()}, folder / "model.safetensors")
    return folder


def draw(shapes: dict[str, tuple[int, ...]], seed: int = 0) -> Weights:
    generator = torch.Generator().manual_seed(seed)
    made = {}
    for name, shape in shapes.items():
        centre = 1.0 if len(shape) == 1 and name.endswith("weight") else 0.0
        made[name] = centre + 0.15 * torch.randn(shape, generator=generator)
    return made


def linear(path: str, rows: int, columns: int, bias: bool = True) -> dict[str, tuple[int, ...]]:
    return {f"{path}.weight": (rows, columns), **({f"{path}.bias": (rows,)} if bias else {})}


def norm(path: str, width: int = WIDTH) -> dict[str, tuple[int, ...]]:
    return {f"{path}.weight": (width,), f"{path}.bias": (width,)}


def double(weights: Weights) -> Weights:
    return {name: value.double() for name, value in weights.items()}


def apply(weights: Weights, path: str, x: Tensor) -> Tensor:
    y = x @ weights[f"{path}.weight"].T
    bias = weights.get(f"{path}.bias")
    return y if bias is None else y + bias


def normalise(weights: Weights, path: str, x: Tensor, eps: float) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    spread = (centred.pow(2).mean(-1, keepdim=True) + eps).sqrt()
    return centred / spread * weights[f"{path}.weight"] + weights[f"{path}.bias"]


def gelu(x: Tensor) -> Tensor:
    return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


def softmax_row(scores: Tensor) -> Tensor:
    return torch.exp(scores - scores.max()) / torch.exp(scores - scores.max()).sum()


def rotate(x: Tensor, theta: float) -> Tensor:
    """NeoX rotation of ``[tokens, head]``, pair by pair."""
    out, half = torch.empty_like(x), x.shape[1] // 2
    for position in range(x.shape[0]):
        for i in range(half):
            angle = position * theta ** (-2.0 * i / x.shape[1])
            a, b = x[position, i], x[position, i + half]
            out[position, i] = a * math.cos(angle) - b * math.sin(angle)
            out[position, i + half] = b * math.cos(angle) + a * math.sin(angle)
    return out


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    heads: int = HEADS,
    slopes: list[float] | None = None,
    theta: float | None = None,
    causal: bool = False,
) -> Tensor:
    """``[tokens, width]`` of one sentence without padding; keys may have fewer heads than queries."""
    tokens, size = q.shape[0], q.shape[1] // heads
    group = heads // (k.shape[1] // size)
    out = torch.empty(tokens, heads * size, dtype=q.dtype)
    for head in range(heads):
        of_q = slice(head * size, (head + 1) * size)
        of_k = slice(head // group * size, (head // group + 1) * size)
        a, b = q[:, of_q], k[:, of_k]
        if theta is not None:
            a, b = rotate(a, theta), rotate(b, theta)
        for i in range(tokens):
            last = i + 1 if causal else tokens
            scores = (b[:last] @ a[i]) / math.sqrt(size)
            if slopes is not None:
                scores = scores - slopes[head] * torch.tensor([abs(i - j) for j in range(last)], dtype=q.dtype)
            out[i, of_q] = softmax_row(scores) @ v[:last, of_k]
    return out


def sentences() -> tuple[Tensor, Tensor]:
    """Ids and mask ``[3, 11]``: a full row, a short one and a single token."""
    ids = torch.randint(3, WORDS, (3, 11), generator=torch.Generator().manual_seed(5))
    mask = (torch.arange(11)[None, :] < torch.tensor([[11], [6], [1]])).long()
    return ids, mask


def largest_difference(states: Tensor, mask: Tensor, expected: list[Tensor]) -> float:
    """Over the tokens that are not padding."""
    rows = [states[row, : int(mask[row].sum())] for row in range(len(expected))]
    return max(float((ours - theirs).abs().max()) for ours, theirs in zip(rows, expected, strict=True))


def embed(weights: Weights, row: Tensor, norm_path: str, eps: float) -> Tensor:
    words = weights["embeddings.word_embeddings.weight"][row]
    return normalise(weights, norm_path, words + weights["embeddings.token_type_embeddings.weight"][0], eps)


def slopes_of(heads: int) -> list[float]:
    """Slopes as the description of ALiBi gives them: the rule for powers of two, filled up from twice as many."""
    if math.log2(heads).is_integer():
        start = 2.0 ** (-8.0 / heads)
        return [start ** (i + 1) for i in range(heads)]
    smaller = 2 ** int(math.log2(heads))
    return slopes_of(smaller) + slopes_of(2 * smaller)[0::2][: heads - smaller]
