"""What a sweep is asked to do."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from hf_adapters.sweep.supervisor import Limits

WORK = "hf_adapters.sweep.work:judge"


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOptions:
    """Options of `hf-adapters sweep`.

    Attributes:
        top: ranks 1 to `top` of the ranking.
        release: torch-spyre release to emulate.
        source: ranking to use ("bundled", or one that was pulled or imported); None takes a pulled one if there is any.
        families: only structures of these model types; empty means all.
        limit: try at most this many structures, those with the highest impact; None means all.
        retry: verdicts that are tried again although nothing changed, such as "timed-out".
        dtype: "float16" or "bfloat16" for all structures; None leaves the choice to each one's range pass.
        limits: workers, time and memory.
        report: where the HTML report goes; None writes none.
        command: command line that started the sweep, kept with the run.
        work: work function as "module:function".
    """

    top: int = 10_000
    release: str
    source: str | None = None
    families: frozenset[str] = frozenset()
    limit: int | None = None
    retry: frozenset[str] = frozenset()
    dtype: str | None = None
    limits: Limits = field(default_factory=Limits)
    report: Path | None = None
    command: str = ""
    work: str = WORK
