"""Weights of linear layers lie as their matmuls want them, so that no call moves them (D2.2, #3512)."""

from __future__ import annotations

import torch
from torch import nn

import hf_adapters
from spyre_backend.compiler import stages


class Tied(nn.Module):
    """A projection whose weight is a table, too: rows are looked up in it, so that it keeps the default layout."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(192, 128)
        self.out = nn.Linear(128, 192, bias=False)
        self.out.weight = self.table.weight

    def forward(self, x):
        return self.out(x)


def moves(model: nn.Module, x: torch.Tensor) -> int:
    """Restickified tensors in what one call of the compiled model compiles to."""
    torch._dynamo.reset()
    compiled = hf_adapters.compile(model)
    with stages.recording() as seen, torch._inductor.config.patch(fx_graph_cache=False):
        compiled(x)
    return sum(stage.text.count("ReStickifyOpHBM[") for stage in seen if stage.stage == "work-division")


def test_linear_weights_are_not_moved_at_every_call() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(128, 192), nn.GELU(), nn.Linear(192, 64)).eval()
    x = torch.randn(4, 128)
    want, state = model(x), {name: value.clone() for name, value in model.state_dict().items()}
    assert moves(model, x) == 0
    assert torch.allclose(model(x), want, atol=2e-2)
    hf_adapters.decompile(model)
    assert all(torch.equal(value, state[name]) and value.is_contiguous() for name, value in model.state_dict().items())
    with torch.no_grad():
        model[0].weight.mul_(2)
    assert moves(model, x) == 0


def test_a_tied_table_keeps_the_default_layout() -> None:
    assert moves(Tied().eval(), torch.randn(4, 128)) == 1
