"""What language models are told, as text files."""

from __future__ import annotations

from importlib.resources import files

_SHORTEST_FENCE = 3


def prompt(name: str) -> str:
    """The text of `<name>.md`."""
    return files(__package__).joinpath(f"{name}.md").read_text(encoding="utf-8")


def fenced(text: str, language: str = "") -> str:
    """Text as a block that it cannot end by itself: the fence is longer than any run of backticks inside."""
    longest = run = 0
    for character in text:
        run = run + 1 if character == "`" else 0
        longest = max(longest, run)
    fence = "`" * max(_SHORTEST_FENCE, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"
