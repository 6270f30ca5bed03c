"""sentence-transformers with backend="spyre": its model classes, poolings, heads, prompts and processes, against stock.

What does not depend on the device runs with the target "cpu": the same patch, padding and cutting on the host.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hf_adapters
from hf_adapters import runner, st_backend
from hf_adapters.errors import UnsupportedOptionError

from .small_models import COMMON, bert, seeded

TEXTS = ["red cat runs", "dog", "", "blue blue cat dog runs red cat", "dog runs"]
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "red", "blue", "cat", "dog", "runs", "query", ":"]
POOLINGS = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken", ("cls", "mean"))


@pytest.fixture
def on_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "compile", lambda model, target: runner.compile_with(model, target="cpu"))


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def saved(model: Any, folder: Path) -> str:
    from transformers import BertTokenizerFast

    folder.mkdir(exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    tokenizer = BertTokenizerFast(vocab=str(folder / "vocab.txt"))
    tokenizer.model_max_length = 96
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return saved(bert(), tmp_path_factory.mktemp("bert"))


def same(got: Any, want: Any) -> None:
    got, want = (np.asarray(value, dtype="float64") for value in (got, want))
    assert got.shape == want.shape
    assert np.isfinite(got).all()
    cosine = (got * want).sum(-1) / (np.linalg.norm(got, axis=-1) * np.linalg.norm(want, axis=-1))
    assert cosine.min() > 0.999


@pytest.mark.usefixtures("on_host")
def test_poolings_and_heads(path: str) -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer

    plain, ours = Transformer(path), Transformer(path, backend="spyre")
    torch.manual_seed(3)
    dense = Dense(64, 32, activation_function=torch.nn.Tanh())
    for mode in POOLINGS:
        heads = [Pooling(64, pooling_mode=mode)]
        heads += [dense, Normalize()] if heads[0].get_embedding_dimension() == 64 else []
        want = SentenceTransformer(modules=[plain, *heads], device="cpu").encode(TEXTS, batch_size=3)
        model = SentenceTransformer(modules=[ours, *heads], device="cpu")
        got = model.encode(TEXTS, batch_size=3, show_progress_bar=True)
        assert got.dtype == np.float32
        same(got, want)


@pytest.mark.usefixtures("on_host")
def test_prompts_dimensions_precision_and_empty_lists(path: str) -> None:
    from sentence_transformers import SentenceTransformer

    prompts = {"query": "query : ", "document": ""}
    plain = SentenceTransformer(path, device="cpu", prompts=prompts)
    ours = SentenceTransformer(path, backend="spyre", prompts=prompts)
    same(ours.encode_query(TEXTS), plain.encode_query(TEXTS))
    same(ours.encode_document(TEXTS), plain.encode_document(TEXTS))
    same(ours.encode(TEXTS, prompt="red "), plain.encode(TEXTS, prompt="red "))
    same(ours.encode(TEXTS, truncate_dim=16), plain.encode(TEXTS, truncate_dim=16))
    tokens = ours.encode(TEXTS[:2], output_value="token_embeddings")
    for got, want in zip(tokens, plain.encode(TEXTS[:2], output_value="token_embeddings"), strict=True):
        same(got, want)
    assert ours.encode("dog").shape == (64,)
    assert ours.encode(["dog"], convert_to_tensor=True).device.type == "cpu"
    assert ours.encode(TEXTS, precision="int8").dtype == np.int8
    assert len(ours.encode([])) == 0


@pytest.mark.usefixtures("on_host")
def test_saving_writes_the_stock_pipeline(path: str, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    ours = SentenceTransformer(path, backend="spyre")
    ours.save_pretrained(str(tmp_path))
    again = SentenceTransformer(str(tmp_path), device="cpu")
    want = SentenceTransformer(path, device="cpu").encode(TEXTS)
    assert np.array_equal(again.encode(TEXTS), want)
    assert np.array_equal(hf_adapters.decompile(ours).encode(TEXTS), want)


def dual_encoders(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their texts are embedded by a method of the model, not by its forward."""
    from sentence_transformers import SentenceTransformer
    from transformers import AutoProcessor, AutoTokenizer, CLIPConfig, CLIPModel

    part = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 128}
    text = {**part, "vocab_size": 90, "max_position_embeddings": 96, "pad_token_id": 0, "eos_token_id": 3}
    vision = {**part, "image_size": 32, "patch_size": 16}
    path = saved(seeded(CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=32))), folder)
    # The whole processor reads images, too, by a library that is not needed for texts.
    monkeypatch.setattr(AutoProcessor, "from_pretrained", AutoTokenizer.from_pretrained)
    plain, ours = SentenceTransformer(path, device="cpu"), SentenceTransformer(path, backend="spyre")
    assert ours[0].modality_config["text"]["method"] == "get_text_features"
    want, got = plain.encode(TEXTS), ours.encode(TEXTS)
    assert got.dtype == want.dtype
    same(got, want)
    ours.save_pretrained(str(folder / "again"))
    assert np.array_equal(SentenceTransformer(str(folder / "again"), device="cpu").encode(TEXTS), want)
    assert np.array_equal(hf_adapters.decompile(ours).encode(TEXTS), want)


