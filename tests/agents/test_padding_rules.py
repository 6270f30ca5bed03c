"""Rules that put zeros or ones beside features, so that the device gets whole sticks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from hf_adapters.agents.rewrite import pieces, products, search, tables
from hf_adapters.agents.rewrite.calls import bare, recorded
from hf_adapters.agents.rewrite.candidate import Candidate
from hf_adapters.agents.rewrite.device import Lowering, lower
from hf_adapters.agents.rewrite.emit import emit
from hf_adapters.agents.rewrite.modules import openable
from hf_adapters.agents.rewrite.rules import parts, sticks, sums
from hf_adapters.agents.rewrite.search import Found, Search, _Copies
from hf_adapters.agents.rewrite.trace import trace
from hf_adapters.agents.screening.policy import screen
from hf_adapters.agents.subject import Subject
from hf_adapters.validation.functions import Call
from tests.agents.test_rewrite import applied, kinds, rows, traced

RELEASE = "2026.07"


class Score(nn.Module):
    """A linear of 78 features, and products of those with each other and with a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(78, 78)
        self.table = nn.Parameter(torch.linspace(-1.0, 1.0, 78 * 64).reshape(78, 64))

    def forward(self, x: Tensor) -> Tensor:
        made = self.dense(x)
        return torch.softmax(made @ x.transpose(1, 2), -1) @ (made @ self.table)


