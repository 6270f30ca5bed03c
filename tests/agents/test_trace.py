"""The offline drafter's trace: what adapters left in a module, what cannot be traced; names of drafts."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hf_adapters.agents.rewrite import emit
from hf_adapters.agents.rewrite.candidate import Candidate
from hf_adapters.agents.rewrite.trace import Untraceable
from tests.agents.test_rewrite import traced


class Tabled(nn.Module):
    """Multiplies by a table as adapters derive them: a plain attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(128))
        self.__dict__["table"] = torch.eye(128)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x * self.scale, self.table)


class Typed(nn.Module):
    """Casts, and casts back to what came in: the first cast changes nothing in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(128))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float() * self.scale.float()
        return (wide * wide).type_as(x) * self.scale


class Broken(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise ValueError(f"no {x.dtype}")


def test_a_taken_name_gets_a_number() -> None:
    assert emit._name("NewGELUActivation", ()) == "new_gelu_activation_legal"
    assert emit._name("NewGELUActivation", {"new_gelu_activation_legal"}) == "new_gelu_activation_legal_2"


def test_tables_of_adapters_follow_the_dtype() -> None:
    candidate = Candidate.stock(traced(Tabled()))
    candidate.annotate()
    assert candidate.evaluate(0).dtype == torch.float64


def test_a_cast_that_changes_nothing_leaves_its_operand_alone() -> None:
    nodes = {node.name: node for node in traced(Typed()).graph.nodes}
    assert nodes["type_as"].args[1] is nodes["x"]
    assert nodes["mul_2"].args[1].op == "get_attr"


def test_a_forward_that_raises_is_untraceable() -> None:
    with pytest.raises(Untraceable, match=r"ValueError: no torch\.float32"):
        traced(Broken())
