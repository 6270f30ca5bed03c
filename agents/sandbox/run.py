"""Start a sandboxed process, feed it one job, watch it, read its answer."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save_file
from torch import Tensor, nn

from hf_adapters._classes import split_class
from hf_adapters.agents.sandbox.errors import NoSandbox, SandboxFailed
from hf_adapters.agents.sandbox.mounts import CODE, JOB, OWN, mounts
from hf_adapters.agents.sandbox.pipe import SandboxLimits, follow
from hf_adapters.agents.sandbox.seccomp import filter_program
from hf_adapters.agents.screening.declared import Drafted
from hf_adapters.agents.subject import Subject
from hf_adapters.validation.inputs import InputSet
from hf_adapters.validation.ranges import HalfName
from hf_adapters.validation.recording import Pooling
from hf_adapters.validation.source import ModelSource
from hf_adapters.validation.types import Thresholds

_LOG_BYTES = 4000


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """What a sandboxed process is to do."""

    subject: Subject | None
    """The model; None when only the draft's own examples are run."""
    source: str
    """The draft; empty to run the model with the catalogue alone."""
    name: str = ""
    """Name of the draft's adapter."""
    beside: tuple[Drafted, ...] = ()
    """Earlier drafts that are applied and examined as well."""
    inputs: tuple[InputSet, ...] = ()
    pooling: Pooling = "mean"
    dtype: HalfName = "float16"
    """Of the parameters on the device."""
    thresholds: Thresholds = field(default_factory=Thresholds)
    prove: bool = False
    """Run the examples."""
    scan: tuple[Subject, ...] = ()
    """Further models in which sites are counted and nothing is executed; of the same release and left-out adapters."""

    @property
    def first(self) -> Subject | None:
        """A model of the job; all have its release."""
        return self.subject or next(iter(self.scan), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What came out of the sandbox."""

    kind: str
    """`done`, `refused` (by the device), `error` (of the draft), `memory`, `timed-out` or `killed`."""
    stage: str
    """Where it stopped: build, load, examples, sites, device, float64, done."""
    reason: str
    data: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    sandboxed: bool
    seconds: float
    log: str = ""
    """Last lines of its standard error."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sandbox:
    """How drafted code is run.

    Attributes:
        limits: bounds of each process.
        unsafe: run without bubblewrap where there is none; recorded with every verdict.
        threads: threads that torch gets.
    """

    limits: SandboxLimits = field(default_factory=SandboxLimits)
    unsafe: bool = False
    threads: int = 1

    @property
    def bwrap(self) -> str | None:
        """The bubblewrap of this machine."""
        return shutil.which("bwrap")

    def check(self) -> bool:
        """Whether code is confined; run before the first draft.

        Raises:
            NoSandbox: it would not be, and `unsafe` is not set.
        """
        if self.bwrap is not None and _works(self.bwrap):
            return True
        if not self.unsafe:
            what = "bubblewrap is not installed" if self.bwrap is None else "bubblewrap cannot make namespaces here"
            raise NoSandbox(
                f"{what}, and drafted code is not run outside of a sandbox; "
                "apt-get install bubblewrap, or accept the risk with --unsafe-no-sandbox, which every verdict records"
            )
        return False

    def run(self, job: Job) -> Answer:
        """Run one job in a fresh process.

        Raises:
            NoSandbox: see `check`.
            SandboxFailed: the process did not come as far as the draft.
        """
        confined = self.check()
        with tempfile.TemporaryDirectory(prefix="hf-adapters-job-") as name:
            folder = Path(name)
            _write(job, folder, confined, self.limits)
            return self._watch(job, folder, confined)

    def _watch(self, job: Job, folder: Path, confined: bool) -> Answer:
        started = time.monotonic()
        with _pipe() as (reading, writing), tempfile.TemporaryFile() as log:
            command, environment, descriptors = self._command(job, folder, writing, confined)
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                env=environment,
                pass_fds=(writing, *descriptors),
                cwd="/",
                start_new_session=True,
            )
            os.close(writing)
            for descriptor in descriptors:
                os.close(descriptor)
            try:
                kind, message, blob = follow(process, reading, self.limits)
            finally:
                _kill(process)
            log.seek(max(0, log.seek(0, os.SEEK_END) - _LOG_BYTES))
            tail = log.read().decode(errors="replace")
        if kind == "not started":
            raise SandboxFailed(f"the sandboxed process ended before the draft was loaded: {tail.strip()[-600:]}")
        return _answer(kind, message, blob, confined, time.monotonic() - started, tail)

    def _command(
        self, job: Job, folder: Path, writing: int, confined: bool
    ) -> tuple[list[str], dict[str, str], tuple[int, ...]]:
        environment = _environment(self.threads, job)
        if not confined:
            script = Path(__file__).with_name("inside.py")
            where = {**environment, "PYTHONPATH": os.pathsep.join(["/".join((str(folder), "code")), *_search_path()])}
            where |= {key: str(folder / "tmp") for key in ("TMPDIR", "HOME")}
            return [sys.executable, str(script), str(writing), str(folder)], where, ()
        command = [str(self.bwrap), "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
        command += ["--hostname", "sandbox", "--clearenv"]
        for key, value in environment.items():
            command += ["--setenv", key, value]
        command += mounts({name: folder / f"draft_{name}.py" for name in _drafts(job)})
        command += ["--ro-bind", str(folder), JOB, "--remount-ro", "/", "--chdir", "/tmp"]
        descriptors: tuple[int, ...] = ()
        program = filter_program()
        if program is not None:
            descriptors = (_as_descriptor(program),)
            command += ["--seccomp", str(descriptors[0])]
        return [*command, sys.executable, f"{CODE}/inside.py", str(writing), JOB], {}, descriptors


def _works(bwrap: str) -> bool:
    command = [bwrap, "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "true"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _environment(threads: int, job: Job) -> dict[str, str]:
    release = job.first.release if job.first is not None else ""
    return {
        "PATH": "/usr/bin:/bin",
        "HOME": "/tmp",
        "TMPDIR": "/tmp",
        "USER": "sandbox",
        "LANG": "C.UTF-8",
        "PYTHONPATH": f"{CODE}:{JOB}/{OWN}",
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": str(threads),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        **({"SPYRE_BACKEND_RELEASE": release} if release else {}),
    }


def _search_path() -> list[str]:
    import hf_adapters

    return [
        str(Path(str(hf_adapters.__file__)).parent.parent),
        *filter(None, os.environ.get("PYTHONPATH", "").split(":")),
    ]


def _as_descriptor(content: bytes) -> int:
    reading, writing = os.pipe()
    os.write(writing, content)
    os.close(writing)
    return reading


@contextmanager
def _pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    try:
        yield reading, writing
    finally:
        os.close(reading)
        with suppress(OSError):
            os.close(writing)


def _write(job: Job, folder: Path, confined: bool, limits: SandboxLimits) -> None:
    """The job as files."""
    inside = JOB if confined else str(folder)
    (folder / "tmp").mkdir()
    for name, source in _drafts(job).items():
        (folder / f"draft_{name}.py").write_text(source, encoding="utf-8")
    content = {
        "name": job.name if job.source else "",
        "beside": [drafted.adapter.name for drafted in job.beside],
        "model": None if job.subject is None else _model(job.subject, folder, inside, "subject"),
        "without": [] if (first := job.first) is None else list(first.without),
        "release": None if first is None else first.release,
        "inputs": [{"name": s.name, "padding": s.padding, "use": s.use, "keys": sorted(s.kwargs)} for s in job.inputs],
        "pooling": job.pooling,
        "dtype": job.dtype,
        "thresholds": asdict(job.thresholds),
        "prove": job.prove,
        "scan": {s.key: _model(s, folder, inside, f"scan{number}") for number, s in enumerate(job.scan)},
        "watch": True,
        "limits": limits.rlimits(),
    }
    save_file(
        {f"{s.name}/{key}": value.contiguous() for s in job.inputs for key, value in s.kwargs.items()},
        folder / "inputs.safetensors",
    )
    (folder / "job.json").write_text(json.dumps(content), encoding="utf-8")
    if not confined:
        _lay_unconfined(job, folder)


def _drafts(job: Job) -> dict[str, str]:
    """Name -> source text of each draft of a job."""
    own = {job.name: job.source} if job.source else {}
    return {drafted.adapter.name: drafted.source for drafted in job.beside} | own


def _lay_unconfined(job: Job, folder: Path) -> None:
    """Without mounts, a package path entry puts the drafts beside the catalogue's files."""
    code, drafts = folder / "code", folder / "drafts"
    code.mkdir()
    # Every file of a folder on that path is an adapter's.
    drafts.mkdir()
    for name, source in _drafts(job).items():
        (drafts / f"{name}.py").write_text(source, encoding="utf-8")
    (code / "sitecustomize.py").write_text(
        f"import hf_adapters.adapters as folder\nfolder.__path__.append({str(drafts)!r})\n", encoding="utf-8"
    )


def _model(subject: Subject, folder: Path, inside: str, name: str) -> dict[str, Any]:
    if subject.kind == "profile":
        return {"kind": "profile", "arguments": dict(subject.source().arguments)}
    target = folder / name / "model.pt"
    target.parent.mkdir()
    if subject.kind == "file" and subject.path is not None:
        shutil.copyfile(subject.path, target)
    else:
        model = subject.build()
        ModelSource.from_model(model, target.parent)
        _copy_classes(model, folder / OWN)
    return {"kind": "file", "path": f"{inside}/{name}/{target.name}"}


def _copy_classes(model: nn.Module, folder: Path) -> None:
    """The files in which classes of the model are written that no installed package has."""
    for name in {split_class(type(module))[0].__module__ for module in model.modules()}:
        file: str | None = getattr(sys.modules.get(name), "__file__", None)
        if file is None or any(Path(file).is_relative_to(p) for p in (sys.prefix, sys.base_prefix)):
            continue
        if name == "__main__" or name.partition(".")[0] in ("hf_adapters", "spyre_backend"):
            continue
        *folders, last = name.split(".")
        package = Path(file).name == "__init__.py"
        target = folder.joinpath(*folders, last, "__init__.py") if package else folder.joinpath(*folders, f"{last}.py")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)


def _answer(kind: str, message: Mapping[str, Any], blob: bytes, confined: bool, seconds: float, log: str) -> Answer:
    reason = str(message.get("reason", ""))
    if kind == "killed":
        reason = "the sandboxed process was killed by a limit of its own (memory, CPU time, file size) or crashed"
    try:
        tensors: dict[str, Tensor] = load(blob) if blob else {}
    except Exception as error:  # safetensors has no type of its own for each fault, and the bytes are not trusted
        kind, reason, tensors = "error", f"the process sent tensors that cannot be read: {error}", {}
    return Answer(
        kind=kind,
        stage=str(message.get("stage", "load")),
        reason=reason,
        data=message,
        tensors={
            key: value.to(torch.float64 if value.dtype == torch.float64 else torch.float32)
            for key, value in tensors.items()
        },
        sandboxed=confined,
        seconds=seconds,
        log=log,
    )


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()


def tensors_below(answer: Answer, prefix: str) -> dict[str, Tensor]:
    """Tensors of an answer whose name starts with `prefix/`, without it."""
    return {k.removeprefix(prefix + "/"): v for k, v in answer.tensors.items() if k.startswith(prefix + "/")}


__all__: Sequence[str] = ("Answer", "Job", "Sandbox", "SandboxLimits", "tensors_below")
