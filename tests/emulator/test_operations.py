"""What single operations do at the edges: exp floor, merged NaN, constants, cancellation, gathers, integers."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from spyre_backend.capabilities import load
from spyre_backend.emulator import Plan, execute
from spyre_backend.emulator.numerics import dl16_encode, dl16_round, dl16_round_reference
from spyre_backend.program import Const
from tests.emulator.programs import op, operand, program, spec, unary

MASKED = -33_521_664.0


def apply(
    name: str, values: list[float], dtype: str = "float16", out_dtype: str | None = None, **attrs: object
) -> torch.Tensor:
    """`name` of `values` in a one-operation program."""
    made = unary(name, len(values), dtype, out_dtype, **attrs)
    working = {
        "float32": torch.float32,
        "float16": torch.float32,
        "int64": torch.int64,
        "bool": torch.bool,
        "int32": torch.int32,
    }
    x = torch.tensor(values, dtype=working[dtype])
    y = torch.zeros(len(values), dtype=working[out_dtype or dtype])
    execute(made, {"x": x, "y": y})
    return y


def test_exp_in_16_bits_never_falls_below_its_floor() -> None:
    assert apply("exp", [MASKED, -20.0, -16.0, 0.0]).tolist() == [
        2.0**-24,
        2.0**-24,
        dl16_round(torch.tensor(math.exp(-16))).item(),
        1.0,
    ]
    assert apply("exp", [math.nan]).isnan().all()


def test_exp_in_fp32_reaches_zero_and_saturates() -> None:
    result = apply("exp", [-200.0, 22.0, 60.0], "float32")
    assert result[0] == 0.0
    assert result[1] == result[2] == torch.tensor(22.0).exp()


@pytest.mark.parametrize(
    ("name", "value"),
    [("reciprocal", 0.0), ("log", 0.0), ("rsqrt", 0.0), ("exp", 40.0), ("square", 1e6), ("sqrt", -1.0)],
)
def test_results_without_a_dl16_code_become_the_merged_nan(name: str, value: float) -> None:
    assert apply(name, [value]).isnan().all()


def test_fp32_keeps_infinities() -> None:
    assert apply("reciprocal", [0.0], "float32").tolist() == [math.inf]


def test_silu_of_minus_infinity_is_zero() -> None:
    assert apply("silu", [-math.inf], "float32").tolist() == [0.0]
    assert apply("silu", [MASKED]).abs().tolist() == [0.0]


def test_gelu_is_the_erf_form_whatever_is_asked() -> None:
    x = dl16_round(torch.linspace(-3, 3, 64))
    expected = dl16_round_reference(torch.nn.functional.gelu(x))
    assert torch.equal(apply("gelu", x.tolist(), approximate="tanh"), expected)


@pytest.mark.parametrize("name", ["gelu", "tanh", "log", "softplus"])
def test_16_bit_functions_refuse_fp32(name: str) -> None:
    with pytest.raises(RuntimeError, match="16-bit floats only"):
        apply(name, [1.0], "float32")


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 5, 8, -1, -3])
def test_powi_rounds_every_product_of_the_squaring_chain(exponent: int) -> None:
    x = dl16_round(torch.linspace(0.5, 2.0, 64))
    chain = {
        0: lambda: torch.ones_like(x), 1: lambda: x, 2: lambda: r(x * x), 3: lambda: r(x * r(x * x)),
        5: lambda: r(x * r(r(x * x) * r(x * x))), 8: lambda: r(r(r(x * x) * r(x * x)) * r(r(x * x) * r(x * x))),
        -1: lambda: r(1 / x), -3: lambda: r(1 / r(x * r(x * x))),
    }  # fmt: skip
    r = dl16_round_reference
    assert torch.equal(apply("powi", x.tolist(), exponent=exponent), chain[exponent]())


def test_clip_takes_either_bound_and_an_infinite_one_spoils_everything() -> None:
    assert apply("clip", [-2.0, 0.5, 7.0], min=-1.0, max=2.0).tolist() == [-1.0, 0.5, 2.0]
    assert apply("clip", [-2.0, 7.0], max=2.0).tolist() == [-2.0, 2.0]
    assert apply("clip", [1.0], min=-math.inf).isnan().all()
    with pytest.raises(RuntimeError, match="'min' or 'max'"):
        apply("clip", [1.0])


@pytest.mark.parametrize(
    ("dtype", "value", "expected"),
    [("float16", 0.1, 0.0999755859375), ("float32", 0.1, 0.10000000149011612), ("int64", 3, 3)],
)
def test_fill_writes_the_constant_as_the_device_holds_it(dtype: str, value: float, expected: float) -> None:
    y = spec("y", "output", (4,), dtype)
    made = program((y,), op("fill", (4,), (Const(value=value, dtype=dtype),), operand(y, (1,))))
    out = torch.zeros(4, dtype=torch.int64 if dtype == "int64" else torch.float32)
    execute(made, {"y": out})
    assert out.tolist() == pytest.approx([expected] * 4, abs=1e-4 if dtype == "float16" else 0)
    assert dtype != "float16" or torch.equal(out, dl16_round_reference(torch.full((4,), value)))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_infinite_constants_are_nan(dtype: str) -> None:
    x, y = spec("x", "input", (2,), dtype), spec("y", "output", (2,), dtype)
    inputs = (operand(x, (1,)), Const(value=-math.inf, dtype=dtype))
    out = torch.zeros(2)
    execute(program((x, y), op("maximum", (2,), inputs, operand(y, (1,)))), {"x": torch.ones(2), "y": out})
    assert out.isnan().all()


def layer_norm_scale(mean: float, mean_square: float, eps: float, dtype: str) -> float:
    """`layernormscale` of one row's statistics."""
    m, q, y = (spec(name, kind, (1,), dtype) for name, kind in (("m", "input"), ("q", "input"), ("y", "output")))
    made = program(
        (m, q, y), op("layernormscale", (1,), (operand(m, (1,)), operand(q, (1,))), operand(y, (1,)), eps=eps)
    )
    out = torch.zeros(1)
    execute(made, {"m": torch.tensor([mean]), "q": torch.tensor([mean_square]), "y": out})
    return out.item()


