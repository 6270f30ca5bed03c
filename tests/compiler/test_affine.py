"""Index expressions of reshapes become affine accesses that reach the same elements."""

from __future__ import annotations

import itertools

import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._sympy.functions import FloorDiv, ModularIndexing

from spyre_backend.compiler.affine import Affine, NeedSplit, NotAffine, affine

i, j = (sympy.Symbol(name, integer=True, nonnegative=True) for name in "ij")


def resolved(expr, extents):
    """(affine form, loops) after splitting loops as asked."""
    loops = list(extents.items())
    while True:
        try:
            return affine(expr, dict(loops)), loops
        except NeedSplit as need:
            at = next(k for k, (v, _) in enumerate(loops) if v == need.var)
            extent = loops[at][1]
            outer, inner = (sympy.Symbol(f"{need.var}{s}", integer=True, nonnegative=True) for s in "oi")
            loops[at : at + 1] = [(outer, extent // need.inner), (inner, need.inner)]
            expr = expr.subs({need.var: outer * need.inner + inner})


def values(form, loops):
    spaces = [range(n) for _, n in loops]
    names = [v for v, _ in loops]
    return [
        form.offset + sum(form.terms.get(v, 0) * x for v, x in zip(names, point, strict=True))
        for point in itertools.product(*spaces)
    ]


def direct(expr, extents):
    names = list(extents)
    spaces = [range(extents[v]) for v in names]
    return [int(expr.subs(dict(zip(names, point, strict=True)))) for point in itertools.product(*spaces)]


@settings(max_examples=60, deadline=None)
@given(a=st.integers(1, 4), b=st.integers(1, 5), c=st.integers(1, 6))
def test_merging_transposed_dims(a, b, c):
    """[a, b, c] read as [b, a * c], which is what attention does after its transpose."""
    extents = {i: b, j: a * c}
    expr = FloorDiv(j, c) * (b * c) + i * c + ModularIndexing(j, 1, c)
    form, loops = resolved(expr, extents)
    assert values(form, loops) == direct(expr, extents)


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 6), d=st.integers(1, 4), m=st.integers(1, 4), scale=st.integers(1, 9), offset=st.integers(0, 5))
def test_nested_floor_and_mod(n, d, m, scale, offset):
    extents = {i: n * d * m}
    expr = scale * ModularIndexing(i, d, m) + 100 * FloorDiv(i, d * m) + offset
    form, loops = resolved(expr, extents)
    assert values(form, loops) == direct(expr, extents)


def test_products_of_variables_are_not_affine():
    with pytest.raises(NotAffine):
        affine(i * j, {i: 4, j: 4})


def test_a_divisor_that_does_not_divide_is_not_affine():
    with pytest.raises(NotAffine):
        affine(FloorDiv(i, 3), {i: 8})


def test_constants_and_single_trips():
    assert affine(sympy.Integer(7), {}) == Affine({}, 7)
    assert affine(5 * i + 2, {i: 1}) == Affine({}, 2)
