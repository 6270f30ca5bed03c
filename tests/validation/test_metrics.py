"""Figures, and what is refused before any figure is computed."""

from __future__ import annotations

import torch

from hf_adapters.validation import metrics


def _rows(seed: int, rows: int = 6, size: int = 16) -> torch.Tensor:
    return torch.randn(rows, size, generator=torch.Generator().manual_seed(seed))


def test_error_is_relative_to_each_vectors_largest_entry() -> None:
    reference = torch.tensor([[1.0, -4.0], [10.0, 0.0]])
    candidate = torch.tensor([[1.0, -4.4], [10.0, 0.5]])
    assert torch.allclose(
        metrics.vector_errors(candidate, reference, None), torch.tensor([0.1, 0.05], dtype=torch.float64)
    )


def test_padding_is_left_out() -> None:
    reference = torch.ones(1, 3, 2) + torch.arange(2)
    candidate = reference.clone()
    candidate[0, 2] = float("nan")
    valid = torch.tensor([[True, True, False]])
    assert metrics.unusable(candidate, reference, valid, "x") is None
    assert metrics.vector_errors(candidate, reference, valid).tolist() == [0.0, 0.0]
    found = metrics.unusable(candidate, reference, torch.ones(1, 3, dtype=torch.bool), "x")
    assert found is not None
    assert found.reason == "nan"


def test_unusable_values_are_told_apart() -> None:
    reference = _rows(0)
    cases = {
        "inf": torch.where(reference > 1, float("inf"), reference),
        "constant": torch.ones_like(reference),
        "shape": reference[:2],
    }
    for reason, candidate in cases.items():
        found = metrics.unusable(candidate, reference, None, "x")
        assert found is not None
        assert found.reason == reason
    assert metrics.unusable(torch.zeros(2, 4), torch.zeros(2, 4), None, "x") is None


def test_rank_correlation_and_neighbours() -> None:
    reference = _rows(1)
    same = metrics.ranking(reference * 3, reference, 0.0)
    assert abs(same.spearman - 1) < 1e-12
    assert same.neighbours_kept == same.neighbours_decided == 6
    other = metrics.ranking(_rows(2), reference, 0.0)
    assert other.spearman < 0.9
    assert other.neighbours_kept < other.neighbours_decided


def test_undecided_neighbours_are_not_counted() -> None:
    base = _rows(3, rows=4)
    base[1], base[2] = base[0] + 0.01, base[0] - 0.01  # 0 has two neighbours that are equally near
    decided = metrics.ranking(base, base, 0.01).neighbours_decided
    assert decided < metrics.ranking(base, base, 0.0).neighbours_decided
