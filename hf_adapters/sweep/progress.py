"""What a sweep shows while it runs: a live display in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

_ACCEPTED = ("native", "adapted")


@dataclass(slots=True)
class Tally:
    """Running coverage, updated as structures finish.

    Attributes:
        total: structures to try in this run.
        models: models of the ranking.
        downloads: their downloads.
        done: structures finished in this run.
        elsewhere: structures left to other sweeps on the same database; not part of `total`.
        accepted_models: models accepted so far on their own structure, earlier runs included.
        accepted_downloads: downloads of those.
        verdicts: structures by verdict in this run.
        current: labels of the structures in work, with the time they were started.
    """

    total: int
    models: int
    downloads: int
    done: int = 0
    elsewhere: int = 0
    accepted_models: int = 0
    accepted_downloads: int = 0
    verdicts: dict[str, int] = field(default_factory=dict)
    current: dict[str, float] = field(default_factory=dict)

    def start(self, label: str) -> None:
        """A structure is being tried."""
        self.current[label] = time.monotonic()

    def skip(self) -> None:
        """A structure is, or was meanwhile, tried by another process."""
        self.total -= 1
        self.elsewhere += 1

    def finish(self, label: str, verdict: str, models: int, downloads: int) -> float:
        """A structure has its verdict and stands for so many models and downloads; the seconds it took."""
        self.done += 1
        self.verdicts[verdict] = self.verdicts.get(verdict, 0) + 1
        if verdict in _ACCEPTED:
            self.accepted_models += models
            self.accepted_downloads += downloads
        return time.monotonic() - self.current.pop(label, time.monotonic())

    def coverage(self) -> str:
        """Running coverage in words."""
        models = 100 * self.accepted_models / self.models if self.models else 0.0
        downloads = 100 * self.accepted_downloads / self.downloads if self.downloads else 0.0
        accepted = f"{self.accepted_models:,} of {self.models:,} models ({models:.1f} %)"
        return f"accepted {accepted}, {downloads:.1f} % of downloads"


class Display(Protocol):
    """Shows a tally; used as a context manager."""

    def __enter__(self) -> Display: ...

    def __exit__(self, *exc: object) -> None: ...

    def update(self, message: str | None = None) -> None:
        """The tally has changed; `message` is worth a line of its own."""
        ...


def display(tally: Tally, console: Console) -> Display:
    """The display that fits the console."""
    return LiveDisplay(tally, console) if console.is_terminal else PlainDisplay(tally, console)


class PlainDisplay:
    """One line for each finished structure."""

    def __init__(self, tally: Tally, console: Console) -> None:
        self.tally, self.console = tally, console

    def __enter__(self) -> PlainDisplay:
        return self

    def __exit__(self, *exc: object) -> None:
        return None

    def update(self, message: str | None = None) -> None:
        """Print the message with the running coverage; nothing without one."""
        if message is not None:
            line = f"[{self.tally.done}/{self.tally.total}] {message}; {self.tally.coverage()}"
            self.console.print(Text(line), soft_wrap=True)


class LiveDisplay:
    """A bar, the running coverage and the structures in work."""

    def __init__(self, tally: Tally, console: Console) -> None:
        self.tally, self.console = tally, console
        self._bar = Progress(
            TextColumn("structures"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]} left"),
            TimeElapsedColumn(),
            console=console,
        )
        self._task = self._bar.add_task("structures", total=tally.total, left=tally.total)
        self._live = Live(get_renderable=self._render, console=console, refresh_per_second=4)

    def __enter__(self) -> LiveDisplay:
        self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._live.stop()

    def update(self, message: str | None = None) -> None:
        """Move the bar; print the message above it."""
        left = self.tally.total - self.tally.done
        self._bar.update(self._task, completed=self.tally.done, total=self.tally.total, left=left)
        if message is not None:
            self.console.print(Text(message))

    def _render(self) -> Group:
        now = time.monotonic()
        lines = [self._bar.get_renderable(), Text(self.tally.coverage())]
        verdicts = ", ".join(f"{name} {count}" for name, count in sorted(self.tally.verdicts.items()))
        if verdicts:
            lines.append(Text(f"structures: {verdicts}"))
        lines += [Text(f"  {label}  {now - since:.0f} s", style="dim") for label, since in self.tally.current.items()]
        return Group(*lines)
