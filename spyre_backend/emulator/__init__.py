"""Executes programs: the device's number format, its operations, and the executors.

:func:`execute` (module ``fast``) runs a program with whole-tensor operations; sweeps and applications use it.
"""

from __future__ import annotations

from spyre_backend.emulator.fast import Plan, execute

__all__ = ["Plan", "execute"]
