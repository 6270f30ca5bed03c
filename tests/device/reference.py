"""DL16 from its definition (D1.5), with no bit tricks: nearest of all values, ties to the even code."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import numpy.typing as npt

MERGED = 0x7FFF
LARGEST = 0x7FFE

Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int64]


def value_of(code: int) -> float:
    """Value of one code; NaN for the merged code of either sign."""
    magnitude = code & 0x7FFF
    sign = -1.0 if code & 0x8000 else 1.0
    if magnitude == 0:
        return sign * 0.0
    if magnitude == MERGED:
        return float("nan")
    exponent, fraction = magnitude >> 9, magnitude & 511
    return sign * (1 + fraction / 512) * 2.0 ** (exponent - 31)


def _magnitudes() -> Floats:
    """Values of the magnitudes 0..0x7FFE, and what 0x7FFF would be were it a number."""
    values = [value_of(code) for code in range(MERGED)]
    return np.array([*values, (1 + 511 / 512) * 2.0**32])


MAGNITUDES = _magnitudes()


def nearest_codes(values: Floats) -> Codes:
    """Codes of float64 values."""
    size = np.abs(values)
    with np.errstate(invalid="ignore"):
        below = np.clip(np.searchsorted(MAGNITUDES, size, side="right") - 1, 0, MERGED - 1)
        middle = (MAGNITUDES[below] + MAGNITUDES[below + 1]) / 2
        up = (size > middle) | ((size == middle) & (below % 2 == 1))
    magnitude = below + up
    merged = ~np.isfinite(values) | (magnitude >= MERGED)
    codes = np.where(np.signbit(values), magnitude | 0x8000, magnitude)
    return np.where(merged, MERGED, codes)


def run_python(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a script in a fresh interpreter, with extra environment variables."""

    return subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
