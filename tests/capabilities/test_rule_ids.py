"""Every rule id that code names exists in every release, so that an error can always explain itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from spyre_backend import capabilities

ROOT = Path(__file__).resolve().parents[2]
RULE_KEYWORDS = ("rule", "rules", "rule_id")


def _constants(node: ast.expr) -> Iterator[str]:
    """String constants of an expression that gives a rule id or a collection of them."""
    for child in ast.walk(node):
        if isinstance(child, ast.Constant) and isinstance(child.value, str) and child.value:
            yield child.value


def _referenced(path: Path) -> Iterator[tuple[str, int]]:
    """Rule ids given as `rule=`/`rules=` arguments, or as the argument of `.rule(...)`, with their lines."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        values = [kw.value for kw in node.keywords if kw.arg in RULE_KEYWORDS]
        if isinstance(node.func, ast.Attribute) and node.func.attr == "rule" and node.args:
            values.append(node.args[0])
        for value in values:
            if isinstance(value, (ast.Constant, ast.Tuple, ast.List, ast.Set, ast.IfExp)):
                yield from ((rule, node.lineno) for rule in _constants(value))


def _sources() -> list[Path]:
    return sorted(p for folder in ("spyre_backend", "hf_adapters") for p in (ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("release", capabilities.available())
def test_rule_ids_in_code_exist(release: str) -> None:
    known = capabilities.load(release).rules
    unknown = [
        f"{path.relative_to(ROOT)}:{line}: {rule}"
        for path in _sources()
        for rule, line in _referenced(path)
        if rule not in known
    ]
    assert not unknown, "rule ids without an entry in the release file:\n" + "\n".join(unknown)


def test_the_search_finds_references(tmp_path: Path) -> None:
    file = tmp_path / "code.py"
    file.write_text('raise_(rule="made-up")\ncaps.rule("also-made-up")\nAdapter(rules=("a", "b"))\nf(rule=name)\n')
    assert [rule for rule, _ in _referenced(file)] == ["made-up", "also-made-up", "a", "b"]
