"""Faults of the machine rather than of a model: a full disk, a cache that cannot be written."""

from __future__ import annotations

import getpass
import os
import tempfile
from pathlib import Path

from hf_adapters.errors import HfAdaptersError

INDUCTOR_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
_PROBE_BYTES = 1 << 20


class SurroundingsUnusable(HfAdaptersError):
    """Nothing can be judged on this machine as it is; what was recorded before stays."""

    code = "E_SURROUNDINGS"


def check_caches() -> None:
    """Make sure that compiled code and programs can be written where they are going to be.

    Raises:
        SurroundingsUnusable: one of the folders cannot be made or written.
    """
    for variable, folder in cache_folders().items():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=folder, prefix="probe-") as probe:
                probe.write(b"\0" * _PROBE_BYTES)
                probe.flush()
                os.fsync(probe.fileno())
        except OSError as error:
            raise SurroundingsUnusable(
                f"the compile cache {folder} cannot be written ({error.strerror or error}): "
                f"free some space, or name another folder with {variable}"
            ) from error


def cache_folders() -> dict[str, Path]:
    """Folders that compiling writes to, by the environment variable that moves each."""
    from spyre_backend.runtime.cache import ENVIRONMENT_VARIABLE, default_directory

    return {INDUCTOR_VARIABLE: inductor_cache(), ENVIRONMENT_VARIABLE: default_directory()}


def inductor_cache() -> Path:
    """Where Inductor keeps compiled graphs: the variable's folder, else one for this user among the temporary files."""
    chosen = os.environ.get(INDUCTOR_VARIABLE)
    return Path(chosen) if chosen else Path(tempfile.gettempdir()) / f"torchinductor_{getpass.getuser()}"