def test_layer_norm_of_a_nearly_constant_row_cancels_to_nan_in_16_bits_only() -> None:
    mean = dl16_round(torch.tensor(10.02)).item()
    mean_square = mean * mean + 1e-3
    in_16_bits = dl16_round(torch.tensor(mean_square)).item()
    assert math.isnan(layer_norm_scale(mean, in_16_bits - 0.25, 1e-5, "float16"))
    assert layer_norm_scale(mean, mean_square, 1e-5, "float32") == pytest.approx((1e-3 + 1e-5) ** -0.5, rel=2e-2)


def test_an_eps_below_the_smallest_number_vanishes() -> None:
    assert math.isnan(layer_norm_scale(1.0, 1.0, 1e-12, "float16"))
    assert layer_norm_scale(1.0, 1.0, 1e-5, "float16") == pytest.approx(1e5**0.5, rel=2**-8)


def test_layer_norm_normalises_with_one_rounding() -> None:
    tensors = tuple(
        spec(n, k, s)
        for n, k, s in (
            ("x", "input", (2, 64)),
            ("m", "input", (2,)),
            ("s", "input", (2,)),
            ("w", "input", (64,)),
            ("b", "input", (64,)),
            ("y", "output", (2, 64)),
        )
    )
    x, m, s, w, b, y = tensors
    inputs = (operand(x, (64, 1)), operand(m, (1, 0)), operand(s, (1, 0)), operand(w, (0, 1)), operand(b, (0, 1)))
    values = {t.name: dl16_round(torch.randn(t.storage_elements)) for t in tensors}
    execute(program(tensors, op("layernormnorm", (2, 64), inputs, operand(y, (64, 1)))), values)
    rows = (values["x"].view(2, 64) - values["m"][:, None]) * values["s"][:, None] * values["w"] + values["b"]
    assert torch.equal(values["y"].view(2, 64), dl16_round_reference(rows))


@pytest.mark.parametrize("as_codes", [False, True])
def test_gather_reads_rows_and_may_take_a_table_in_codes(as_codes: bool) -> None:
    table, ids = spec("table", "input", (10, 4)), spec("ids", "input", (2, 3), "int64")
    out = spec("out", "output", (2, 3, 4))
    made = program(
        (table, ids, out),
        op(
            "gather",
            (2, 3, 4),
            (operand(table, (0, 0, 1)), operand(ids, (3, 1, 0))),
            operand(out, (12, 4, 1)),
            index_stride=4,
        ),
    )
    values = dl16_round(torch.randn(10, 4))
    index = torch.tensor([[0, 9, 3], [3, 3, 1]])
    result = torch.zeros(24)
    execute(
        made,
        {
            "table": dl16_encode(values).flatten() if as_codes else values.flatten(),
            "ids": index.flatten(),
            "out": result,
        },
    )
    assert torch.equal(result.view(2, 3, 4), values[index])


def test_gather_of_single_elements_along_an_indexed_dim() -> None:
    table, ids, out = (
        spec("table", "input", (5, 6)),
        spec("ids", "input", (3, 6), "int32"),
        spec("out", "output", (3, 6)),
    )
    made = program(
        (table, ids, out),
        op("gather", (3, 6), (operand(table, (0, 1)), operand(ids, (6, 1))), operand(out, (6, 1)), index_stride=6),
    )
    values, index, result = torch.arange(30.0), torch.randint(0, 5, (3, 6)), torch.zeros(18)
    execute(made, {"table": values, "ids": index.to(torch.int32).flatten(), "out": result})
    assert torch.equal(result.view(3, 6), values.view(5, 6).gather(0, index))


