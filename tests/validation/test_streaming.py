"""Layers streamed through one of each kind: the values of the whole model, also patched, compiled and wrong."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from hf_adapters import validate
from hf_adapters.corpus import Profile, Unbuildable, load_profiles
from hf_adapters.corpus.build import build_model
from hf_adapters.corpus.streamed import RandomLayers, build_streamed
from hf_adapters.sweep.work import judge_streamed
from hf_adapters.validation.inputs import spec_of, standard_sets
from hf_adapters.validation.runners import Simulated, run_float64, run_floor, run_reference
from hf_adapters.validation.streaming import stream_of

SMALL: dict[str, Any] = {
    "vocab_size": 2048, "hidden_size": 128, "intermediate_size": 192, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 64,
}  # fmt: skip
WINDOWS = {"layer_types": ["sliding_attention"] * 3 + ["full_attention"] + ["sliding_attention"], "sliding_window": 16}


def _profile(name: str, **changes: Any) -> Profile:
    found = load_profiles()[name]
    return replace(found, config={**found.config, **SMALL, **changes})


QWEN3 = _profile("qwen3.0.6b/v151936", num_hidden_layers=5)
GEMMA3 = _profile("gemma3.embeddinggemma/v262144", num_hidden_layers=5, **WINDOWS)


T5_SIZES: dict[str, Any] = {"d_model": 128, "d_kv": 64, "num_heads": 2, "d_ff": 192, "num_layers": 4}
T5 = _profile("t5.base/v32128", **T5_SIZES)


@pytest.mark.parametrize("profile", [QWEN3, GEMMA3, T5], ids=["one kind", "two kinds", "bias of the first layer"])
def test_values_are_those_of_the_whole_model(profile: Profile) -> None:
    whole, streamed = build_model(profile), build_streamed(profile)
    stream = stream_of(streamed.model)
    assert stream is not None
    assert (streamed.depth, streamed.elements) == ("full", whole.elements)
    assert len(streamed.model.get_submodule(stream.path)) == len(set(stream.kinds)) < 5  # type: ignore[arg-type]
    sets = standard_sets(spec_of(whole.model), 3)[:2]
    floors = [lambda *given, t=t: run_floor(*given, t).recording for t in (torch.float16, torch.bfloat16)]
    for run in (run_reference, run_float64, *floors):
        expected, found = run(whole.model, sets, "mean"), run(streamed.model, sets, "mean")
        assert list(found.values) == list(expected.values)
        assert all(torch.equal(found.values[key], value) for key, value in expected.values.items())


def test_spreading_scores_are_calmed_as_in_the_whole_model() -> None:
    profile = _profile("mistral.7b/v32000", num_hidden_layers=3, hidden_size=2048)
    whole, streamed = build_model(profile), build_streamed(profile)
    assert len(whole.calmed) == 3
    assert sorted(streamed.calmed.values()) == sorted(whole.calmed.values())
    sets = standard_sets(spec_of(whole.model), 3)[:1]
    expected, found = (run_reference(built.model, sets, "mean") for built in (whole, streamed))
    assert all(torch.equal(found.values[key], value) for key, value in expected.values.items())


class _SecondLayerSkewed(RandomLayers):
    """A candidate whose second layer has other weights."""

    def __call__(self, index: int) -> Iterator[tuple[str, Tensor]]:
        for name, value in super().__call__(index):
            yield name, value * (1.02 if index == 1 else 1.0)


def test_a_wrong_layer_is_found_where_it_is() -> None:
    from contextlib import contextmanager

    model = build_streamed(QWEN3).model

    @contextmanager
    def skew(candidate: Any) -> Iterator[Any]:
        stream = stream_of(candidate)
        assert stream is not None
        source: Any = stream.weights
        candidate.__dict__["_hf_adapters_layer_stream"] = replace(
            stream,
            weights=_SecondLayerSkewed(
                source.prefix, source.signature, source.seed, source.kinds, source.drawn, source.factors
            ),
        )
        try:
            yield candidate
        finally:
            candidate.__dict__["_hf_adapters_layer_stream"] = stream

    found = validate(model, reference="inline", runner=Simulated(), patch=skew)
    assert found.verdict == "mismatch"
    assert "layers.1" in found.reason


def test_models_without_repeated_layers_are_refused() -> None:
    with pytest.raises(Unbuildable, match="streamed"):
        build_streamed(load_profiles()["albert.base/v30000"])


@pytest.mark.slow
def test_all_layers_are_judged_on_the_device() -> None:
    found = judge_streamed(QWEN3, release="2026.07")
    assert (found["verdict"], found["depth"]) == ("adapted", "full depth, 5 layers, weights streamed")
    assert {place["place"] for place in found["places"]} >= {f"layers.{index}" for index in range(5)}
    assert found["reference"] == "process"
