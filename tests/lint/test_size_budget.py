"""Files and functions stay small enough to be read at one sitting."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lint.size import MAX_FILE_LINES, MAX_FUNCTION_LINES, measure, measure_all, table


def test_every_file_is_within_the_budget(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = measure_all()
    assert len(sizes) > 20, "the folders to measure have moved"
    with capsys.disabled():
        print("\n" + table(sizes, most=10))
    over = [size for size in sizes if not size.within_budget]
    assert not over, f"over {MAX_FILE_LINES} lines a file or {MAX_FUNCTION_LINES} a function:\n{table(over)}"


def test_a_long_function_is_found(tmp_path: Path) -> None:
    file = tmp_path / "long.py"
    file.write_text("def f():\n" + "    x = 1\n" * MAX_FUNCTION_LINES + "\n")
    assert measure(file, tmp_path).longest_lines == MAX_FUNCTION_LINES + 1
    assert not measure(file, tmp_path).within_budget


def test_a_long_file_is_found(tmp_path: Path) -> None:
    file = tmp_path / "long.py"
    file.write_text("x = 1\n" * (MAX_FILE_LINES + 1))
    assert not measure(file, tmp_path).within_budget
