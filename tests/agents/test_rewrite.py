"""The offline drafter: tracing, the rule book, and the files that it writes."""

from __future__ import annotations

import ast
import inspect
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from benchmarks.rewrite import main
from hf_adapters.agents.rewrite.candidate import Candidate
from hf_adapters.agents.rewrite.emit import emit
from hf_adapters.agents.rewrite.modules import openable
from hf_adapters.agents.rewrite.rules import (
    RULES,
    convolutions,
    dtypes,
    features,
    functions,
    linear_maps,
    lookups,
    masks,
    powers,
    sticks,
)
from hf_adapters.agents.rewrite.search import Found, Search, _Copies
from hf_adapters.agents.rewrite.trace import Traced, Untraceable, trace
from hf_adapters.agents.rewrite.write import Writer, broken
from hf_adapters.agents.screening.policy import screen
from hf_adapters.patching import patch_report, patch_with
from hf_adapters.validation.functions import Call
from tests.agents.doubles import build_tiny


def rows(*sizes: int) -> Call:
    generator = torch.Generator().manual_seed(sum(sizes))
    return Call((torch.randn(sizes, generator=generator),), {})


def traced(module: nn.Module, *, width: int = 128) -> Traced:
    return trace(module.eval(), (rows(2, 64, width), rows(3, 96, width)))


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 128))
        self.variance_epsilon = 1e-6

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * wide.to(x.dtype)


class Heads(nn.Module):
    """Four heads of 32, half a stick."""

    def __init__(self) -> None:
        super().__init__()
        self.head_dim = 32
        self.query, self.key = nn.Linear(128, 128), nn.Linear(128, 128)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens = x.shape[:2]
        q, k = (p(x).view(batch, tokens, -1, self.head_dim).transpose(1, 2) for p in (self.query, self.key))
        attended = F.scaled_dot_product_attention(q, k, k)
        return attended.transpose(1, 2).reshape(batch, tokens, -1)


class Attention(Heads):
    """The same by hand, with a step that keeps the pieces whole, and an upper half that is not seen."""

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens = x.shape[:2]
        q, k = (p(x).view(batch, tokens, 4, self.head_dim).transpose(1, 2) for p in (self.query, self.key))
        hidden = torch.tensor(torch.finfo(torch.float32).min, dtype=torch.float32)
        scores = torch.where(torch.ones(tokens, tokens, dtype=torch.bool).tril(), q @ k.transpose(-1, -2), hidden)
        mixed = (F.softmax(scores, -1) @ k).reshape(batch, 4, tokens, self.head_dim)
        return mixed.transpose(1, 2).reshape(batch, tokens, -1)


class FeedForward(nn.Module):
    def __init__(self, gated: bool) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(128, 100), nn.Linear(100, 128, bias=False)
        self.gate = nn.Linear(128, 100, bias=False) if gated else None

    def forward(self, x: Tensor) -> Tensor:
        made = torch.exp(self.up(x) * 0.1)
        return self.down(made if self.gate is None else made * F.silu(self.gate(x)))


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = FeedForward(False)
        self.inner.rate = 0.1

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


class Halves(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(128))

    def forward(self, x: Tensor) -> Tensor:
        left, right = x[..., :64], x[..., 64:]
        return x * self.scale + torch.cat((-right, left), dim=-1)


class Pairs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(128))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + torch.stack([-x[..., 1::2], x[..., ::2]], dim=-1).reshape_as(x)


class Taps(nn.Module):
    def __init__(self, groups: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(128, 128, 3, padding=2, groups=groups)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x.transpose(1, 2)).transpose(1, 2)


