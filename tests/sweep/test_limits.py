"""Workers that fit in the machine."""

from __future__ import annotations

import os

import pytest

from hf_adapters.sweep.limits import GIB, default_jobs, default_memory, parse_size, threads_per_worker, tree_rss


@pytest.mark.parametrize(
    ("cores", "memory_gib", "jobs"), [(2, 24, 2), (2, 7, 1), (16, 24, 3), (8, 256, 8), (1, 1, 1), (4, 0, 4)]
)
def test_jobs_fit_cores_and_memory(cores: int, memory_gib: int, jobs: int) -> None:
    assert default_jobs(cores, memory_gib * GIB) == jobs


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8G", 8 * GIB),
        ("8", 8 * GIB),
        ("512M", GIB // 2),
        ("1.5GiB", 3 * GIB // 2),
        ("2048k", 2 * 1024**2),
        ("1TB", 1024 * GIB),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "lots", "0", "-1G", "1X", "nan", "inf"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="is no size of memory"):
        parse_size(text)


def test_memory_is_shared_out_among_workers() -> None:
    assert default_memory(2, 20 * GIB) == int(8.5 * GIB)
    assert default_memory(3, 0) == 8 * GIB


def test_every_worker_has_a_thread() -> None:
    assert threads_per_worker(1000) == 1


def test_resident_memory_of_this_process() -> None:
    assert tree_rss(os.getpid()) > 10 * 1024**2
    assert tree_rss(2**30) == 0
