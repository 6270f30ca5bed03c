"""Decoded inputs kept between launches: valid for one write generation, bounded in bytes."""

from __future__ import annotations

import subprocess
import sys

import torch

from spyre_backend.runtime import decoded, launch
from spyre_backend.runtime.decoded import DecodedCache, Source
from tests.emulator.programs import unary


class Decoder:
    """Counts how often it decodes."""

    def __init__(self, elements: int = 4) -> None:
        self.calls = 0
        self.elements = elements

    def __call__(self) -> torch.Tensor:
        self.calls += 1
        return torch.full((self.elements,), float(self.calls))


def source(generation: int, address: int = 0, elements: int = 4) -> Source:
    return Source(address, elements, "float16", generation)


def test_the_same_generation_is_decoded_once() -> None:
    cache, decode = DecodedCache(1024), Decoder()
    first = cache.get(source(7), decode)
    assert cache.get(source(7), decode) is first
    assert decode.calls == 1


def test_another_generation_is_decoded_again_and_replaces_the_old_one() -> None:
    cache, decode = DecodedCache(1024), Decoder()
    cache.get(source(7), decode)
    assert cache.get(source(8), decode)[0] == 2.0
    assert cache.num_bytes == 16
    assert cache.get(source(8), decode)[0] == 2.0


def test_a_tensor_without_memory_is_not_kept() -> None:
    cache, decode = DecodedCache(1024), Decoder(elements=0)
    cache.get(source(0), decode)
    cache.get(source(0), decode)
    assert decode.calls == 2


def test_extent_and_format_are_part_of_the_key() -> None:
    cache, decode = DecodedCache(1024), Decoder()
    cache.get(Source(0, 4, "float16", 1), decode)
    cache.get(Source(0, 2, "float16", 1), decode)
    cache.get(Source(0, 4, "bfloat16", 1), decode)
    assert decode.calls == 3


def test_the_least_recently_used_entries_go_first() -> None:
    cache, decode = DecodedCache(3 * 16), Decoder()
    for address in (0, 64, 128):
        cache.get(source(1, address), decode)
    cache.get(source(1, 0), decode)
    cache.get(source(1, 192), decode)
    assert cache.num_bytes == 48
    calls = decode.calls
    cache.get(source(1, 0), decode)
    assert decode.calls == calls, "used a moment ago"
    cache.get(source(1, 64), decode)
    assert decode.calls == calls + 1, "the oldest"


def test_what_is_larger_than_the_cache_is_not_kept() -> None:
    cache, decode = DecodedCache(64), Decoder(elements=100)
    cache.get(source(1), decode)
    assert cache.num_bytes == 0
    assert cache.get(source(1), decode)[0] == 2.0


def test_clearing_forgets() -> None:
    cache, decode = DecodedCache(1024), Decoder()
    cache.get(source(1), decode)
    cache.clear()
    assert cache.num_bytes == 0
    cache.get(source(1), decode)
    assert decode.calls == 2


def test_a_size_that_is_no_number_is_refused_by_name() -> None:
    code = "import spyre_backend.runtime.decoded"
    environment = {"SPYRE_DECODED_CACHE_MB": "lots", "PATH": ""}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "SPYRE_DECODED_CACHE_MB='lots' is not a number of megabytes" in done.stderr


def test_launches_decode_an_unchanged_input_once() -> None:
    made = unary("neg", 64)
    run = launch.load_program(made.to_json())
    x, y = (torch.ones(64, dtype=torch.float16, device="spyre") for _ in range(2))
    run.launch(x, y)
    kept = decoded.DECODED.get(decoded.Source.of(x, made.tensors[0]), Decoder())
    run.launch(x, y)
    assert decoded.DECODED.get(decoded.Source.of(x, made.tensors[0]), Decoder()) is kept
    x.cpu()
    assert decoded.DECODED.get(decoded.Source.of(x, made.tensors[0]), Decoder()) is kept
    run.launch(y, x)
    run.launch(x, y)
    assert y.cpu().tolist() == [-1.0] * 64
    assert decoded.DECODED.get(decoded.Source.of(x, made.tensors[0]), Decoder()) is not kept
