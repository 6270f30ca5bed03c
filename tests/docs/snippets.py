"""Code on the pages of the documentation, and a small model for it to work on."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
_FENCE = re.compile(r"^```python(?: file=(?P<file>\S+))?\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Snippet:
    """One fenced block: what it says, the file it is meant for (None: it is run), and where it starts."""

    code: str
    file: str | None
    line: int


def snippets(page: Path) -> list[Snippet]:
    text = page.read_text(encoding="utf-8")
    return [
        Snippet(code=match["code"], file=match["file"], line=text[: match.start()].count("\n") + 2)
        for match in _FENCE.finditer(text)
    ]


def run(page: Path, names: dict[str, Any], folder: Path) -> None:
    """Write the blocks that are files into ``folder`` and run the others, in order and in one namespace."""
    for snippet in snippets(page):
        if snippet.file is not None:
            (folder / snippet.file).write_text(snippet.code, encoding="utf-8")
            continue
        # Tracebacks show the line of the page.
        exec(compile("\n" * (snippet.line - 1) + snippet.code, str(page), "exec"), names)


def saved_model(folder: Path) -> str:
    """A tiny BERT with a tokenizer, saved for transformers and for sentence-transformers."""
    from transformers import BertTokenizerFast

    from tests.runner.small_models import bert

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "which", "models", "run", "on", "spyre", "?"]
    (folder / "vocab.txt").write_text("\n".join(words))
    tokenizer = BertTokenizerFast(vocab=str(folder / "vocab.txt"))
    tokenizer.model_max_length = 96
    tokenizer.save_pretrained(folder)
    bert().save_pretrained(folder)
    return str(folder)
