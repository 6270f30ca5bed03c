"""`make sanitize`: the tests of the native part in a process that AddressSanitizer watches.

Only the shim is instrumented, and the allocator of the whole process; PyTorch and Python are as installed. Before the
tests, a fault of our own must be found, or a run without findings would mean nothing.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch  # noqa: F401  # its libraries come before the native part

from spyre_backend import _C

SUITES = ("tests/device", "tests/runtime")
FAULT = """
import ctypes
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
block = libc.malloc(64)
libc.free(block)
libc.free(block)
"""
"""Frees a block twice."""


def main(arguments: list[str]) -> int:
    """Run pytest on `arguments`, or on the suites of the native part.

    Raises:
        SystemExit: The native part in use is not the sanitized one, or nothing watches it.
    """
    if b"__asan_report" not in Path(_C.__file__).read_bytes():
        raise SystemExit(f"{_C.__file__} is not built for the sanitizers: run `make sanitize`")
    fault = subprocess.run([sys.executable, "-c", FAULT], capture_output=True, text=True, check=False)
    if "AddressSanitizer" not in fault.stderr:
        raise SystemExit(f"AddressSanitizer did not find a planted fault: {fault.stderr}")
    return int(pytest.main(["-q", "-x", "-m", "not slow", *(arguments or SUITES)]))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
