"""A small ranking with every kind of verdict, whose figures are easy to check by hand."""

from __future__ import annotations

from typing import Any

from hf_adapters.report.rows import ModelRow


def row(rank: int, verdict: str, **values: Any) -> ModelRow:
    """A model with sensible defaults."""
    given: dict[str, Any] = {
        "downloads": 1000 // rank,
        "model_id": f"someone/model-{rank}",
        "family": "bert",
        "evidence": "exact",
        "structure": f"s{rank}",
        "profile_id": f"p{rank}",
        **values,
    }
    return ModelRow(rank=rank, verdict=verdict, **given)


POW = {
    "rule": "pow-scalar-exponent",
    "op": "aten.pow.Tensor_Scalar",
    "reason": "pow with a scalar exponent",
    "module_path": "layer.0",
}

SAMPLE = (
    row(1, "adapted", downloads=1000, adapters=("gelu", "heads"), structure="s1"),
    row(2, "native", downloads=500),
    row(3, "adapted", downloads=200, adapters=("gelu",), structure="s3", evidence="inferred"),
    row(4, "adapted", downloads=100, adapters=("gelu",), structure="s3", evidence="stand-in"),
    row(5, "uncovered", downloads=90, family="gpt2", **POW),
    row(6, "uncovered", downloads=80, family="gpt2", structure="s5", **POW),
    row(7, "mismatch", downloads=70, reason="12 times the noise floor", op="aten.softmax.int"),
    row(
        8,
        "unbuildable",
        downloads=60,
        evidence="none",
        structure=None,
        profile_id=None,
        reason="needs remote code",
        rule="remote-code",
    ),
    row(9, "pending", downloads=50),
    row(150, "native", downloads=10, family="mpnet"),
)