class Turned(nn.Module):
    """Attention with grouped heads that are no whole sticks, each of them turned and brought to one length."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size, self.scaling = size, 0.25
        self.query, self.key, self.value = nn.Linear(192, 192), nn.Linear(192, 96), nn.Linear(192, 96, bias=False)
        self.out = nn.Linear(192, 192)
        self.length = nn.Parameter(torch.linspace(0.5, 1.5, size))
        self.rotation = nn.Parameter(torch.eye(size).roll(1, 0))

    def forward(self, x: Tensor, cosine: Tensor) -> Tensor:
        batch, tokens = x.shape[:2]
        q, k, v = (p(x).view(batch, tokens, -1, self.size).transpose(1, 2) for p in (self.query, self.key, self.value))
        q, k = (self.turned(each, cosine.unsqueeze(1)) for each in (q, k))
        k, v = (each.repeat_interleave(2, 1) for each in (k, v))
        scores = torch.softmax((q * self.scaling) @ k.transpose(2, 3), -1)
        return self.out((scores @ v).transpose(1, 2).reshape(batch, tokens, -1))

    def turned(self, x: Tensor, cosine: Tensor) -> Tensor:
        x = x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * self.length
        return x * cosine + x @ self.rotation * cosine


class Partly(nn.Module):
    """Turns the first features of a row by halves or by pairs, and leaves the others."""

    def __init__(self, count: int, pairs: bool) -> None:
        super().__init__()
        self.count, self.pairs = count, pairs
        self.cosine = nn.Parameter(torch.linspace(-1.0, 1.0, count))
        self.sine = nn.Parameter(torch.linspace(1.0, -0.5, count))

    def forward(self, x: Tensor) -> Tensor:
        x, rest = x[..., : self.count], x[..., self.count :]
        half = self.count // 2
        moved = (
            torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)
            if self.pairs
            else torch.cat([-x[..., half:], x[..., :half]], -1)
        )
        return torch.cat([x * self.cosine + moved * self.sine, rest], -1)


def attention(size: int) -> Candidate:
    calls = [Call((rows(b, t, 192).args[0], rows(b, t, size).args[0]), {}) for b, t in ((2, 64), (3, 128))]
    return Candidate.stock(trace(Turned(size).eval(), (calls[0], calls[1])))


def first(stock: Candidate, rule: Any) -> Candidate | None:
    """What a rule makes of the first node where it fits, when that is right."""
    trial = Search(traced=stock.traced, release=RELEASE)
    nodes = [n for n in stock.graph.nodes if n.op != "output"]
    return next((c for n in nodes if (c := trial._applied(rule, _Copies(stock), n, stock, True)) is not None), None)


@pytest.mark.slow
def test_products_sum_over_whole_sticks() -> None:
    stock = Candidate.stock(traced(Score(), width=78))
    refused = lower(stock, RELEASE).refused
    assert refused is not None
    assert refused.rule == "matmul-k-stick"
    changed = first(stock, sums.whole_sums)
    assert changed is not None
    assert {"cat", "new_zeros", "linear"} <= kinds(changed.graph)
    # Zeros at the end of the input are made once, for the linear and for the product with it.
    x = next(n for n in changed.graph.nodes if n.op == "placeholder")
    assert sum(n.target is torch.cat and n.args[0][0] is x for n in changed.graph.nodes) == 1
    assert set(changed.relies) == {"table.shape", "dense.in_features"}
    assert lower(changed, RELEASE).us is not None


@pytest.mark.parametrize(
    ("module", "relied"),
    [(nn.Linear(78, 64), "module.in_features == 78"), (Score(), "module.table.shape == (78, 64)")],
)
def test_a_form_is_for_the_sizes_that_it_was_made_for(module: nn.Module, relied: str) -> None:
    changed = first(Candidate.stock(traced(module, width=78)), sums.whole_sums)
    assert changed is not None
    emitted = emit(
        Found(candidate=changed, us=1.0, broken=()), nn.Sequential(module), rules=("matmul-k-stick",), release=RELEASE,
        path="0",
    )  # fmt: skip
    assert relied in emitted.source
    assert screen(emitted.source).violations == ()


def test_zeros_at_the_wrong_end_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    stock = Candidate.stock(traced(nn.Linear(78, 64), width=78))
    assert first(stock, sums.whole_sums) is not None
    pad = F.pad

    def before(graph: fx.Graph, held: fx.Node, extra: int) -> fx.Node:
        return graph.call_function(pad, (held, (extra, 0)))

    def at_the_start(self: products.Linear, candidate: Candidate, *_: Any) -> fx.Node:
        node = candidate.graph.get_attr("weight")
        wide = tables.changed(candidate, node, lambda graph, held: before(graph, held, 50), "about")
        return candidate.graph.call_function(F.linear, (self.input, wide, candidate.graph.get_attr("bias")))

    monkeypatch.setattr(products.Linear, "call", at_the_start)
    assert first(stock, sums.whole_sums) is None


@pytest.mark.parametrize("size", [16, 32, 48, 96])
def test_pieces_of_any_size_are_padded(size: int) -> None:
    stock = attention(size)
    changed = first(stock, sticks.padded_pieces)
    assert changed is not None
    padded = -(-size // 64) * 64
    widths = {int(n.meta["value"].shape[-1]) for n in changed.graph.nodes if n.target == "transpose"}
    assert padded in widths
    assert size not in widths
    # Both weights are spread where they are, so no matrix of 0 and 1 is left.
    assert "spread" not in changed.tables


def test_an_average_over_padded_pieces_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces.Pieces, "_reduced", lambda self, node: True)
    assert first(attention(48), sticks.padded_pieces) is None


def test_pieces_that_something_unknown_sees_are_left_alone() -> None:
    class Sorted(Turned):
        def turned(self, x: Tensor, cosine: Tensor) -> Tensor:
            return x.cumsum(-1)

    calls = [Call((rows(b, t, 192).args[0], rows(b, t, 48).args[0]), {}) for b, t in ((2, 64), (3, 128))]
    stock = Candidate.stock(trace(Sorted(48).eval(), (calls[0], calls[1])))
    assert first(stock, sticks.padded_pieces) is None


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("count", [16, 32])
def test_a_turned_part_becomes_whole_rows(count: int, pairs: bool) -> None:
    stock, changed = applied(Partly(count, pairs), *parts.RULES)
    assert changed.equals(stock)
    assert {"matmul", "new_ones", "new_zeros"} <= kinds(changed.graph)
    assert not {"stack", "neg", "getitem"} & kinds(changed.graph)
    assert "count" in changed.relies


def test_a_rest_that_is_lost_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    stock = Candidate.stock(traced(Partly(16, False)))
    assert first(stock, parts.whole_rows) is not None
    right = products.followed_by
    monkeypatch.setattr(parts, "followed_by", lambda graph, x, extra, filler: right(graph, x, extra, "new_zeros"))
    assert first(stock, parts.whole_rows) is None


def test_a_rest_of_something_else_is_no_part_of_the_row() -> None:
    class Other(Partly):
        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([x[..., :16] * self.cosine + x[..., :16], x[..., 32:]], -1)

    stock = Candidate.stock(traced(Other(16, False)))
    assert first(stock, parts.whole_rows) is None


def test_a_search_that_meets_one_refusal_again_and_again_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "lower", lambda *_: Lowering(elsewhere=("aten.x",), node="reshape"))
    monkeypatch.setattr(search, "_STUCK", 2)
    trial = Search(traced=attention(48).traced, release=RELEASE)
    assert trial.run() == []
    # The stock form is refused first, two others after it.
    assert trial.compiled == 3


def subject_of(architecture: str, without: str, **config: Any) -> Subject:
    sizes = {"vocab_size": 60, "num_hidden_layers": 1, "max_position_embeddings": 160}
    return Subject(
        key="x", label="x", release=RELEASE, kind="builder", builder="hf_adapters.agents.bench.structures:build",
        arguments={"architecture": architecture, "config": {**sizes, **config}}, without=(without,),
    )  # fmt: skip


def test_what_reads_tables_of_other_adapters_is_traced_without_them() -> None:
    subject = subject_of(
        "Llama", "head_padding", hidden_size=128, num_attention_heads=4, num_key_value_heads=2, intermediate_size=128
    )
    path = "layers.0.self_attn"
    called = recorded(subject, path)
    assert trace(called.module, called.calls).foreign == ("rotation",)
    stock = bare(called, subject, path)
    assert stock is not None
    assert trace(stock.module, stock.calls, (), stock.placed).foreign == ()


def test_a_module_that_adapters_changed_is_traced_without_them() -> None:
    subject = subject_of("Bert", "width_padding", hidden_size=78, num_attention_heads=3, intermediate_size=100)
    path, inner = "encoder.layer.0", "attention.self"
    called = recorded(subject, path)
    stock = bare(called, subject, path)
    assert stock is not None
    assert [m.get_submodule(inner).attention_head_size for m in (called.module, stock.module)] == [64, 26]
    form = trace(stock.module, stock.calls, openable(stock.module), stock.placed)
    # Another adapter changes it, so a form that is used beside that one may not read it.
    assert f"{inner}.attention_head_size" not in form.attributes
    assert f"{inner}.num_attention_heads" in form.attributes
    assert form.foreign == ()
    # What is around it counts on padded heads.
    padded = f"{path}.{inner}"
    assert bare(recorded(subject, padded), subject, padded) is None
