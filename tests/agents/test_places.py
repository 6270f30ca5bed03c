"""What ran on the CPU: the operation, its module, and the table that replaces sines and cosines of known angles."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from hf_adapters.agents.acceptance import candidate as acceptance
from hf_adapters.agents.places import computed, of_fallback
from hf_adapters.agents.rewrite.candidate import Candidate
from hf_adapters.agents.rewrite.rules.angles import table_of_angles
from hf_adapters.agents.rewrite.trace import trace
from hf_adapters.agents.sandbox.run import Answer
from hf_adapters.diagnose import Diagnosis
from hf_adapters.validation.functions import Call
from hf_adapters.validation.inputs import InputSet
from tests.agents import doubles

COS = Diagnosis(kind="failed", message="fallback", op="aten.cos.out")


class Angles(nn.Module):
    """Cosines by position, as rotary embeddings have them."""

    frequencies: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.max_positions = 160
        self.register_buffer("frequencies", 0.9 ** torch.arange(32.0), persistent=False)

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        angles = ids[..., None].float() * self.frequencies.to(x.device)
        return (torch.cat((angles, angles), dim=-1).cos() * 2.0).to(x.dtype)


class Moving(Angles):
    """The angles depend on what comes in."""

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        return (ids[..., None] * x).cos()


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.angles, self.norm = nn.Embedding(60, 64), Angles(), nn.LayerNorm(64)

    def forward(self, input_ids: Tensor) -> Tensor:
        found: Tensor = self.norm(self.words(input_ids))
        return found * self.angles(found, torch.zeros_like(input_ids))


def stock(module: nn.Module) -> Candidate:
    calls = tuple(
        Call((torch.randn(rows, tokens, 64), torch.arange(tokens).expand(rows, -1)), {})
        for rows, tokens in ((2, 64), (3, 96))
    )
    return Candidate.stock(trace(module.eval(), calls))  # type: ignore[arg-type]


def changed(module: nn.Module) -> tuple[Candidate, Candidate, str | None]:
    before = stock(module)
    after, places = before.copied()
    node = next(n for n in before.graph.nodes if n.name.startswith("cos"))
    return before, after, table_of_angles(after, places[node])


def test_known_angles_become_a_table() -> None:
    before, after, step = changed(Angles())
    assert step is not None
    after.annotate()
    assert after.equals(before)
    assert after.relies == ("max_positions",)
    assert not any("cos" in str(node.target) for node in after.graph.nodes)
    (table,) = after.tables.values()
    first, rest = table.value(Angles()).float().double().chunk(2, dim=-1)
    angles = torch.arange(160).double()[:, None] * Angles().frequencies.double()
    exact = torch.cat((angles, angles), dim=-1).cos() * 2.0
    assert (first - exact).abs().max() > 1e-9, "float32 alone does not hold them"
    assert (first + rest - exact).abs().max() < 1e-12


def test_other_angles_do_not() -> None:
    assert changed(Moving())[2] is None
    short = Angles()
    short.max_positions = 90
    assert changed(short)[2] is None, "a call had 96 positions"


def test_the_module_of_a_fallback_is_found() -> None:
    batch = InputSet(name="b", kwargs={"input_ids": torch.arange(64)[None] % 60}, padding="none")
    model = Model().eval()
    assert of_fallback(model, "aten.cos.out", nullcontext, batch, "2026.07") == "angles"
    assert of_fallback(model, "aten.eye.out", nullcontext, batch, "2026.07") == ""


def test_look_ups_are_no_computation() -> None:
    assert computed({"aten.embedding.default (lookup)": 2, "aten.add.Tensor (integer)": 1}) is None
    assert computed({"aten.embedding.default (lookup)": 2, "aten.cos.out (compute)": 1}) == "aten.cos.out"


@pytest.mark.parametrize(("causes", "expected"), [([doubles.DIAGNOSIS], "aten.cos.out"), ([COS], None)])
def test_a_fallback_elsewhere_is_told(causes: list[Diagnosis], expected: str | None) -> None:
    found = doubles.outcome(False, verdict="fallback")
    assert found.validation is not None
    found = replace(found, validation=replace(found.validation, fallbacks={"aten.cos.out (compute)": 4}))
    answer = Answer(kind="done", stage="done", reason="", data={}, tensors={}, sandboxed=True, seconds=1.0)
    told = acceptance._with_remaining(found, answer, (), causes, True).remaining
    assert (told and told.op) == expected
