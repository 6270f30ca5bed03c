"""Layers streamed from the files of a checkpoint: the values of the model loaded whole, or a clear refusal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, Qwen3ForCausalLM, XLMRobertaForMaskedLM

from hf_adapters.corpus import WeightsInvalid, load_profiles, resolve
from hf_adapters.corpus.build import build_model
from hf_adapters.corpus.streamed_files import stream_files
from hf_adapters.sweep import work
from hf_adapters.validation.inputs import spec_of, standard_sets
from hf_adapters.validation.runners import run_float64, run_reference

SMALL: dict[str, Any] = {
    "vocab_size": 3000, "hidden_size": 128, "intermediate_size": 192, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 64, "num_hidden_layers": 3, "eos_token_id": 2990, "pad_token_id": 2995,
}  # fmt: skip


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A decoder with its head in two bfloat16 files, as such checkpoints are published."""
    folder = tmp_path_factory.mktemp("decoder")
    found = load_profiles()["qwen3.0.6b/v151936"]
    profile = replace(found, config={**found.config, **SMALL, "tie_word_embeddings": False})
    config = build_model(profile, max_elements=None).config
    torch.manual_seed(3)
    Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder, max_shard_size="1MB")
    assert len(list(folder.glob("*.safetensors"))) > 1
    return folder


def _copy(source: Path, target: Path, change: Any) -> Path:
    """The checkpoint in one file, its tensors changed."""
    target.mkdir()
    tensors: dict[str, torch.Tensor] = {}
    for path in source.glob("*.safetensors"):
        tensors.update(load_file(path))
    change(tensors)
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    (target / "config.json").write_bytes((source / "config.json").read_bytes())
    return target


def test_values_are_those_of_the_model_loaded_whole(checkpoint: Path) -> None:
    whole = AutoModel.from_pretrained(checkpoint, dtype=torch.float32, local_files_only=True).eval()
    built = stream_files(resolve(str(checkpoint)).profile, checkpoint)
    assert (built.weights, built.depth, built.cut["vocab_size"]) == ("real", "full", (3000, 2048))
    sets = standard_sets(spec_of(built.model), 3)[:2]
    padding, ending = built.config.pad_token_id, built.config.eos_token_id
    assert max(padding, ending) < 2048
    originals = [_original(given, {padding: 2995, ending: 2990}) for given in sets]
    for run in (run_reference, run_float64):
        found, expected = run(built.model, sets, "mean"), run(whole, originals, "mean")
        assert list(found.values) == list(expected.values)
        assert all(torch.equal(found.values[key], value) for key, value in expected.values.items())


def _original(given: Any, tokens: dict[int, int]) -> Any:
    """A set of inputs with the special tokens' ids of the whole vocabulary."""
    kwargs = dict(given.kwargs)
    ids = kwargs["input_ids"].clone()
    for after, before in tokens.items():
        ids[kwargs["input_ids"] == after] = before
    return replace(given, kwargs={**kwargs, "input_ids": ids})


def _renamed(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.layers.1.self_attn.query.weight"] = tensors.pop("model.layers.1.self_attn.q_proj.weight")


def _unmerged(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.layers.0.self_attn.q_proj.lora_A.weight"] = torch.ones(8, 128)


def _deeper(tensors: dict[str, torch.Tensor]) -> None:
    found = {name: value for name, value in tensors.items() if name.startswith("model.layers.2.")}
    tensors.update({name.replace(".2.", ".3.", 1): value.clone() for name, value in found.items()})


@pytest.mark.parametrize(
    ("change", "said"),
    [(_renamed, "missing.*layers.1.self_attn.q_proj"), (_unmerged, "unexpected.*lora_A"), (_deeper, r"layers\.3\.")],
)
def test_weights_of_another_layout_are_refused(checkpoint: Path, tmp_path: Path, change: Any, said: str) -> None:
    folder = _copy(checkpoint, tmp_path / "other", change)
    with pytest.raises(WeightsInvalid, match=said):
        stream_files(resolve(str(folder)).profile, folder)


def test_weights_of_another_size_are_refused(checkpoint: Path, tmp_path: Path) -> None:
    def narrow(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.layers.1.mlp.up_proj.weight"] = tensors["model.layers.1.mlp.up_proj.weight"][:, :64].clone()

    folder = _copy(checkpoint, tmp_path / "narrow", narrow)
    with pytest.raises(WeightsInvalid, match=r"layers\.1\.mlp\.up_proj\.weight is \[192, 64\], expected \[192, 128\]"):
        stream_files(resolve(str(folder)).profile, folder)


def test_a_file_that_is_cut_off_is_named(checkpoint: Path, tmp_path: Path) -> None:
    folder = _copy(checkpoint, tmp_path / "cut", lambda _: None)
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(WeightsInvalid, match=r"model\.safetensors cannot be read"):
        stream_files(resolve(str(folder)).profile, folder)


def test_an_absent_pooler_is_drawn(tmp_path: Path) -> None:
    config = build_model(load_profiles()["xlmr.base/v250002"], max_elements=1).config
    config.update({"hidden_size": 128, "intermediate_size": 192, "num_attention_heads": 2, "num_hidden_layers": 2})
    XLMRobertaForMaskedLM(config).save_pretrained(tmp_path)
    built = stream_files(resolve(str(tmp_path)).profile, tmp_path)
    assert built.model.pooler.dense.weight.std() > 0


@pytest.mark.slow
def test_real_weights_are_judged_in_full_depth(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "FULL_ELEMENTS", 1000)
    found = work.judge_found(resolve(str(checkpoint)), release="2026.07", full_depth=True)
    assert (found["verdict"], found["weights"]) == ("adapted", "real")
    assert found["depth"] == "full depth, 3 layers, weights streamed"
    assert {place["place"] for place in found["places"]} >= {f"layers.{index}" for index in range(3)}
