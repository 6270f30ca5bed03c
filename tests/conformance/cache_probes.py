"""Probes of caches in pages and slots: rows and pages looked up or set, in both modes (D5.4, D6.9)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from tests.conformance.probe import Probe, halves, integers

Inputs = Callable[[], tuple[object, ...]]
LOOKED_UP = {"2026.07": "fallback", "2026.09": "ok"}
INDIRECT = "unsupported:indirect-access"
STORE = "unsupported:index-duplicate"
TOLERANCE = 5e-2
"""The plugin's own relative tolerance for matmul (D6.9)."""


def _both(
    name: str,
    fn: Callable[..., object],
    inputs: Inputs,
    eager: str | Mapping[str, str],
    compiled: str | Mapping[str, str],
    source: str,
    tolerance: float = 0.0,
) -> tuple[Probe, Probe]:
    made = (
        Probe(
            name=f"{mode}-{name}", fn=fn, inputs=inputs, expect=expect, source=source, eager=mode == "eager",
            tolerance=tolerance,
        )
        for mode, expect in (("eager", eager), ("compiled", compiled))
    )  # fmt: skip
    first, second = made
    return first, second


def _pages(*shape: int) -> Inputs:
    """Pages and a table of 32-wide rows of page numbers."""
    return lambda: (*halves(shape), integers(4, 32, high=shape[0], dtype=torch.int32))


def _page_selected(pages: Tensor, table: Tensor) -> Tensor:
    return pages.index_select(0, table[0, 0:1])


def _page_indexed(pages: Tensor, table: Tensor) -> Tensor:
    return pages[table[0, 0:1]]


def _scores_of_indexed_page(pages: Tensor, index: Tensor) -> Tensor:
    page: Tensor = torch.ops.aten.index.Tensor(pages, [index])
    return page @ page.transpose(-1, -2)


def _scores_of_page(pages: Tensor, index: Tensor) -> Tensor:
    page = pages[index]
    return page @ page.transpose(-1, -2)


def _store_strided(kv: Tensor, blocks: Tensor, slots: Tensor, source: Tensor) -> Tensor:
    kv[blocks, 0, slots] = source.transpose(0, 1)
    return kv


def _store_slots(kv: Tensor, index: Tensor, source: Tensor) -> Tensor:
    return kv.index_copy_(1, index, source.transpose(1, 2))


def _store_outermost(cache: Tensor, index: Tensor, rows: Tensor) -> Tensor:
    return cache.index_copy_(0, index, rows)


def _kv() -> Tensor:
    return halves((4, 2, 8, 2, 64))[0]


def _write_at(page: Tensor, value: Tensor, place: int) -> Tensor:
    page.narrow(1, place, 1).copy_(value)
    return page


def _prefix(out: Tensor, result: Tensor) -> Tensor:
    earlier = torch.zeros_like(out)
    earlier[32:48] = result[:16]
    out[32:64] = result[:32]
    return out


def _gather(blocks: int, expect: str) -> Probe:
    """A cache of 128 KiB blocks that nobody fills: 8192 of them are 1 GiB."""

    def cache() -> tuple[Tensor, ...]:
        table = torch.empty(blocks, 64, 8, 128, dtype=torch.float16, device="spyre")
        return table, torch.tensor([blocks - 1], dtype=torch.int32, device="spyre")

    def check(result: Tensor) -> None:
        assert result.shape == (1, 64, 8, 128)

    return Probe(
        name=f"gather-{blocks}-blocks",
        fn=lambda table, index: table[index],
        inputs=tuple,
        on_device=cache,
        check=check,
        expect=expect,
        source="D6.6, D6.9: a 1 GB cache is rejected, about 7168 blocks are the ceiling",
    )


GATHERS = (
    *(
        probe
        for width in (64, 128)
        for probe in (
            *_both(
                f"page-selected-{width}", _page_selected, _pages(16, 64, 8, width), LOOKED_UP, LOOKED_UP,
                "D6.9 page gather with table[0,0:1]",
            ),
            *_both(
                f"page-indexed-{width}", _page_indexed, _pages(16, 64, 8, width), INDIRECT, "ok",
                "D6.7, D6.9 k_pages[idx]: int32 to int64 in eager mode, compiled it passes",
            ),
        )
    ),
    *_both(
        "page-by-number", _scores_of_page, lambda: (*halves((4, 2, 64, 64)), torch.tensor(2, dtype=torch.int32)),
        "ok", "ok", "D6.9: Python's own indexing reads a 0-dim index on the host, ahead of the graph", TOLERANCE,
    ),
    Probe(
        name="compiled-page-by-0d-index",
        fn=_scores_of_indexed_page,
        inputs=lambda: (*halves((4, 2, 64, 64)), torch.tensor(2, dtype=torch.int32)),
        expect=INDIRECT,
        source="D5.4, D6.9: a 0-dim index in the graph is silently wrong, so it is refused",
    ),
    *_both(
        "one-row-4d", lambda x, i: x.index_select(0, i), lambda: (*halves((2048, 2, 2, 64)), torch.tensor([77])),
        LOOKED_UP, LOOKED_UP, "D6.9 index_select of one row, #3418",
    ),
    _gather(8192, "unsupported:span-limit"),
    _gather(7168, "ok"),
)  # fmt: skip

STORES = (
    *_both(
        "strided-source-5d", _store_strided,
        lambda: (_kv(), torch.tensor([0, 1, 3]), torch.tensor([5, 0, 7]), halves((2, 3, 64))[0]),
        STORE, STORE, "D5.4, D6.9 #3508: strided source into a 5-D advanced store",
    ),
    *_both(
        "index-copy-5d", _store_slots, lambda: (_kv(), torch.tensor([1]), halves((4, 8, 1, 2, 64))[0]),
        "fallback", "ok", "D5.4, D6.9 #3508: index_copy_ passes where the indexed dim is at device position 0",
    ),
    *_both(
        "index-copy-slots", _store_outermost,
        lambda: (halves((512, 8, 128))[0], torch.tensor([5, 77]), halves((2, 8, 128))[0]),
        "fallback", INDIRECT, "D6.9 #3705: the default layout gets wrong rows, so it is refused; int64 runs on the CPU",
    ),
    *_both(
        "narrow-at-constant", _write_at, lambda: (*halves((2, 256, 64), (2, 1, 64)), 37), "ok", "ok",
        "D6.9 narrow(1,37,1).copy_",
    ),
    Probe(
        name="narrow-at-symbol",
        fn=_write_at,
        inputs=lambda: (*halves((2, 256, 64), (2, 1, 64)), 37),
        expect="unsupported:dynamic-shape",
        source="D5.4, D6.9 #3508: shape error in scatter op",
        dynamic=True,
    ),
    *_both(
        "prefix-view", _prefix, lambda: halves((96, 32, 128), (64, 32, 128)), "ok", "ok",
        "D6.9 out[32:64] = result[:32] after an earlier write: #3826 overruns; not emulated",
    ),
)  # fmt: skip

PROBES: tuple[Probe, ...] = (*GATHERS, *STORES)
