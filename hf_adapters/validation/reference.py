"""Reference values and judgement in a process that the candidate cannot reach.

The process rebuilds the stock model itself, computes stock values in float32, float64 and the device's number format,
and never hands them out: the candidate's results go in as a file, a judgement comes back. What a patch changes in its
own process (a tolerance, the judge, a loader) changes nothing here, and no reference value exists where the candidate
runs.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from hf_adapters.validation import conduct
from hf_adapters.validation.acceptance import Evidence, UnusableReference, judge
from hf_adapters.validation.inputs import InputSet
from hf_adapters.validation.recording import Pooling, Recording
from hf_adapters.validation.runners import run_float64, run_floor, run_reference, weights_digest
from hf_adapters.validation.source import ModelSource
from hf_adapters.validation.types import Check, Judgement, Thresholds

REPLY_SECONDS = 900.0
STREAMED_REPLY_SECONDS = 6 * 3600.0
"""The same where every layer's weights are made or read anew for each run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """What the candidate's process hands in."""

    recording: Recording
    exact: Recording | None
    multiplications: int | None
    conduct: tuple[Check, ...]
    single: Recording | None = None
    """Patched, float32, CPU; asked of code that is not trusted."""


class Judge(Protocol):
    """Holds the reference values of one model and judges candidates against them."""

    where: Literal["process", "inline"]

    def digest(self) -> str:
        """`weights_digest` of the stock model as this judge knows it."""
        ...

    def judge(self, candidate: Candidate) -> Judgement:
        """Judge one candidate; may be called again for another one."""
        ...

    def close(self) -> None:
        """Release the model and the values."""
        ...


class ReferenceProcessError(RuntimeError):
    """The reference process failed; the message holds its error."""

    code = "E_REFERENCE_PROCESS"


class InlineJudge:
    """Computes and judges in this process: quick, and only as trustworthy as the code that runs here."""

    where: Literal["process", "inline"] = "inline"

    def __init__(
        self,
        model: nn.Module,
        input_sets: Sequence[InputSet],
        pooling: Pooling,
        thresholds: Thresholds,
        release: str | None = None,
        dtype: torch.dtype = torch.float16,
    ) -> None:
        """Compute the reference values of `model`, which must be stock, and its noise floor in `dtype`.

        Raises:
            UnusableReference: the stock model yields NaN or infinities.
        """
        from spyre_backend import capabilities

        self._sets, self._thresholds = tuple(input_sets), thresholds
        with capabilities.use(release or capabilities.current().release):
            self._digest = weights_digest(model)
            self._reference = run_reference(model, input_sets, pooling)
            floor = run_floor(model, input_sets, pooling, dtype)
            self._floor, self._products = floor.recording, floor.products
        # Only a patched candidate is compared in float64; a stock one that is accepted never needs these values.
        self._exact: Recording | None = None
        self._compute_exact: Callable[[], Recording] | None = lambda: run_float64(model, input_sets, pooling)

    def digest(self) -> str:
        """See `Judge`."""
        return self._digest

    def judge(self, candidate: Candidate) -> Judgement:
        """See `Judge`."""
        if candidate.exact is not None and self._exact is None and self._compute_exact is not None:
            self._exact = self._compute_exact()
        evidence = Evidence(
            input_sets=self._sets,
            reference=self._reference,
            floor=self._floor,
            candidate=candidate.recording,
            exact_reference=self._exact or Recording({}),
            exact_candidate=candidate.exact,
            single_candidate=candidate.single,
            conduct=(*candidate.conduct, *self._work(candidate)),
        )
        return judge(evidence, self._thresholds)

    def _work(self, candidate: Candidate) -> list[Check]:
        stock = conduct.stock_work(self._products, self._reference, candidate.recording)
        return conduct.work_checks(candidate.multiplications, stock)

    def close(self) -> None:
        """See `Judge`."""
        self._reference = self._floor = Recording({})
        self._exact = self._compute_exact = None


@dataclass(frozen=True, slots=True)
class _Request:
    source: ModelSource
    input_sets: tuple[InputSet, ...]
    pooling: Pooling
    thresholds: Thresholds
    release: str | None
    dtype: torch.dtype
    threads: int


class ReferenceServer:
    """A spawned process that judges; started once and used for any number of models one after the other."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True, name="hf-adapters-reference")
        self._process.start()
        theirs.close()

    def call(self, kind: str, payload: Any, patience: float = REPLY_SECONDS) -> Any:
        """Send one request and wait for its answer, at most `patience` seconds.

        Raises:
            UnusableReference: as in the process.
            ReferenceProcessError: the process died, does not answer, or raised anything else.
        """
        self.send(kind, payload)
        return self.receive(patience)

    def send(self, kind: str, payload: Any) -> None:
        """Send a request without waiting."""
        try:
            self._connection.send((kind, payload))
        except (BrokenPipeError, OSError) as error:
            raise ReferenceProcessError(f"the reference process has ended ({self._process.exitcode})") from error

    def receive(self, patience: float = REPLY_SECONDS) -> Any:
        """Wait for the answer to the oldest request; errors as in `call`."""
        try:
            if not self._connection.poll(patience):
                raise ReferenceProcessError(f"the reference process did not answer within {patience:.0f} s")
            status, value = self._connection.recv()
        except (EOFError, ConnectionResetError) as error:
            self._process.join(5)
            raise ReferenceProcessError(
                f"the reference process ended with code {self._process.exitcode} while computing; "
                "a kill for lack of memory is the usual cause"
            ) from error
        if status == "unusable":
            raise UnusableReference(value)
        if status == "error":
            raise ReferenceProcessError(value)
        return value

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.is_alive()

    def close(self) -> None:
        """End the process."""
        if self._process.is_alive():
            try:
                self._connection.send(("stop", None))
                self._process.join(5)
            except (BrokenPipeError, OSError):
                pass
        if self._process.is_alive():
            self._process.terminate()
            self._process.join(5)
        self._connection.close()


