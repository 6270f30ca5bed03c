"""Whole models under the exact executor: every operation in lockstep with the fast one, and the result beside it.

The tolerance of single operations is derived in ``lockstep``.  End to end, the two executors differ only in the order
in which partial sums are added, and of all roundings that separate a device result from the true one these are a part.
So the exact result may be no further from the truth than the fast one, up to the luck of single roundings (a quarter),
and nearer to the fast one than the fast one is to the truth.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import hf_adapters
from spyre_backend.emulator import executor
from tests.emulator.lockstep import Lockstep, lockstep
from tests.runner.small_models import batch, bert, qwen3


def distance(a: Tensor, b: Tensor) -> float:
    """Relative distance in the Euclidean norm."""
    return float((a.double() - b.double()).norm() / b.double().norm())


def check(stock: Any, model: Any, inputs: dict[str, Tensor]) -> Lockstep:
    """Run all three."""
    with torch.no_grad():
        truth = stock.double()(**inputs).last_hidden_state
    compiled = hf_adapters.compile(model, target="spyre")
    fast = compiled(**inputs).last_hidden_state
    with executor("exact"), lockstep() as observer:
        exact = compiled(**inputs).last_hidden_state
    at = inputs["attention_mask"].bool() if "attention_mask" in inputs else slice(None)
    truth, fast, exact = (t[at] for t in (truth, fast, exact))
    assert distance(fast, truth) < 0.05
    assert distance(exact, truth) <= 1.25 * distance(fast, truth)
    assert distance(exact, fast) <= distance(fast, truth)
    return observer


@pytest.mark.slow
def test_bert_of_minilm_size() -> None:
    """Two layers of all-MiniLM-L6's widths (384, 12 heads of 32, 1536) at 64 tokens."""
    sizes = {"hidden_size": 384, "intermediate_size": 1536, "num_attention_heads": 12}
    observer = check(bert(**sizes), bert(**sizes), batch(1, 50))
    assert observer.operations > 60
    assert max(observer.cores) == 32


@pytest.mark.slow
def test_a_decoder() -> None:
    """Causal, grouped heads, RoPE, RMSNorm, SwiGLU."""
    observer = check(qwen3(), qwen3(), batch(1, 50))
    assert observer.operations > 60
