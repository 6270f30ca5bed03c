"""The syntax-tree policy for drafted adapter files.

    >>> screened = screen(source)
    >>> screened.ok, screened.violations
    (False, ('line 3: import of os',))

Reading is all that happens here: nothing of the draft is executed. What passes can still be wrong, slow or useless; it
cannot reach the file system, the network, other processes, the frames around it, or the code that judges it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import libcst as cst
from libcst.metadata import MetadataWrapper

from hf_adapters.agents.screening.declared import Declared, declared
from hf_adapters.agents.screening.names import bindings
from hf_adapters.agents.screening.walk import Walk

LARGEST_SOURCE = 60_000
"""Characters of a draft; the largest adapter of the catalogue has 8,000."""

_CODING = re.compile(r"^[ \t\f]*#.*?coding[:=]", re.MULTILINE)
_DEEPEST = 60


@dataclass(frozen=True, kw_only=True, slots=True)
class Screened:
    """What the screen found in a draft."""

    violations: tuple[str, ...]
    """`line N: what is not allowed, and what to write instead`."""
    adapter: Declared | None
    """What the file says of its adapter; None when it cannot be read."""

    @property
    def ok(self) -> bool:
        """Whether the draft may run in the sandbox."""
        return not self.violations


def screen(source: str) -> Screened:
    """Check one adapter file against the allow-lists.

    Args:
        source: text of the file.
    """
    refused = _text(source)
    if refused is not None:
        return Screened(violations=(refused,), adapter=None)
    try:
        tree = cst.parse_module(source)
        compile(source, "<draft>", "exec", dont_inherit=True)
    except (cst.ParserSyntaxError, SyntaxError, ValueError, RecursionError, MemoryError, OverflowError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        return Screened(
            violations=(f"line {getattr(error, 'raw_line', 0) or 1}: not Python 3.11: {first}",), adapter=None
        )
    wrapper = MetadataWrapper(tree, unsafe_skip_copy=True)
    names, violations = bindings(wrapper)
    walk = Walk(names)
    wrapper.visit(walk)
    found, missing = declared(wrapper.module)
    ordered = sorted({*violations, *walk.violations, *missing})
    return Screened(violations=tuple(f"line {line}: {text}" for line, text in ordered), adapter=found)


def _text(source: str) -> str | None:
    if len(source) > LARGEST_SOURCE:
        return f"line 1: {len(source):,} characters; an adapter file has at most {LARGEST_SOURCE:,}"
    if "\0" in source or "\f" in source or "\r" in source.replace("\r\n", "\n"):
        return "line 1: control characters in the source"
    if _CODING.search("\n".join(source.splitlines()[:2])):
        return "line 1: a coding declaration; files are UTF-8"
    depth = deepest = 0
    for character in source:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    if deepest > _DEEPEST:
        return f"line 1: brackets nested {deepest} deep"
    return None
