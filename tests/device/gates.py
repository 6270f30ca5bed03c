"""Work that waits until the test lets it go on, so that what is in flight is known without looking at a clock."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType

from spyre_backend import _C


def work(name: str, run: Callable[[], object], microseconds: float = 0.0) -> _C.Launcher:
    """A program without arguments that calls `run` on the worker thread."""
    launcher = _C.Launcher(name, [], lambda views, addresses, generations: run())
    launcher.set_microseconds(microseconds)
    return launcher


class Gate:
    """Blocks the current stream from `launch` until the block ends or `open` is called."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self.reached = threading.Event()
        self._work = work("gate", self._block)

    def _block(self) -> None:
        self.reached.set()
        self._open.wait(60)

    def launch(self) -> None:
        self._work.launch()

    def open(self) -> None:
        self._open.set()

    def __enter__(self) -> Gate:
        self.launch()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.open()
