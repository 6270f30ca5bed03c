"""Near-duplicates of adapters that exist already are refused, with the name of the one to extend instead."""

from __future__ import annotations

import ast
import difflib
import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path

from hf_adapters.protocols import Adapter

NEAR = 0.9
"""Share of equal tokens, names and constants of the claims aside, from which two files count as the same adapter."""


def sources(adapters: Sequence[Adapter]) -> dict[str, str]:
    """Name -> source text of each adapter's file."""
    found = {}
    for adapter in adapters:
        file = inspect.getsourcefile(adapter.apply)
        path = Path(file).with_name(f"{adapter.name}.py") if file else None
        if path is not None and path.exists():
            found[adapter.name] = path.read_text(encoding="utf-8")
    return found


def nearest(source: str, existing: Mapping[str, str]) -> tuple[str, float] | None:
    """The existing adapter that is most like a draft, and the share of equal tokens; None when there is none.

    Names of functions, classes and variables, docstrings, comments and formatting do not count.
    """
    mine = _normal(source)
    best: tuple[str, float] | None = None
    for name, text in existing.items():
        matcher = difflib.SequenceMatcher(None, mine, _normal(text), autojunk=False)
        floor = best[1] if best is not None else 0.0
        if matcher.real_quick_ratio() <= floor or matcher.quick_ratio() <= floor:
            continue
        ratio = matcher.ratio()
        if ratio > floor:
            best = (name, ratio)
    return best


def _normal(source: str) -> list[str]:
    tree = ast.parse(source)
    bound = {n.name for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
    bound |= {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    bound |= {n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)}
    out: list[str] = []
    for statement in tree.body:
        if not isinstance(statement, (ast.Import, ast.ImportFrom)) and not _is_text(statement):
            out += _tokens(statement, bound)
    return out


def _tokens(node: ast.AST, bound: set[str]) -> list[str]:
    """The tree in preorder: node types, attribute and free names, numbers."""
    if _is_text(node) or (isinstance(node, ast.keyword) and node.arg in ("name", "summary", "order")):
        return []
    out = [type(node).__name__]
    if isinstance(node, ast.Name):
        out.append("bound" if node.id in bound else node.id)
    elif isinstance(node, ast.Attribute):
        out.append(node.attr)
    elif isinstance(node, ast.Constant) and not isinstance(node.value, str):
        out.append(repr(node.value))
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (ast.expr_context, ast.arguments)):
            out += _tokens(child, bound)
    return out


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