@pytest.mark.parametrize("bad", [-1, 10])
def test_gather_refuses_an_index_outside_the_table(bad: int) -> None:
    table, ids, out = (
        spec("table", "input", (10, 4)),
        spec("ids", "input", (1,), "int64"),
        spec("out", "output", (1, 4)),
    )
    made = program(
        (table, ids, out),
        op("gather", (1, 4), (operand(table, (0, 1)), operand(ids, (1, 0))), operand(out, (4, 1)), index_stride=4),
    )
    with pytest.raises(
        RuntimeError,
        match=rf"op 0 \(gather .*encoder\.layer\.0.*model\.py:7.*index {bad} is outside a table of 10 rows",
    ):
        execute(made, {"table": torch.zeros(40), "ids": torch.tensor([bad]), "out": torch.zeros(4)})


def test_topk_gives_values_and_first_positions() -> None:
    x, v, i = spec("x", "input", (2, 5)), spec("v", "output", (2, 3)), spec("i", "output", (2, 3), "int64")
    made = program(
        (x, v, i),
        op("topkvalue", (2, 5), (operand(x, (5, 1)),), operand(v, (3, 1)), reduced=1, k=3),
        op("topkindex", (2, 5), (operand(x, (5, 1)),), operand(i, (3, 1)), reduced=1, k=3),
    )
    data = torch.tensor([[1.0, 5.0, 5.0, 2.0, 0.0], [4.0, 3.0, 2.0, 1.0, 4.0]])
    tensors = {"x": data.flatten(), "v": torch.zeros(6), "i": torch.zeros(6, dtype=torch.int64)}
    execute(made, tensors)
    assert tensors["v"].tolist() == [5.0, 5.0, 2.0, 4.0, 4.0, 3.0]
    assert tensors["i"].tolist() == [1, 2, 3, 0, 4, 1]


def binary(name: str, dtype: str, a: list[int], b: list[int], out_dtype: str | None = None) -> list[int]:
    """A binary operation on integers."""
    x, z, y = (
        spec("x", "input", (len(a),), dtype),
        spec("z", "input", (len(a),), dtype),
        spec("y", "output", (len(a),), out_dtype or dtype),
    )
    working = getattr(torch, dtype)
    out = torch.zeros(len(a), dtype=getattr(torch, out_dtype or dtype))
    made = program((x, z, y), op(name, (len(a),), (operand(x, (1,)), operand(z, (1,))), operand(y, (1,))))
    execute(made, {"x": torch.tensor(a, dtype=working), "z": torch.tensor(b, dtype=working), "y": out})
    return out.tolist()


def test_int64_arithmetic_is_exact_below_2_to_24_only() -> None:
    assert binary("add", "int64", [2**24 - 2, 2**24], [1, 1]) == [2**24 - 1, 2**24]
    assert binary("mul", "int64", [4097], [4097]) == [4097 * 4097 - 1]
    assert binary("lesserthan", "int64", [2**24], [2**24 + 1], "bool") == [True]


def test_int32_arithmetic_wraps() -> None:
    assert binary("add", "int32", [2**31 - 1], [1]) == [-(2**31)]
    assert binary("mul", "int32", [2**24 + 1], [3]) == [3 * 2**24 + 3]


def test_casts_have_defined_results() -> None:
    assert apply("to_dtype", [2.75, -2.75, math.nan], "float32", "int64").tolist() == [2, -2, 0]
    assert apply("to_dtype", [0.0, -3.0, math.nan], "float16", "bool").tolist() == [False, True, True]
    assert apply("fp32todl16", [0.1, 1e10, 1e-12], "float32", "float16")[0] == dl16_round_reference(torch.tensor(0.1))
    assert apply("fp32todl16", [1e10], "float32", "float16").isnan().all()
    assert apply("dl16tofp32", [0.5], "float16", "float32").tolist() == [0.5]
    assert apply("to_dtype", [True, False], "bool", "float16").tolist() == [1.0, 0.0]


def test_any_all_and_bool_results() -> None:
    x, y = spec("x", "input", (2, 3), "bool"), spec("y", "output", (2,), "bool")
    for name, expected in (("any", [True, False]), ("all", [False, False])):
        out = torch.zeros(2, dtype=torch.bool)
        made = program((x, y), op(name, (2, 3), (operand(x, (3, 1)),), operand(y, (1, 0)), 1))
        execute(made, {"x": torch.tensor([True, False, True, False, False, False]), "y": out})
        assert out.tolist() == expected


def test_numeric_settings_of_the_release_decide() -> None:
    made = unary("exp", 1)
    plain = dataclasses.replace(load("2026.07").numerics, exp_floor=0.0)
    tensors = {"x": torch.tensor([-20.0]), "y": torch.zeros(1)}
    Plan(made, plain).run(tensors)
    assert tensors["y"].item() == dl16_round_reference(torch.tensor(-20.0).exp()).item()