@pytest.mark.usefixtures("on_host")
def test_dual_encoders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dual_encoders(tmp_path / "model", monkeypatch)


def cross_encoders(folder: Path, labels: int) -> None:
    from sentence_transformers import CrossEncoder
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(**COMMON, num_hidden_layers=2, num_attention_heads=1, num_labels=labels)
    path = saved(seeded(BertForSequenceClassification(config)), folder)
    pairs = [("red cat", text) for text in TEXTS]
    plain, ours = CrossEncoder(path, device="cpu"), CrossEncoder(path, backend="spyre")
    want, got = plain.predict(pairs), ours.predict(pairs)
    assert got.shape == want.shape
    assert np.abs(got - want).max() < 0.02
    if labels == 1:
        ranks = [[hit["corpus_id"] for hit in model.rank("red cat", TEXTS)] for model in (plain, ours)]
        assert ranks[0] == ranks[1]
    ours.save_pretrained(str(folder / "again"))
    assert np.array_equal(CrossEncoder(str(folder / "again"), device="cpu").predict(pairs), want)
    again = CrossEncoder(str(folder / "again"), backend="spyre").predict(pairs)
    assert np.abs(again - got).max() < 1e-6


@pytest.mark.usefixtures("on_host")
@pytest.mark.parametrize("labels", [1, 3])
def test_cross_encoders(tmp_path: Path, labels: int) -> None:
    cross_encoders(tmp_path / "model", labels)


@pytest.mark.usefixtures("on_host")
def test_rerankers_that_answer_with_a_token(tmp_path: Path) -> None:
    """A causal model scores the last position; padding inside must not become that position."""
    from sentence_transformers import CrossEncoder
    from transformers import Qwen3Config, Qwen3ForCausalLM

    WORDS[5:5] = ["yes", "no"]
    try:
        config = Qwen3Config(**COMMON, num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1, head_dim=64)
        path = saved(seeded(Qwen3ForCausalLM(config)), tmp_path / "model")
    finally:
        del WORDS[5:7]
    pairs = [("red cat", text) for text in TEXTS]
    want = CrossEncoder(path, device="cpu").predict(pairs)
    got = CrossEncoder(path, backend="spyre").predict(pairs)
    assert np.abs(got - want).max() < 0.05 * np.abs(want).max()


def sparse_encoders(folder: Path) -> None:
    from sentence_transformers import SparseEncoder
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(**COMMON, num_hidden_layers=2, num_attention_heads=1)
    path = saved(seeded(BertForMaskedLM(config)), folder)
    want = SparseEncoder(path, device="cpu").encode(TEXTS).to_dense()
    ours = SparseEncoder(path, backend="spyre")
    got = ours.encode(TEXTS)
    assert got.is_sparse
    same(got.to_dense(), want)
    ours.save_pretrained(str(folder / "again"))
    again = SparseEncoder(str(folder / "again"), device="cpu").encode(TEXTS).to_dense()
    assert np.array_equal(again.numpy(), want.numpy())


