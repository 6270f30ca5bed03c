"""Executes programs: the device's number format, its operations, and the executors.

:func:`execute` (module ``fast``) runs a program with whole-tensor operations; sweeps and applications use it.  Module
``exact`` runs it core by core in sticks and refuses what the hardware cannot do; :func:`executor` chooses.
"""

from __future__ import annotations

from spyre_backend.emulator.executors import executor
from spyre_backend.emulator.fast import Plan, execute

__all__ = ["Plan", "execute", "executor"]
