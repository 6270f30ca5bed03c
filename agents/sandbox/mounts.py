"""What a sandboxed process sees: Python, its packages and the parts of this project that run a model; nothing else."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path

CODE = "/code"
JOB = "/job"
OWN = "own"
"""Folder below the job's that holds files of classes which no installed package has."""

_HIDDEN = frozenset(
    {"agents", "cli.py", "commands", "corpus", "migrations", "report", "store", "sweep", "validate.py", "diagnose.py",
     "validation", "web", "__pycache__"}
)  # fmt: skip
"""Parts of hf_adapters that a candidate's process has no use for, or that are mounted in part."""

_SWEEP = ("__init__.py", "messages.py", "work.py")
_JUDGES = frozenset({"acceptance.py", "attempts.py", "conduct.py", "localise.py", "reference.py", "verdicts.py"})
"""Files of hf_adapters.validation that judge; they run elsewhere."""

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d")


def mounts(drafts: Mapping[str, Path]) -> list[str]:
    """Arguments of bwrap that lay out the file system, all of it read-only but /tmp.

    Args:
        drafts: adapter's name -> drafted file, seen as `hf_adapters.adapters.<name>`, as when it has landed.
    """
    out = ["--tmpfs", "/tmp", "--dev", "/dev", "--proc", "/proc"]
    for path in _SYSTEM:
        out += _like_here(Path(path))
    for prefix in dict.fromkeys((sys.base_prefix, sys.prefix)):
        if not Path(prefix).is_relative_to("/usr"):
            out += ["--ro-bind", prefix, prefix]
    out += ["--tmpfs", CODE]
    for source, target in _code():
        out += ["--ro-bind", str(source), f"{CODE}/{target}"]
    for name, draft in drafts.items():
        out += ["--ro-bind", str(draft), f"{CODE}/hf_adapters/adapters/{name}.py"]
    return [*out, "--remount-ro", CODE]


def _like_here(path: Path) -> list[str]:
    if path.is_symlink():
        return ["--symlink", str(path.readlink()), str(path)]
    return ["--ro-bind", str(path), str(path)] if path.exists() else []


def _code() -> Iterator[tuple[Path, str]]:
    """(path here, path below /code) of every file and folder that is seen."""
    package = Path(str(files("hf_adapters")))
    yield Path(str(files("spyre_backend"))), "spyre_backend"
    yield from _entries(package, "hf_adapters", hidden=_HIDDEN | {"adapters"})
    # One by one, so that the draft can be laid among them.
    yield from _entries(package / "adapters", "hf_adapters/adapters", hidden=frozenset({"__pycache__"}))
    yield from _entries(package / "validation", "hf_adapters/validation", hidden=_JUDGES | {"__pycache__"})
    yield from ((package / "sweep" / name, f"hf_adapters/sweep/{name}") for name in _SWEEP)
    yield Path(str(files("hf_adapters.corpus"))).resolve(), "hf_adapters/corpus"
    yield Path(str(files("hf_adapters.agents"))).resolve() / "sandbox" / "inside.py", "inside.py"


def _entries(folder: Path, target: str, *, hidden: frozenset[str]) -> Iterator[tuple[Path, str]]:
    for entry in sorted(folder.iterdir()):
        if entry.name not in hidden and not entry.name.startswith(".") and not entry.is_symlink():
            yield entry, f"{target}/{entry.name}"
