"""Index expressions of Inductor's loop bodies as affine accesses.

Reshapes reach us as ``FloorDiv`` and ``ModularIndexing`` of loop variables.  Splitting a loop variable at the right
divisor turns them into plain strides, so the executor can use views and the layout rules can see which variable runs
along a stick.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import sympy
from torch.utils._sympy.functions import FloorDiv, Identity, ModularIndexing


class NeedSplit(Exception):
    """The index is affine only if loop variable ``var`` is split into (outer, ``inner``)."""

    def __init__(self, var: sympy.Symbol, inner: int) -> None:
        super().__init__(f"split {var} at {inner}")
        self.var = var
        self.inner = inner


class NotAffine(Exception):
    """No split makes the index affine; the text is the expression."""


@dataclass(frozen=True, slots=True)
class Affine:
    """``offset + sum(coefficient * var)`` in elements."""

    terms: dict[sympy.Symbol, int]
    offset: int

    def scaled(self, factor: int) -> Affine:
        """``factor`` times this form."""
        return Affine({v: c * factor for v, c in self.terms.items()}, self.offset * factor)

    def plus(self, other: Affine) -> Affine:
        """The sum of both forms."""
        terms = dict(self.terms)
        for var, coefficient in other.terms.items():
            terms[var] = terms.get(var, 0) + coefficient
        return Affine({v: c for v, c in terms.items() if c}, self.offset + other.offset)


def affine(expr: sympy.Expr, extents: Mapping[sympy.Symbol, int]) -> Affine:
    """``expr`` as an affine form over the loop variables of ``extents``.

    Raises:
        NeedSplit: a loop variable has to be split first.
        NotAffine: there is no such split.
    """
    expr = sympy.sympify(expr)
    if expr.is_Integer:
        return Affine({}, int(expr))
    if isinstance(expr, sympy.Symbol):
        if expr not in extents:
            raise NotAffine(str(expr))
        return Affine({}, 0) if extents[expr] == 1 else Affine({expr: 1}, 0)
    if isinstance(expr, sympy.Add):
        total = Affine({}, 0)
        for arg in expr.args:
            total = total.plus(affine(arg, extents))
        return total
    if isinstance(expr, sympy.Mul):
        return _product(expr, extents)
    if isinstance(expr, Identity):
        return affine(expr.args[0], extents)
    if isinstance(expr, FloorDiv):
        return _floordiv(affine(expr.args[0], extents), _integer(expr.args[1]), extents)
    if isinstance(expr, ModularIndexing):
        base, divisor, modulus = expr.args
        return _mod(_floordiv(affine(base, extents), _integer(divisor), extents), _integer(modulus), extents)
    raise NotAffine(str(expr))


def _product(expr: sympy.Expr, extents: Mapping[sympy.Symbol, int]) -> Affine:
    factors = [affine(arg, extents) for arg in expr.args]
    result = Affine({}, 1)
    for factor in factors:
        if factor.terms and result.terms:
            raise NotAffine(str(expr))
        result = factor.scaled(result.offset) if factor.terms else result.scaled(factor.offset)
    return result


def _integer(expr: sympy.Expr) -> int:
    if not expr.is_Integer:
        raise NotAffine(str(expr))
    return int(expr)


def _remainder(form: Affine, modulus: int, extents: Mapping[sympy.Symbol, int]) -> tuple[Affine, Affine]:
    """``form`` as modulus * quotient + rest with 0 <= rest < modulus everywhere."""
    quotient = Affine({v: c // modulus for v, c in form.terms.items() if c % modulus == 0}, form.offset // modulus)
    rest = Affine({v: c for v, c in form.terms.items() if c % modulus}, form.offset % modulus)
    if any(c < 0 for c in rest.terms.values()):
        raise NotAffine(f"negative step in {form}")
    top = rest.offset + sum(c * (extents[v] - 1) for v, c in rest.terms.items())
    if top < modulus:
        return quotient, rest
    for var, coefficient in sorted(rest.terms.items(), key=lambda item: -item[1]):
        inner = modulus // coefficient if modulus % coefficient == 0 else 0
        if 1 < inner < extents[var] and extents[var] % inner == 0:
            raise NeedSplit(var, inner)
    raise NotAffine(f"{form} against {modulus}")


def _floordiv(form: Affine, divisor: int, extents: Mapping[sympy.Symbol, int]) -> Affine:
    return _remainder(form, divisor, extents)[0] if divisor != 1 else form


def _mod(form: Affine, modulus: int, extents: Mapping[sympy.Symbol, int]) -> Affine:
    return _remainder(form, modulus, extents)[1]
