"""Rotary position embedding as a product with a constant matrix, and its tables computed on the host.

Rotating halves by slicing needs half a head to fill whole sticks (D6.2a), and written with slices and cat it was
silently wrong in float16 (D2.8, #3138). A product with a matrix of 0 and +-1 is exact and has no slices.
"""

from __future__ import annotations

import copy
import inspect
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hf_adapters.adapters._sticks import HALF_DTYPES

POSITION_EMBEDDINGS = "position_embeddings"


def rotation_matrix(source: Tensor, *, width: int, padded: int, interleaved: bool) -> Tensor:
    """The matrix R with ``x @ R`` equal to rotating the halves, or the pairs, of the first ``width`` elements.

    Args:
        source: only tells dtype and device.
        width: elements that are rotated (even).
        padded: size of the matrix; rows and columns beyond ``width`` are zero.
        interleaved: pairs are neighbours ``(2i, 2i + 1)`` instead of ``(i, i + width / 2)``.

    Returns:
        ``[padded, padded]`` with elements 0, 1 and -1.
    """
    matrix = torch.zeros(padded, padded, dtype=source.dtype)
    step = torch.arange(width // 2)
    first, second = (2 * step, 2 * step + 1) if interleaved else (step, step + width // 2)
    matrix[second, first] = -1.0
    matrix[first, second] = 1.0
    return matrix


def rotate(x: Tensor, cos: Tensor, sin: Tensor, matrix: Tensor, *, in_float32: bool) -> Tensor:
    """``x * cos + (x @ matrix) * sin``.

    Args:
        x: ``[..., head]``, made contiguous first (D6.10).
        cos: broadcastable to ``x``.
        sin: broadcastable to ``x``.
        matrix: ``[head, head]`` from :func:`rotation_matrix`.
        in_float32: the stock function casts to float32; 16-bit inputs stay as they are, for a float32 matmul has no
            kernel (D1.6) and the matrix only permutes.
    """
    x = x.contiguous()
    turned = torch.matmul(x, matrix)
    if in_float32 and x.dtype not in HALF_DTYPES:
        return (x.float() * cos + turned.float() * sin).to(x.dtype)
    return x * cos + turned * sin


def _both(q: Tensor, k: Tensor, cos: Tensor, sin: Any, unsqueeze_dim: int, in_float32: bool) -> tuple[Tensor, Tensor]:
    table, matrix = sin
    cos, table = cos.unsqueeze(unsqueeze_dim), table.unsqueeze(unsqueeze_dim)
    turned_q = rotate(q, cos, table, matrix, in_float32=in_float32)
    return turned_q, rotate(k, cos, table, matrix, in_float32=in_float32)


def apply_rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Any, unsqueeze_dim: int = 1) -> tuple[Tensor, Tensor]:
    """Stands in for ``apply_rotary_pos_emb``; ``sin`` is the pair (table, matrix) that :class:`MatrixRotary` makes."""
    return _both(q, k, cos, sin, unsqueeze_dim, in_float32=False)


def apply_rotary_float32(q: Tensor, k: Tensor, cos: Tensor, sin: Any, unsqueeze_dim: int = 1) -> tuple[Tensor, Tensor]:
    """As :func:`apply_rotary`, for stock functions that cast their inputs to float32."""
    return _both(q, k, cos, sin, unsqueeze_dim, in_float32=True)


def apply_rotary_single(tensor: Tensor, sin: Any, cos: Tensor) -> Tensor:
    """Stands in for functions of one tensor ``[batch, tokens, heads, head]`` that take the sine first (GPT-J)."""
    table, matrix = sin
    return rotate(tensor, cos[:, :, None, :], table[:, :, None, :], matrix, in_float32=False)


class MatrixRotary(nn.Module):
    """Mixin for attention modules whose forward was rebound to the functions above.

    Attributes:
        rotation: ``[head, head]``, derived.
        tables_at: index of ``position_embeddings`` among the positional arguments of the stock forward.
        sine_first: the pair of tables is (sin, cos) instead of (cos, sin).
    """

    keeps_signature = True
    rotation: Tensor
    tables_at: int
    sine_first: bool = False

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The stock forward; the tables may be narrower than the head, as the stock tables of a padded head are."""
        if POSITION_EMBEDDINGS in kwargs:
            kwargs[POSITION_EMBEDDINGS] = self._with_matrix(kwargs[POSITION_EMBEDDINGS])
        elif len(args) > self.tables_at:
            tables = self._with_matrix(args[self.tables_at])
            args = (*args[: self.tables_at], tables, *args[self.tables_at + 1 :])
        return super().forward(*args, **kwargs)

    def _with_matrix(self, tables: Any) -> Any:
        if tables is None:
            return None
        cos, sin = reversed(tables) if self.sine_first else tables
        width = self.rotation.shape[0]
        if cos.shape[-1] < width:
            cos, sin = widen_tables(cos, sin, width)
        return ((sin, self.rotation), cos) if self.sine_first else (cos, (sin, self.rotation))


def widen_tables(cos: Tensor, sin: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Tables ``[..., n]`` with the identity rotation appended up to ``width`` elements."""
    missing = (0, width - cos.shape[-1])
    return F.pad(cos, missing, value=1.0), F.pad(sin, missing, value=0.0)


class HostTables(nn.Module):
    """Mixin for modules that make the cos and sin tables: they run on the host, in float32.

    sin and cos have no kernel (D5.2), and frequencies rounded to 16 bits turn distant tokens by wrong angles.

    Attributes:
        host: one-element tuple with a float32 CPU copy of the stock module; the tuple hides it from the module tree.
        table_width: width to which the tables are padded with the identity; None leaves them alone.
        sine_first: the stock module returns (sin, cos).
        pairs: the stock tables hold one value for each pair of neighbours; ours hold it twice.
    """

    keeps_signature = True
    host: tuple[nn.Module]
    table_width: int | None = None
    sine_first: bool = False
    pairs: bool = False

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        """As stock: tables in the dtype and on the device of ``x``."""
        here = [a.cpu() if isinstance(a, Tensor) else a for a in args]
        named = {k: v.cpu() if isinstance(v, Tensor) else v for k, v in kwargs.items()}
        tables = self.host[0](torch.empty(0, dtype=torch.float32), *here, **named)
        cos, sin = reversed(tables) if self.sine_first else tables
        if self.pairs:
            cos, sin = cos.repeat_interleave(2, dim=-1), sin.repeat_interleave(2, dim=-1)
        if self.table_width is not None and cos.shape[-1] < self.table_width:
            cos, sin = widen_tables(cos, sin, self.table_width)
        cos, sin = cos.to(x.dtype).to(x.device), sin.to(x.dtype).to(x.device)
        return (sin, cos) if self.sine_first else (cos, sin)


class PairedTable(nn.Embedding):
    """Mixin for tables ``[positions, head]`` of sines and then cosines, one for each pair of neighbours (RoFormer)."""

    def forward(self, input_ids_shape: Any, cache_length: int = 0, position_ids: Tensor | None = None) -> Tensor:
        """Sines and then cosines of the positions asked for, each value twice: ``[tokens, 2 * head]``."""
        table = self.weight.detach().cpu()
        if position_ids is None:
            position_ids = torch.arange(cache_length, cache_length + input_ids_shape[1])
        sin, cos = F.embedding(position_ids.cpu(), table).chunk(2, dim=-1)
        both = torch.cat([sin.repeat_interleave(2, dim=-1), cos.repeat_interleave(2, dim=-1)], dim=-1)
        return both.to(self.weight.device)


class PairedRotary(nn.Module):
    """Mixin for attention whose method ``apply_rotary_position_embeddings`` rotates neighbours (RoFormer).

    Attributes:
        rotation: ``[head, head]``, derived.
    """

    rotation: Tensor

    def apply_rotary_position_embeddings(
        self, sinusoidal_pos: Tensor, query_layer: Tensor, key_layer: Tensor, value_layer: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """``[batch, heads, tokens, head]`` each; the table, ``[1, 1, tokens, 2 * head]``, is :class:`PairedTable`'s."""
        sin, cos = sinusoidal_pos.chunk(2, dim=-1)
        given = (query_layer, key_layer) if value_layer is None else (query_layer, key_layer, value_layer)
        return tuple(rotate(x, cos, sin, self.rotation, in_float32=False) for x in given)


def host_copy(module: nn.Module) -> nn.Module:
    """A float32 CPU copy of a module that makes tables; built anew when its frequencies were rounded to 16 bits."""
    rounded = any(b.dtype in HALF_DTYPES for b in module.buffers())
    if (
        rounded
        and hasattr(module, "config")
        and list(inspect.signature(type(module).__init__).parameters)[1:2] == ["config"]
    ):
        fresh: nn.Module = type(module)(module.config)
        return fresh.eval()
    twin = copy.deepcopy(module)
    twin._forward_hooks.clear()
    twin._forward_pre_hooks.clear()
    return twin.to(device="cpu", dtype=torch.float32).eval()