class Scaled(nn.Module):
    """Scales by a tensor of rank 0."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 128))
        self.register_buffer("factor", torch.tensor(11.25))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight * self.factor.to(self.weight.dtype)


class Pointwise(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def kinds(graph: fx.Graph) -> set[str]:
    return {n.target if isinstance(n.target, str) else n.target.__name__ for n in graph.nodes}


def applied(module: nn.Module, *rules: Any) -> tuple[Candidate, Candidate]:
    """(stock, what the first rule that fits makes of it at the last node where it does)."""
    stock = Candidate.stock(traced(module))
    for node in reversed(stock.graph.nodes):
        for rule in rules:
            copied, places = stock.copied()
            step = rule(copied, places[node]) if node.op != "output" else None
            if step is not None:
                changed = copied.with_step(step, "reassociated")
                changed.annotate()
                return stock, changed
    raise AssertionError("no rule fits")


def test_numbers_that_change_with_the_inputs_become_sizes() -> None:
    graph = traced(Heads()).graph
    text = str(graph)
    assert "64" not in text
    assert "96" not in text
    assert any(n.op == "get_attr" and n.target == "head_dim" for n in graph.nodes)
    assert [n.target for n in graph.nodes if n.op == "call_module"] == ["query", "key"]


def test_attributes_and_dtypes_are_found_by_tracing_twice() -> None:
    graph = traced(Norm()).graph
    assert any(n.op == "get_attr" and n.target == "variance_epsilon" for n in graph.nodes)
    casts = [n.args[1] for n in graph.nodes if n.target == "to"]
    assert casts[0] is torch.float32
    assert isinstance(casts[1], fx.Node)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x if x.sum() > 0 else -x,
        lambda x: x * float(x.mean()),
        lambda x: x.clone().__setitem__(0, 0.0) or x,
        lambda x: x + torch.ones(x.shape[1] * x.shape[1] + 7)[:1],
    ],
)
def test_what_a_graph_cannot_stand_for_is_refused(function: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(Untraceable):
        traced(Pointwise(function))


@pytest.mark.parametrize(
    ("module", "rules", "gone", "there"),
    [
        (Norm(), powers.RULES, "pow", "mul"),
        (Pointwise(lambda x: torch.pow(x, -3.0)), powers.RULES, "pow", "reciprocal"),
        (Pointwise(lambda x: x.abs() ** 0.5), powers.RULES, "pow", "sqrt"),
        (Pointwise(lambda x: x * 0.5 * (1.0 + torch.erf(x / 2.0**0.5))), functions.RULES[:1], "erf", "gelu"),
        (Pointwise(F.mish), functions.RULES[:1], "mish", "exp"),
        (Pointwise(lambda x: x * torch.sigmoid(x)), functions.RULES[:1], "sigmoid", "silu"),
        (Pointwise(torch.tanh), functions.RULES[1:], "tanh", "sigmoid"),
        (Halves(), linear_maps.RULES, "cat", "matmul"),
        (Pairs(), linear_maps.RULES, "stack", "matmul"),
        (Heads(), sticks.RULES, "unflatten", "matmul"),
        (Taps(1), convolutions.RULES, "conv", "matmul"),
        (Taps(128), convolutions.RULES, "conv", "pad"),
        (Norm(), dtypes.RULES, "float", "rsqrt"),
        (Scaled(), lookups.RULES, "to", "mul"),
        (Attention(), sticks.RULES, "unflatten", "matmul"),
        (Attention(), masks.RULES[3:], "masked_fill", "truediv"),
        (FeedForward(False), features.RULES, "down", "linear"),
        (FeedForward(True), features.RULES, "gate", "linear"),
    ],
)
def test_a_rule_keeps_the_function(module: nn.Module, rules: Any, gone: str, there: str) -> None:
    stock, changed = applied(module, *rules)
    assert changed.equals(stock)
    assert gone not in kinds(changed.graph)
    assert there in kinds(changed.graph)
    assert str(changed.graph) != str(stock.graph)


@pytest.mark.parametrize("rows_held", [1, 2])
def test_only_a_table_of_one_row_is_no_lookup(rows_held: int) -> None:
    ids = (torch.zeros(2, 64, dtype=torch.long), torch.zeros(3, 96, dtype=torch.long))
    stock = Candidate.stock(trace(nn.Embedding(rows_held, 128).eval(), (Call(ids[:1], {}), Call(ids[1:], {}))))
    node = next(n for n in stock.graph.nodes if n.op == "call_function" and n.target is F.embedding)
    copied, places = stock.copied()
    step = lookups.only_row(copied, places[node])
    assert (step is None) == (rows_held > 1)
    if step is not None:
        assert copied.equals(stock)
        assert copied.relies == ("num_embeddings", "embedding_dim")


def test_two_functions_that_agree_near_zero_only_are_told_apart() -> None:
    stock = Candidate.stock(traced(Pointwise(lambda x: F.gelu(x).clamp(max=20.0))))
    for node in list(stock.graph.nodes)[:-1]:
        copied, places = stock.copied()
        step = functions.known_function(copied, places[node])
        assert step is None or copied.equals(stock)


def test_a_wrong_rule_is_noticed() -> None:
    def doubled(candidate: Candidate, node: fx.Node) -> str | None:
        if node.op != "call_method" or node.target != "pow":
            return None
        node.args = (node.args[0], 4)
        return "pow(x, 2) -> pow(x, 4)"

    search = Search(traced=traced(Norm()), release="2026.07")
    stock = Candidate.stock(search.traced)
    results = [search._applied(doubled, _Copies(stock), node, stock, True) for node in list(stock.graph.nodes)[:-1]]
    assert results == [None] * len(results)


def test_a_copy_that_one_rule_ran_serves_the_next() -> None:
    stock = Candidate.stock(traced(FeedForward(False)))
    node = next(n for n in stock.graph.nodes if n.target == "exp" or n.target is torch.exp)
    down = next(n for n in stock.graph.nodes if n.target == "down")
    copies = _Copies(stock)
    assert copies.tried(functions.known_function, node)[0] is None
    step, changed = copies.tried(features.whole_features, down)
    assert step is not None
    assert changed.equals(stock)
    assert stock.tables == {}


def test_the_rule_book_names_no_model_class() -> None:
    from hf_adapters.agents.rewrite import rules

    for rule in RULES:
        text = inspect.getsource(inspect.getmodule(rule) or rules)
        names = {node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)}
        assert not any(isinstance(name, str) and name.endswith(("Model", "Attention", "RMSNorm")) for name in names)
        assert "transformers" not in text


@pytest.mark.parametrize(("module", "rules"), [(Norm(), powers.RULES), (Heads(), sticks.RULES)])
def test_what_is_written_passes_the_screen(module: nn.Module, rules: Any) -> None:
    _, changed = applied(module, *rules)
    found = Found(candidate=changed, us=1.0, broken=())
    emitted = emit(found, build_tiny(), rules=("pow-scalar-exponent",), release="2026.07", path="")
    screened = screen(emitted.source)
    assert screened.violations == ()
    assert screened.adapter is not None
    assert screened.adapter.name == emitted.name
    assert [line for line in emitted.source.splitlines() if len(line) > 120] == []


def test_features_that_something_else_sees_are_noticed() -> None:
    class Seen(FeedForward):
        def forward(self, x: Tensor) -> Tensor:
            made = self.up(x)
            return self.down(made) + made.mean(-1, keepdim=True)

    stock, changed = applied(Seen(False), *features.RULES)
    assert not changed.equals(stock)


def test_modules_inside_can_be_opened() -> None:
    layer = Layer().eval()
    assert openable(layer) == {"inner"}
    calls = (rows(2, 64, 128), rows(3, 96, 128))
    assert "inner" in kinds(trace(layer, calls).graph)
    opened = trace(layer, calls, openable(layer))
    assert {"inner.up", "inner.down", "exp", "inner.rate"} <= kinds(opened.graph)
    stock = Candidate.stock(opened)
    assert stock.evaluate(0).equal(layer.double()(calls[0].args[0].double()))


def test_the_smallest_number_is_that_of_the_dtype_at_hand() -> None:
    graph = traced(Attention()).graph
    assert any(n.target is getattr and n.args[1] == "min" for n in graph.nodes)
    narrow = Candidate.stock(traced(Attention()))
    node = next(n for n in narrow.graph.nodes if n.target is torch.tensor)
    assert dtypes.stay_narrow(narrow, node) is None


def test_what_is_used_twice_is_computed_once() -> None:
    graph = traced(Pointwise(lambda x: x.exp() * 2.0)).graph
    doubled = next(n for n in graph.nodes if n.op == "output").args[0]
    assert isinstance(doubled, fx.Node)
    doubled.args = (doubled.args[0], doubled.args[0])
    writer = Writer({n: "x" for n in graph.nodes if n.op == "placeholder"}, {"x"})
    assert writer.body(graph) == "exp * exp" or writer.lines == ["exp = x.exp()"]
    assert "".join(writer.lines).count("exp()") == 1


def test_long_statements_keep_their_margin() -> None:
    lines = broken("    return call(" + ", ".join(f"argument_{i}" for i in range(12)) + ")", 80)
    assert lines[0] == "    return call("
    assert lines[-1] == "    )"
    assert all(line.startswith("        argument") for line in lines[1:-1])


def test_an_adapter_for_a_module_of_ones_own_proves_itself(tmp_path: Path) -> None:
    class Gate(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dense, self.offset = nn.Linear(128, 128), 0.5
            self.scale = nn.Parameter(torch.ones(128))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.scale / torch.sqrt(self.dense(x).pow(2).mean(-1, keepdim=True) + self.offset)

    _, changed = applied(Gate(), *powers.RULES)
    found = Found(candidate=changed, us=1.0, broken=())
    emitted = emit(found, nn.Sequential(Gate()), rules=("pow-scalar-exponent",), release="2026.07", path="0")
    assert screen(emitted.source).violations == ()
    file = tmp_path / f"{emitted.name}.py"
    file.write_text(emitted.source, encoding="utf-8")
    adapter = runpy.run_path(str(file))["ADAPTER"]
    (example,) = adapter.examples()
    model, inputs = example.build(), example.inputs()
    stock = model(**inputs)
    patch_with(model, [adapter], release="2026.07")
    assert [site.path for site in patch_report(model).sites] == [""]
    torch.testing.assert_close(model(**inputs), stock, rtol=1e-12, atol=1e-12)
    assert "pow" not in inspect.getsource(type(model).__mro__[1].forward)


@pytest.mark.slow
def test_an_adapter_is_found_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["functional_calls", "--attempts", "1"]) == 0
    assert "1 adapters found again: functional_calls" in capsys.readouterr().out
