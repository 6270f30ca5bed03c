"""Operations over the span limit: refused by default, as on the card, and in tiles if the release asks for that."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace

import pytest

from spyre_backend import capabilities
from spyre_backend.compiler import settings
from spyre_backend.errors import SpyreUnsupported
from tests.compiler.graphs import Builder, by_name

WIDE = 1187 * 2 * 64
"""Columns of a projection to 151,936 tokens: 2 x 1187 sticks, which no division brings under the limit (D6.6)."""


@contextmanager
def tiling(monkeypatch):
    known = capabilities.current()
    changed = replace(known, settings=replace(known.settings, ignore_span_overflow_hints=False))
    with monkeypatch.context() as patch:
        patch.setattr(capabilities, "current", lambda: changed)
        yield


def projection(columns=WIDE, width=2048):
    builder = Builder()
    builder.matmul(builder.input(64, width), builder.input(width, columns))
    return builder


def test_the_default_refuses():
    with pytest.raises(SpyreUnsupported) as refusal:
        projection().divided()
    assert refusal.value.rule == "span-limit"
    assert len(projection(152_064).divided()) == 1


def test_tiles_cover_the_result_once(monkeypatch):
    with tiling(monkeypatch):
        parts = by_name(projection().divided(), "batchmatmul")
    widths = [op.dims[1] for op in parts]
    assert widths == [792 * 64, 792 * 64, 790 * 64]
    assert [op.output.offset for op in parts] == [op.inputs[1].offset for op in parts] == [0, 792 * 64, 1584 * 64]
    assert [op.inputs[0].offset for op in parts] == [0, 0, 0]


def test_what_fits_is_not_tiled(monkeypatch):
    with tiling(monkeypatch):
        assert len(projection(256, 128).divided()) == 1


def test_one_core_has_more_tiles_than_all(monkeypatch):
    with tiling(monkeypatch), settings.using(cores=1):
        parts = projection(32_768, 4096).divided()
    assert len(parts) == 2
    assert all(op.split == (1, 1, 1) for op in parts)
