"""Checkpoints that ask for code of their repository: sentence-transformers loads them by native classes, without it."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer, SparseEncoder
from torch import Tensor
from transformers import GteConfig, GteForSequenceClassification

import hf_adapters
from hf_adapters.corpus.aliases import stock_values
from hf_adapters.natives import ForeignWeights, TaskRequired, load_native
from tests.corpus import test_aliases as gte
from tests.natives import published as p
from tests.natives import test_jina_v3 as jina
from tests.natives import test_nomic_v2 as nomic
from tests.runner.small_models import with_tokenizer

TEXTS = ["red cat runs", "dog", "blue blue cat dog red runs"]


def nomic_folder(folder: Path) -> Path:
    return with_tokenizer(p.write(folder, nomic.CONFIG, nomic.checkpoint()))


def jina_folder(folder: Path) -> Path:
    code = {"AutoConfig": "someone_else.Config", **jina.CONFIG["auto_map"]}
    return with_tokenizer(p.write(folder, {**jina.CONFIG, "auto_map": code}, jina.checkpoint()[1]))


def with_modules(folder: Path, first: str, *others: str) -> Path:
    """modules.json with classes of the repository, whose code fails when it is imported."""
    classes = [first, "sentence_transformers.models.Pooling", *others]
    entries = [{"idx": i, "name": str(i), "path": f"{i}" if i else "", "type": name} for i, name in enumerate(classes)]
    entries[0]["kwargs"] = ["task"]
    (folder / "modules.json").write_text(json.dumps(entries))
    (folder / "1").mkdir()
    (folder / "1" / "config.json").write_text(json.dumps({"embedding_dimension": p.WIDTH, "pooling_mode": "mean"}))
    for module in (name.split(".")[0] for name in (first, *others)):
        (folder / f"{module}.py").write_text("raise AssertionError('code of the repository was run')")
    return folder


def gte_folder(folder: Path) -> Path:
    return with_tokenizer(gte.write(folder, gte.published(gte.stock())))


def expected(model: SentenceTransformer, stock: Any) -> Tensor:
    """Mean of the real tokens of a stock model on the CPU."""
    features = model.tokenizer(TEXTS, padding=True, return_tensors="pt")
    mask = features["attention_mask"]
    with torch.no_grad():
        states = stock(input_ids=features["input_ids"], attention_mask=mask).last_hidden_state
    kept = states * mask.unsqueeze(-1)
    found: Tensor = kept.sum(1) / mask.sum(1, keepdim=True)
    return found


def assert_close(model: SentenceTransformer, stock: Any) -> None:
    ours = torch.from_numpy(model.encode(TEXTS))
    want = expected(model, stock)
    assert torch.cosine_similarity(ours, want).min() > 0.999
    assert float((ours - want).norm() / want.norm()) < 0.03


@pytest.mark.parametrize(
    ("write", "load"),
    [
        pytest.param(nomic_folder, load_native, id="nomic-embed-text-v2-moe"),
        pytest.param(gte_folder, lambda _folder: gte.stock(), id="gte, alias new", marks=pytest.mark.slow),
    ],
)
def test_sentences_are_encoded_without_remote_code(
    write: Callable[[Path], Path], load: Callable[[Path], Any], tmp_path: Path
) -> None:
    folder = write(tmp_path)
    model = SentenceTransformer(str(folder), backend="spyre")
    transformer = model[0].model
    assert not any("transformers_modules" in cls.__module__ for cls in type(transformer).__mro__)
    assert_close(model, load(folder))
    assert not any("transformers_modules" in name for name in sys.modules)


def test_what_is_saved_is_loaded_again(tmp_path: Path) -> None:
    """Our structures have model types that transformers does not know, and weights under names of their own."""
    model = SentenceTransformer(str(nomic_folder(tmp_path / "published")), backend="spyre")
    model.save_pretrained(str(tmp_path / "saved"))
    again = SentenceTransformer(str(tmp_path / "saved"), backend="spyre")
    assert (again.encode(TEXTS) == model.encode(TEXTS)).all()
    weights = again[0].auto_model.state_dict()
    assert all(torch.equal(v.cpu(), weights[k].cpu()) for k, v in model[0].auto_model.state_dict().items())


@pytest.mark.slow
def test_the_task_is_saved_with_the_model(tmp_path: Path) -> None:
    folder = with_modules(jina_folder(tmp_path / "published"), "custom_st.Transformer")
    model = SentenceTransformer(str(folder), backend="spyre", model_kwargs={"task": jina.TASKS[0]})
    model.save_pretrained(str(tmp_path / "saved"))
    again = SentenceTransformer(str(tmp_path / "saved"), backend="spyre")
    assert (again.encode(TEXTS, task=jina.TASKS[0]) == model.encode(TEXTS)).all()
    with pytest.raises(hf_adapters.UnsupportedOptionError, match=r"adapters of retrieval\.query are merged"):
        again.encode(TEXTS, task=jina.TASKS[1])


@pytest.mark.slow
def test_the_task_whose_adapters_are_merged_is_a_model_option(tmp_path: Path) -> None:
    folder = with_modules(jina_folder(tmp_path), "custom_st.Transformer")
    task = jina.TASKS[0]
    model = SentenceTransformer(
        str(folder), backend="spyre", trust_remote_code=True, model_kwargs={"task": task, "code_revision": "main"}
    )
    assert_close(model, load_native(folder, task=task))
    plain = expected(model, load_native(folder))
    with_task = torch.from_numpy(model.encode(TEXTS, task=task))
    assert float((with_task - plain).norm() / plain.norm()) > 0.1, "another task gives other embeddings"
    assert (model.encode_query(TEXTS) == with_task.numpy()).all()
    for other in (lambda: model.encode(TEXTS, task=jina.TASKS[1]), lambda: model.encode_document(TEXTS)):
        with pytest.raises(hf_adapters.UnsupportedOptionError, match=r"adapters of retrieval\.query are merged"):
            other()
    assert not any("transformers_modules" in name for name in sys.modules)
    assert (pickle.loads(pickle.dumps(model[0])).merged, model[0].others) == (task, tuple(jina.TASKS))


def test_mistakes_are_told_before_anything_is_compiled(tmp_path: Path) -> None:
    folder = str(jina_folder(tmp_path))
    with pytest.raises(TaskRequired, match=r"no task 'retrieval'.*model_kwargs=\{\"task\""):
        SentenceTransformer(folder, backend="spyre", model_kwargs={"task": "retrieval"})
    with pytest.raises(hf_adapters.UnsupportedOptionError, match="no option device_map"):
        SentenceTransformer(folder, backend="spyre", model_kwargs={"device_map": "auto"})
    for trusted in (False, True):
        with pytest.raises(hf_adapters.UnsupportedOptionError, match="no head for sequence-classification"):
            CrossEncoder(folder, backend="spyre", trust_remote_code=trusted)
    with pytest.raises(hf_adapters.UnsupportedOptionError, match="no head for fill-mask"):
        SparseEncoder(folder, backend="spyre")


@pytest.mark.parametrize("trusted", [False, True])
def test_modules_of_the_repository_that_nothing_stands_for_are_refused(trusted: bool, tmp_path: Path) -> None:
    folder = with_modules(jina_folder(tmp_path / "jina"), "custom_st.Transformer", "st_quantize.Quantizer")
    with pytest.raises(hf_adapters.UnsupportedOptionError, match=r"asks for st_quantize\.Quantizer of its own") as told:
        SentenceTransformer(str(folder), backend="spyre", trust_remote_code=trusted)
    assert "\n" not in str(told.value)
    other = with_modules(with_tokenizer(p.write(tmp_path / "bert", {"model_type": "bert"}, {})), "custom.Words")
    with pytest.raises(hf_adapters.UnsupportedOptionError, match=r'loaded by custom\.Words.*backend="torch"') as told:
        SentenceTransformer(str(other), backend="spyre", trust_remote_code=trusted)
    assert "\n" not in str(told.value)
    assert not any("transformers_modules" in name for name in sys.modules)


@pytest.mark.slow
def test_a_reranker_of_an_alias_is_loaded_with_its_head(tmp_path: Path) -> None:
    torch.manual_seed(0)
    head = {"architectures": ["NewForSequenceClassification"], "id2label": {"0": "relevance"}, "type_vocab_size": 2}
    published = {**gte.ORIGINAL, **head}
    config = stock_values(published, "test")
    stock = GteForSequenceClassification(GteConfig(**{k: v for k, v in config.items() if k != "model_type"})).eval()
    weights = gte.published(stock.base_model)
    weights |= {name: value for name, value in stock.state_dict().items() if not name.startswith("gte.")}
    folder = with_tokenizer(p.write(tmp_path, published, weights))
    pairs = [("red cat", "blue cat runs"), ("dog", "red")]
    model = CrossEncoder(str(folder), backend="spyre", trust_remote_code=True, activation_fn=torch.nn.Identity())
    ids = model.tokenizer([list(pair) for pair in pairs], padding=True, return_tensors="pt")
    with torch.no_grad():
        want = stock(**ids).logits[:, 0]
    assert torch.allclose(torch.from_numpy(model.predict(pairs)), want, atol=0.02)
    del weights["classifier.weight"]
    p.write(folder, published, weights)
    with pytest.raises(ForeignWeights, match=r"classifier\.weight"):
        CrossEncoder(str(folder), backend="spyre")


def test_a_renamed_weight_is_an_error_and_not_a_random_model(tmp_path: Path) -> None:
    weights = nomic.checkpoint()
    weights["encoder.layers.0.attn.out_projection.weight"] = weights.pop("encoder.layers.0.attn.out_proj.weight")
    folder = with_tokenizer(p.write(tmp_path, nomic.CONFIG, weights))
    with pytest.raises(ForeignWeights, match="out_projection"):
        SentenceTransformer(str(folder), backend="spyre")


def test_other_backends_still_ask_for_the_code_of_the_repository(tmp_path: Path) -> None:
    folder = jina_folder(tmp_path)
    with pytest.raises((ValueError, OSError, ImportError)):
        SentenceTransformer(str(folder), device="cpu", backend="torch")
