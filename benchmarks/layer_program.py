"""A BERT encoder layer as a hand-made program, so that the executor can be timed without the compiler."""

from __future__ import annotations

from typing import Any, Literal

from spyre_backend.program import Const, Op, Operand, Program, StickLayout, TensorSpec

Kind = Literal["input", "output", "temp"]


class LayerProgram:
    """Builds the operations of one layer for a sequence of `length` tokens, batch 1."""

    def __init__(self, hidden: int = 768, heads: int = 12, length: int = 128, inner: int = 3072) -> None:
        self.hidden, self.heads, self.length, self.inner = hidden, heads, length, inner
        self.head = hidden // heads
        self.tensors: dict[str, TensorSpec] = {}
        self.ops: list[Op] = []

    def tensor(self, name: str, size: tuple[int, ...], kind: Kind = "temp") -> str:
        strides: list[int] = []
        step = 1
        for extent in reversed(size):
            strides.insert(0, step)
            step *= extent
        layout = StickLayout(device_size=(1, 64), stride_map=(-1, 1), device_dtype="SEN169_FP16", stick_dim=None)
        self.tensors[name] = TensorSpec(
            name=name, kind=kind, dtype="float16", size=size, stride=tuple(strides), layout=layout
        )
        return name

    def op(self, name: str, dims: tuple[int, ...], *operands: Any, reduced: int = 0, **attrs: Any) -> None:
        """Append an operation; operands are (tensor, strides) pairs or numbers, the last one is the output."""
        made = [
            Const(value=item, dtype="float16")
            if isinstance(item, float)
            else Operand(tensor=item[0], strides=item[1], offset=0, dtype="float16")
            for item in operands
        ]
        output = made.pop()
        assert isinstance(output, Operand)
        self.ops.append(Op(name=name, dims=dims, reduced=reduced, inputs=tuple(made), output=output, attrs=attrs))

    def linear(self, x: str, name: str, width: int, out: int) -> str:
        """x @ W.T + b, as two operations."""
        weight = self.tensor(f"{name}.weight", (out, width), "input")
        bias = self.tensor(f"{name}.bias", (out,), "input")
        product, result = (self.tensor(f"{name}.{part}", (self.length, out)) for part in ("product", "result"))
        dims = (self.length, out, width)
        self.op("batchmatmul", dims, (x, (width, 0, 1)), (weight, (0, width, 1)), (product, (out, 1, 0)), reduced=1)
        self.op("add", dims[:2], (product, (out, 1)), (bias, (0, 1)), (result, (out, 1)))
        return result

    def norm(self, x: str, residual: str, name: str, kind: Kind = "temp") -> str:
        """LayerNorm(x + residual)."""
        weight, bias = (self.tensor(f"{name}.{part}", (self.hidden,), "input") for part in ("weight", "bias"))
        total, result = self.tensor(f"{name}.sum", (self.length, self.hidden)), f"{name}.result"
        self.tensor(result, (self.length, self.hidden), kind)
        dims, whole, row = (self.length, self.hidden), (self.hidden, 1), (1, 0)
        self.op("add", dims, (x, whole), (residual, whole), (total, whole))
        statistics = [self.tensor(f"{name}.{part}", (self.length,)) for part in ("mean", "square", "scale")]
        self.op("exx2_mean", dims, (total, whole), (statistics[0], row), reduced=1)
        self.op("exx2_meansq", dims, (total, whole), (statistics[1], row), reduced=1)
        ones = (1,)
        scaled = [(part, ones) for part in statistics]
        self.op("layernormscale", (self.length,), *scaled, eps=1e-12)
        self.op(
            "layernormnorm", dims, (total, whole), (statistics[0], row), (statistics[2], row),
            (weight, (0, 1)), (bias, (0, 1)), (result, whole),
        )  # fmt: skip
        return result

    def attention(self, q: str, k: str, v: str, mask: str) -> str:
        heads, length, head, hidden = self.heads, self.length, self.head, self.hidden
        dims, whole = (heads, length, length), (length * length, length, 1)
        names = ("scores", "scaled", "masked", "shifted", "exp", "probs")
        scores, scaled, masked, shifted, exp, probs = (self.tensor(name, dims) for name in names)
        peak, total = (self.tensor(name, dims[:2]) for name in ("peak", "total"))
        row = (length, 1, 0)
        self.op(
            "batchmatmul", (*dims, head), (q, (head, hidden, 0, 1)), (k, (head, 0, hidden, 1)),
            (scores, (*whole, 0)), reduced=1,
        )  # fmt: skip
        self.op("mul", dims, (scores, whole), head**-0.5, (scaled, whole))
        self.op("add", dims, (scaled, whole), (mask, (0, 0, 1)), (masked, whole))
        self.op("max", dims, (masked, whole), (peak, row), reduced=1)
        self.op("sub", dims, (masked, whole), (peak, row), (shifted, whole))
        self.op("exp", dims, (shifted, whole), (exp, whole))
        self.op("sum", dims, (exp, whole), (total, row), reduced=1)
        self.op("realdiv", dims, (exp, whole), (total, row), (probs, whole))
        context = self.tensor("context", (length, hidden))
        self.op(
            "batchmatmul", (heads, length, head, length), (probs, (length * length, length, 0, 1)),
            (v, (head, 0, 1, hidden)), (context, (head, hidden, 1, 0)), reduced=1,
        )  # fmt: skip
        return context

    def build(self) -> Program:
        """The whole layer; arguments are the hidden states, the mask, the parameters and the output."""
        x = self.tensor("x", (self.length, self.hidden), "input")
        mask = self.tensor("mask", (self.length,), "input")
        q, k, v = (self.linear(x, name, self.hidden, self.hidden) for name in ("query", "key", "value"))
        attended = self.linear(self.attention(q, k, v, mask), "attention.output", self.hidden, self.hidden)
        middle = self.norm(attended, x, "attention.norm")
        wide = self.linear(middle, "intermediate", self.hidden, self.inner)
        active = self.tensor("gelu", (self.length, self.inner))
        strides = (self.inner, 1)
        self.op("gelu", (self.length, self.inner), (wide, strides), (active, strides))
        out = self.norm(self.linear(active, "output", self.inner, self.hidden), middle, "norm", "output")
        assert out
        tensors = tuple(self.tensors.values())
        return Program(
            name="bert_layer", release="2026.07", fingerprint="hand-made", tensors=tensors, ops=tuple(self.ops),
            arguments=tuple(t.name for t in tensors if t.kind != "temp"),
        )  # fmt: skip
