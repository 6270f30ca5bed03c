"""Probes of views, slices, broadcasts and copies: D2.4 to D2.7, D5.4 and the layout lines of D6.2, D6.9 and D6.11."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.conformance.probe import Probe, halves

SPLIT = "unsupported:view-stick-split"
SLICE = "unsupported:slice-stick-offset"
ROPE = "unsupported:rope-half-stick"
PAD = "unsupported:pad-mid-stick"
DOUBLE = "unsupported:double-broadcast"


def _probe(
    name: str, fn: Callable[..., object], shapes: tuple[tuple[int, ...], ...], expect: str, source: str, **extra: object
) -> Probe:
    return Probe(name=name, fn=fn, inputs=lambda: halves(*shapes), expect=expect, source=source, **extra)  # type: ignore[arg-type]


def _heads(heads: int, width: int, expect: str) -> Probe:
    def fn(x: Tensor) -> Tensor:
        return x.view(2, 64, heads, width).transpose(1, 2).contiguous()

    return _probe(f"heads-{heads}x{width}", fn, ((2, 64, heads * width),), expect, "D6.11 view: inner piece % 64 == 0")


def _rotate_half(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


def _rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return x * cos + _rotate_half(x) * sin


def _rope_by_view(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.view(*x.shape[:-1], 2, x.shape[-1] // 2).unbind(-2)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def _partial_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    rotated, passed = x[..., :32], x[..., 32:]
    return torch.cat((rotated * cos + _rotate_half(rotated) * sin, passed), dim=-1)


def _qkv(x: Tensor, width: int) -> Tensor:
    q, k, v = x.split(width, dim=-1)
    return q * k + v


def _mask_rows(hidden: Tensor, mask: Tensor) -> Tensor:
    return hidden * mask.unsqueeze(-1)


def _outer_where(mask: Tensor, scores: Tensor) -> Tensor:
    keep = mask > 0
    return torch.where(keep[:, None, :, None], scores[:, None, None, :], -100.0)


VIEWS = (
    _heads(12, 32, SPLIT),
    _heads(4, 96, SPLIT),
    _heads(24, 16, SPLIT),
    _heads(6, 64, "ok"),
    _heads(3, 128, "ok"),
    _heads(2, 192, "ok"),
    _probe("split-then-add", lambda x: x.view(2, 64, 12, 32) + 1, ((2, 64, 384),), SPLIT, "D6.11 view"),
    _probe("split-rows", lambda x: x.view(2, 32, 64) * 2, ((64, 64),), "ok", "D6.11 view: only the stick matters"),
    _probe("merge-rows", lambda x: x.reshape(128, 128) * 2, ((2, 64, 128),), "ok", "D6.11 view"),
    _probe(
        "merge-heads-64",
        lambda x: x.transpose(1, 2).reshape(2, 64, 384) * 2,
        ((2, 6, 64, 64),),
        "ok",
        "D6.11 view: pieces are whole sticks",
    ),
    _probe(
        "merge-heads-32",
        lambda x: x.transpose(1, 2).reshape(2, 64, 384) * 2,
        ((2, 12, 64, 32),),
        "unsupported:view-stick-split|pointwise-stick|slice-stick-offset",
        "D2.5: Mod(v, 32) alone is no stick expression",
    ),
    _probe(
        "transpose-exact", lambda x: x.transpose(1, 2).contiguous()[:4], ((8, 4, 32, 128),), "ok", "D6.9", tolerance=0.0
    ),
    _probe(
        "transpose-exact-64",
        lambda x: x.transpose(1, 2).contiguous()[:4],
        ((8, 4, 32, 64),),
        "ok",
        "D6.9",
        tolerance=0.0,
    ),
    _probe("permute", lambda x: x.permute(2, 0, 1).contiguous(), ((4, 64, 128),), "ok", "D5.4 permute", tolerance=0.0),
    _probe("transpose-add", lambda x, y: x.t() + y, ((64, 128), (128, 64)), "ok", "D6.11 pointwise: restickify"),
    _probe("squeeze-unsqueeze", lambda x: x.unsqueeze(1).squeeze(1) * 2, ((64, 128),), "ok", "D5.4"),
    _probe("expand", lambda x: x.expand(4, 8, 64) * 2, ((1, 8, 64),), "ok", "D5.4 expand"),
)

BROADCASTS = (
    _probe("add-row", torch.add, ((4, 64, 128), (128,)), "ok", "D2.4 broadcast"),
    _probe("add-column", torch.add, ((64, 128), (64, 1)), "ok", "D2.4: size 1 along the stick is sparse"),
    _probe(
        "mask-rows",
        _mask_rows,
        ((2, 64, 128), (2, 64)),
        "ok",
        "D2.4, D6.11 pointwise: the wide operand is restickified",
    ),
    _probe(
        "add-outer-vectors",
        lambda a, b: a[:, None] + b[None, :],
        ((64,), (64,)),
        f"{DOUBLE}|pointwise-stick",
        "D5.2: no stick scatter",
    ),
    _probe("where-double-broadcast", _outer_where, ((2, 64), (2, 64)), f"{DOUBLE}|pointwise-stick", "D5.2 where"),
    Probe(
        name="where-double-broadcast-4d",
        fn=lambda keep, x: torch.where(keep, x, -100.0),
        inputs=lambda: (halves((2, 1, 64, 1))[0] > 0, *halves((2, 1, 1, 64))),
        expect=f"{DOUBLE}|pointwise-stick",
        source="D5.2: [B,1,L,1] x [B,1,1,L] does not lower",
    ),
    Probe(
        name="where-full-size",
        fn=lambda keep, x: torch.where(keep, x, -100.0),
        inputs=lambda: (halves((2, 4, 64, 64))[0] > 0, *halves((2, 4, 64, 64))),
        expect="ok",
        source="D5.2 where",
    ),
)

MASKS = (
    Probe(
        name="where-key-mask",
        fn=lambda keep, x: torch.where(keep, x, -100.0),
        inputs=lambda: (halves((2, 1, 1, 64))[0] > 0, *halves((2, 4, 64, 64))),
        expect="ok",
        source="D2.4, D5.2: broadcast along the rows only",
    ),
    _probe("add-key-mask", torch.add, ((2, 4, 64, 64), (2, 1, 1, 64)), "ok", "D2.4 broadcast"),
    _probe("add-query-mask", torch.add, ((2, 4, 64, 64), (2, 1, 64, 1)), "ok", "D2.4: size 1 along the stick"),
    _probe("add-position-bias", torch.add, ((2, 4, 64, 64), (1, 4, 64, 64)), "ok", "D2.4 broadcast"),
    _probe(
        "where-0d-tensor",
        lambda x: torch.where(x > 0, x, torch.full((), -1e4, dtype=x.dtype, device=x.device)),
        ((7, 64),),
        "ok",
        "D5.2 where",
    ),
    _probe("expand-column", lambda x: x.expand(7, 128).contiguous(), ((7, 1),), "ok", "D5.4 expand", tolerance=0.0),
)

SLICES = (
    _probe("slice-first", lambda x: x[..., :64] * 2, ((7, 128),), "ok", "D6.11 slice: offset 0"),
    _probe("slice-stick", lambda x: x[..., 64:] * 2, ((7, 128),), "ok", "D6.11 slice: offset 64"),
    _probe("slice-stick-short", lambda x: x[..., 64:96] * 2, ((7, 128),), "ok", "D6.11 slice: offset 64"),
    _probe(
        "slice-32-restickify", lambda x: x[..., 32:96] * 2, ((64, 128),), "ok", "D6.11 slice: another dim % 64 == 0"
    ),
    _probe("slice-32-refused", lambda x: x[..., 32:96] * 2, ((7, 128),), SLICE, "D6.11 slice: no other dim % 64 == 0"),
    _probe("slice-1-refused", lambda x: x[..., 1:] * 2, ((7, 65),), SLICE, "D6.11 slice"),
    _probe("slice-rows", lambda x: x[3:5] * 2, ((7, 128),), "ok", "D6.11 slice: rows are free"),
    _probe("gate", lambda x: F.silu(x[..., :4096]) * x[..., 4096:], ((32, 8192),), "ok", "D6.9"),
    _probe("split-qkv-64", lambda x: _qkv(x, 64), ((7, 192),), "ok", "D6.2 h"),
    _probe("split-qkv-32", lambda x: _qkv(x, 32), ((7, 96),), SLICE, "D6.2 h"),
    _probe("chunk-gate", lambda x: torch.mul(*x.chunk(2, dim=-1)), ((7, 256),), "ok", "D6.11 slice: offset 128"),
    _probe("select-1d", lambda x: x[3] * 2, ((64,),), "unsupported:select-1d", "D6.11 select, #2017"),
    _probe("select-1d-first", lambda x: x[0] * 2, ((64,),), "unsupported:select-1d", "D6.11 select"),
    _probe("select-token", lambda x: x[:, 0] * 2, ((2, 64, 128),), "ok", "D5.4 select"),
    _probe("select-row", lambda x: x[3] * 2, ((7, 128),), "ok", "D5.4 select"),
    _probe(
        "select-column-refused",
        lambda x: x[:, 5] * 2,
        ((7, 128),),
        f"{SLICE}|select-1d",
        "D2.5: a constant 5 on the stick",
    ),
)

ROTARY = (
    _probe("rope-d128", _rope, ((1, 2, 64, 128), (64, 128), (64, 128)), "ok", "D6.2 a: halves are whole sticks"),
    _probe("rope-d64", _rope, ((1, 2, 64, 64), (64, 64), (64, 64)), ROPE, "D6.2 a: head_dim / 2 < 64"),
    _probe("rope-d64-s7", _rope, ((1, 2, 7, 64), (7, 64), (7, 64)), f"{ROPE}|slice-stick-offset", "D6.2 a"),
    _probe("rope-d96", _rope, ((1, 2, 64, 96), (64, 96), (64, 96)), ROPE, "D6.2 a"),
    _probe(
        "rope-view-d64", _rope_by_view, ((1, 2, 64, 64), (64, 64), (64, 64)), f"{ROPE}|view-stick-split", "D2.5, D6.2 a"
    ),
    _probe("rope-view-d128", _rope_by_view, ((1, 2, 64, 128), (64, 128), (64, 128)), "ok", "D6.2 a"),
    _probe("rope-partial", _partial_rope, ((1, 2, 64, 64), (64, 32), (64, 32)), f"{ROPE}|slice-stick-offset", "D6.2 b"),
    _probe(
        "rope-matmul-d64",
        lambda x, r, c, s: x * c + (x @ r) * s,
        ((1, 2, 64, 64), (64, 64), (64, 64), (64, 64)),
        "ok",
        "D2.8 #3133: use the matmul form",
        tolerance=5e-2,
    ),
)

PIECES = (
    _probe(
        "cat-stick-aligned", lambda a, b: torch.cat((a, b), -1), ((7, 64), (7, 128)), "ok", "D5.4 cat", tolerance=0.0
    ),
    _probe(
        "cat-mid-stick", lambda a, b: torch.cat((a, b), -1), ((7, 32), (7, 32)), "ok", "D2.4 cat, #3875", tolerance=0.0
    ),
    _probe(
        "cat-size-one", lambda a, b: torch.cat((a, b), -1), ((7, 1), (7, 64)), "ok", "D2.8 #1760: fixed", tolerance=0.0
    ),
    _probe("cat-rows", lambda a, b: torch.cat((a, b), 0), ((3, 64), (4, 64)), "ok", "D5.4 cat", tolerance=0.0),
    _probe("stack", lambda a, b: torch.stack((a, b)), ((7, 64), (7, 64)), "ok", "D5.4 stack", tolerance=0.0),
    _probe("repeat", lambda x: x.repeat(2, 2), ((7, 64),), "ok", "D5.4 repeat", tolerance=0.0),
    _probe("pad-32-to-64", lambda x: F.pad(x, (0, 32)), ((4, 8, 32),), PAD, "D6.9 F.pad 32 -> 64"),
    _probe("pad-64-to-128", lambda x: F.pad(x, (0, 64)), ((4, 8, 64),), "ok", "D5.4, #3110", tolerance=0.0),
    _probe("pad-rows", lambda x: F.pad(x, (0, 0, 0, 3)), ((5, 64),), "ok", "D5.4", tolerance=0.0),
    _probe("pad-front-64", lambda x: F.pad(x, (64, 0)), ((5, 64),), "ok", "D5.4, #3110", tolerance=0.0),
    _probe("pad-front-32", lambda x: F.pad(x, (32, 0)), ((5, 64),), PAD, "D5.4, D6.9"),
    _probe(
        "slice-scatter",
        lambda x, y: torch.slice_scatter(x, y, dim=0, start=2, end=4),
        ((8, 64), (2, 64)),
        "ok",
        "D5.4 slice_scatter",
        tolerance=0.0,
    ),
    _probe(
        "slice-scatter-step-2",
        lambda x, y: torch.slice_scatter(x, y, dim=0, start=0, end=8, step=2),
        ((8, 64), (4, 64)),
        "unsupported:slice-scatter-step",
        "D2.7 slice_scatter",
    ),
    _probe(
        "flip-rows", lambda x: x.flip(0), ((7, 64),), "ok or fallback", "D5.4 flip, through index_select", tolerance=0.0
    ),
    _probe("flip-stick", lambda x: x.flip(-1), ((7, 64),), "unsupported", "D5.4 flip: not the stick dim"),
    _probe("clone", lambda x: x.clone(), ((7, 100),), "ok", "D5.4 clone", tolerance=0.0),
)


def _offset_views(offset: int) -> Callable[[], tuple[Tensor, ...]]:
    def make() -> tuple[Tensor, ...]:
        return (halves((64, 128))[0].to("spyre")[:, offset : offset + 64],)

    return make


def _base_row(row: int) -> Callable[[], tuple[Tensor, ...]]:
    def make() -> tuple[Tensor, ...]:
        return (halves((3, 4, 64))[0].to("spyre")[row],)

    return make


INPUTS = (
    *(
        Probe(
            name=f"graph-input-row-{row}",
            fn=lambda x: x + x,
            inputs=lambda row=row: (halves((3, 4, 64))[0][row],),  # type: ignore[misc]
            on_device=_base_row(row),
            expect="ok",
            source="D6.9, D6.11 launch: #3770 read base[0]; a named switch, off",
        )
        for row in range(3)
    ),
    Probe(
        name="graph-input-aligned-column",
        fn=lambda x: x + x,
        inputs=lambda: (halves((64, 128))[0][:, 64:128],),
        on_device=_offset_views(64),
        expect="ok",
        source="D2.7, D6.11",
    ),
    Probe(
        name="graph-input-mid-stick",
        fn=lambda x: x + x,
        inputs=lambda: (halves((64, 128))[0][:, 32:96],),
        on_device=_offset_views(32),
        expect={"2026.07": "unsupported:storage-offset|slice-stick-offset", "2026.09": "ok"},
        source="D2.7: #3797, lifted by #4250",
    ),
)

PROBES: tuple[Probe, ...] = (*VIEWS, *BROADCASTS, *MASKS, *SLICES, *ROTARY, *PIECES, *INPUTS)