@pytest.mark.usefixtures("on_host")
def test_sparse_encoders(tmp_path: Path) -> None:
    sparse_encoders(tmp_path / "model")


@pytest.mark.slow
def test_all_classes_on_the_device(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sentence_transformers import SentenceTransformer

    torch.spyre.reset_launch_count()
    ours = SentenceTransformer(path, backend="spyre")
    same(ours.encode(TEXTS), SentenceTransformer(path, device="cpu").encode(TEXTS))
    assert ours.device.type == "cpu"
    assert ours[0].auto_model.embeddings.word_embeddings.weight.device.type == "spyre"
    cross_encoders(tmp_path / "cross", 1)
    sparse_encoders(tmp_path / "sparse")
    dual_encoders(tmp_path / "dual", monkeypatch)
    assert torch.spyre.launch_count() > 0


def with_head(path: str, folder: Path) -> str:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer

    torch.manual_seed(3)
    modules = [Transformer(path), Pooling(64, pooling_mode="mean"), Dense(64, 32), Normalize()]
    SentenceTransformer(modules=modules, device="cpu").save_pretrained(str(folder))
    return str(folder)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_heads_stay_in_the_callers_dtype(path: str, dtype: torch.dtype, tmp_path: Path) -> None:
    """The parameters ahead of them lie on the device in half precision, which the library takes for everybody's."""
    from sentence_transformers import SentenceTransformer

    folder, options = with_head(path, tmp_path / "model"), {"model_kwargs": {"dtype": dtype}}
    ours = SentenceTransformer(folder, backend="spyre", **options)
    plain = SentenceTransformer(folder, device="cpu", **options)
    assert ours[0].auto_model.embeddings.word_embeddings.weight.dtype == torch.float16
    assert ours[2].linear.weight.dtype == dtype
    got, want = (model.encode(TEXTS, convert_to_tensor=True) for model in (ours, plain))
    assert got.dtype == want.dtype == dtype
    assert torch.cosine_similarity(got.float(), want.float()).min() > (0.999 if dtype == torch.float32 else 0.99)
    assert ours.state_dict().keys() == plain.state_dict().keys()


def test_half_takes_the_results_and_the_heads_behind_them_along(path: str, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    folder = with_head(path, tmp_path / "model")
    ours = SentenceTransformer(folder, backend="spyre").half()
    want = SentenceTransformer(folder, device="cpu").encode(TEXTS, convert_to_tensor=True)
    got = ours.encode(TEXTS, convert_to_tensor=True)
    assert (got.dtype, ours[0].auto_model.dtype, ours[2].linear.weight.dtype) == (torch.float16,) * 3
    assert torch.cosine_similarity(got.float(), want).min() > 0.999


@pytest.mark.slow
def test_a_pool_of_processes(path: str, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    path = with_head(path, tmp_path / "model")
    want = SentenceTransformer(path, device="cpu").encode(TEXTS)
    ours = SentenceTransformer(path, backend="spyre")
    pool = ours.start_multi_process_pool(["cpu"])
    try:
        same(ours.encode(TEXTS, pool=pool), want)
    finally:
        ours.stop_multi_process_pool(pool)
    same(ours.encode(TEXTS), want)


def test_other_versions_are_refused(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from sentence_transformers import SentenceTransformer

    monkeypatch.setattr(st_backend, "PROVEN", {"sentence-transformers": ("1.0", "2")})
    with pytest.raises(UnsupportedOptionError, match=r"proven with 1\.0 <= version < 2"):
        SentenceTransformer(path, backend="spyre")
    assert len(SentenceTransformer(path, device="cpu").encode(TEXTS)) == len(TEXTS)
