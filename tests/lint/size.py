"""Size budget: a file has at most 400 lines, a function at most 60. `python -m tests.lint.size` prints the table."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("hf_adapters", "spyre_backend", "corpus", "agents", "migrations", "tests", "benchmarks")
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
_SUFFIXES = {".py", ".cpp", ".h"}


@dataclass(frozen=True, slots=True)
class FileSize:
    """Lines of a file and of its longest function."""

    path: str
    lines: int
    longest: str
    longest_lines: int

    @property
    def within_budget(self) -> bool:
        """Whether both stay within the budget."""
        return self.lines <= MAX_FILE_LINES and self.longest_lines <= MAX_FUNCTION_LINES


def measure(path: Path, root: Path = ROOT) -> FileSize:
    """Size of one source file; for C++ only the file is measured."""
    text = path.read_text(encoding="utf-8")
    longest, longest_lines = (
        max(_functions(ast.parse(text)), key=lambda item: item[1], default=("", 0)) if path.suffix == ".py" else ("", 0)
    )
    return FileSize(path.relative_to(root).as_posix(), len(text.splitlines()), longest, longest_lines)


def measure_all(root: Path = ROOT) -> list[FileSize]:
    """Sizes of all source files of the project, the largest first."""
    paths = (
        path
        for folder in FOLDERS
        for path in sorted((root / folder).rglob("*"))
        if path.suffix in _SUFFIXES and path.is_file()
    )
    return sorted((measure(path, root) for path in paths), key=lambda size: -size.lines)


def table(sizes: list[FileSize], most: int | None = None) -> str:
    """A printable table, with a mark at what is over budget."""
    lines = [f"{'lines':>6} {'longest function':>17}  file"]
    for size in sizes[:most]:
        mark = " " if size.within_budget else "!"
        lines.append(
            f"{size.lines:>6} {size.longest_lines:>17} {mark}{size.path}"
            + (f" ({size.longest})" if size.longest else "")
        )
    lines.append(f"{sum(size.lines for size in sizes):>6} {'':>17}  {len(sizes)} files")
    return "\n".join(lines)


def _functions(tree: ast.AST) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            assert node.end_lineno is not None
            yield node.name, node.end_lineno - node.lineno + 1


if __name__ == "__main__":
    print(table(measure_all()))