_shared: ReferenceServer | None = None


def shared_server() -> ReferenceServer:
    """The server of this process, started at first use and again if it has died."""
    global _shared
    if _shared is None or not _shared.alive:
        _shared = ReferenceServer()
    return _shared


class ProcessJudge:
    """Judge in the reference process; starts computing at once, while the candidate is compiled here."""

    where: Literal["process", "inline"] = "process"

    def __init__(
        self,
        source: ModelSource,
        input_sets: Sequence[InputSet],
        pooling: Pooling,
        thresholds: Thresholds,
        release: str | None = None,
        dtype: torch.dtype = torch.float16,
        patience: float = REPLY_SECONDS,
    ) -> None:
        self._server = shared_server()
        self._patience = patience
        self._pending = True
        self._digest = ""
        threads = torch.get_num_threads()
        self._server.send("open", _Request(source, tuple(input_sets), pooling, thresholds, release, dtype, threads))

    def digest(self) -> str:
        """See `Judge`; waits until the reference values exist."""
        if self._pending:
            self._pending = False
            self._digest = self._server.receive(self._patience)
        return self._digest

    def judge(self, candidate: Candidate) -> Judgement:
        """See `Judge`."""
        self.digest()
        with tempfile.TemporaryDirectory(prefix="hf-adapters-") as folder:
            files = {"recording": _save(candidate.recording, Path(folder) / "recording.safetensors")}
            for name, recording in (("exact", candidate.exact), ("single", candidate.single)):
                if recording is not None:
                    files[name] = _save(recording, Path(folder) / f"{name}.safetensors")
            conduct_json = json.dumps([asdict(check) for check in candidate.conduct])
            answer = self._server.call("judge", (files, candidate.multiplications, conduct_json), self._patience)
        return Judgement.from_dict(json.loads(answer))

    def close(self) -> None:
        """See `Judge`."""
        if self._server.alive:
            if self._pending:
                self._pending = False
                with suppress(UnusableReference, ReferenceProcessError):
                    self._server.receive(self._patience)
            if self._server.alive:
                self._server.call("close", None)


def _save(recording: Recording, path: Path) -> str:
    save_file({key: value.contiguous() for key, value in recording.values.items()}, path)
    return str(path)


def _serve(connection: Connection) -> None:
    """Main loop of the reference process."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    state: dict[str, InlineJudge] = {}
    handlers: dict[str, Callable[[dict[str, InlineJudge], Any], Any]] = {
        "open": _open,
        "judge": _judge,
        "close": _close,
    }
    while True:
        try:
            kind, payload = connection.recv()
        except (EOFError, ConnectionResetError):  # whoever asked is gone, perhaps in the middle of an answer
            return
        if kind == "stop":
            return
        try:
            answer = ("ok", handlers[kind](state, payload))
        except UnusableReference as error:
            answer = ("unusable", str(error))
        except Exception as error:
            answer = ("error", f"{type(error).__name__}: {error}")
        try:
            connection.send(answer)
        except (BrokenPipeError, ConnectionResetError):
            return


def _end_with_parent() -> None:
    """A parent that is killed closes nothing, and nobody waits for what may take hours here."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _open(state: dict[str, InlineJudge], request: _Request) -> str:
    torch.set_num_threads(request.threads)
    state.clear()
    model = request.source.build()
    settings = (request.input_sets, request.pooling, request.thresholds, request.release, request.dtype)
    state["judge"] = InlineJudge(model, *settings)
    return state["judge"].digest()


def _judge(state: dict[str, InlineJudge], payload: tuple[dict[str, str], int | None, str]) -> str:
    files, multiplications, conduct_json = payload
    given = {name: Recording(load_file(file)) for name, file in files.items()}
    checks = tuple(Check(**check) for check in json.loads(conduct_json))
    judgement = state["judge"].judge(
        Candidate(
            recording=given["recording"],
            exact=given.get("exact"),
            single=given.get("single"),
            multiplications=multiplications,
            conduct=checks,
        )
    )
    return json.dumps(asdict(judgement))


def _close(state: dict[str, InlineJudge], _payload: Any) -> None:
    state.clear()
