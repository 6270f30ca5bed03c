"""The sentence-transformers hook: only when asked for, before or after the import, and gone on demand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import hf_adapters
from hf_adapters import st_backend


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_the_package_stays_cheap() -> None:
    heavy = ("torch", "transformers", "sentence_transformers", "sqlmodel", "spyre_backend")
    code = f"import sys, hf_adapters; print([name for name in {heavy} if name in sys.modules])"
    assert python(code) == "[]"


@pytest.mark.parametrize("order", ["import hf_adapters; import sentence_transformers",
                                   "import sentence_transformers; import hf_adapters"])  # fmt: skip
def test_the_method_is_wrapped_in_either_order_and_unwrapped(order: str) -> None:
    code = (
        f"{order}\n"
        "from hf_adapters import st_backend\n"
        "from sentence_transformers.base.modules.transformer import Transformer\n"
        "wrapped = hasattr(Transformer._load_model, '_hf_adapters_stock')\n"
        "st_backend.install(); stock = Transformer._load_model._hf_adapters_stock\n"
        "st_backend.uninstall()\n"
        "print(wrapped, Transformer._load_model is stock, hasattr(stock, '_hf_adapters_stock'))"
    )
    assert python(code) == "True True False"


def test_public_names_resolve() -> None:
    for name in hf_adapters.__all__:
        if name != "validate":
            assert getattr(hf_adapters, name) is not None
    with pytest.raises(AttributeError, match="nothing_like_this"):
        _ = hf_adapters.nothing_like_this


def saved_bert(path: Path) -> str:
    from .small_models import bert, with_tokenizer

    with_tokenizer(path, 96)
    bert().save_pretrained(path)
    return str(path)


def test_backend_spyre_compiles_and_others_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sentence_transformers import SentenceTransformer

    from hf_adapters import runner

    path = saved_bert(tmp_path)
    asked: list[str] = []
    stock = runner.compile_with
    monkeypatch.setattr(
        runner, "compile", lambda model, target: asked.append(target) or stock(model, target=target, backend=None)
    )
    plain = SentenceTransformer(path, device="cpu")
    assert not asked
    model = SentenceTransformer(path, backend="spyre")
    assert asked == ["spyre"]
    assert model.device.type == "cpu"
    texts = ["red cat runs", "dog", "blue blue cat"]
    got, want = model.encode(texts), plain.encode(texts)
    assert got.dtype == want.dtype
    assert (got * want).sum(-1).min() > 0.999 * (want * want).sum(-1).min()
    assert len(model.encode([])) == 0
    whole = stock(SentenceTransformer(path, device="cpu"), backend=None)
    assert abs(whole.encode(texts) - got).max() < 1e-6
    assert abs(hf_adapters.decompile(whole).encode(texts) - want).max() == 0


def test_unknown_backends_are_still_refused_by_the_library(tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    with pytest.raises(ValueError, match="Unsupported backend 'spyyre'"):
        SentenceTransformer(saved_bert(tmp_path), backend="spyyre")
    assert any(isinstance(finder, st_backend._Finder) for finder in sys.meta_path)
