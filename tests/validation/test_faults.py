"""A full disk is no finding about a model."""

from __future__ import annotations

import errno

import pytest

from hf_adapters.validation.faults import fault_behind
from hf_adapters.validation.types import Validation
from hf_adapters.validation.verdicts import failed_run

BASE = Validation(verdict="crashed", reason="")


def full_disk() -> RuntimeError:
    """What a compiler makes of a full disk."""
    try:
        try:
            raise OSError(errno.ENOSPC, "No space left on device", "/cache")
        except OSError as error:
            raise ValueError("cannot write the kernel") from error
    except ValueError as error:
        wrapped = RuntimeError("backend failed")
        wrapped.__context__ = error
        return wrapped


def test_the_disk_is_found_behind_the_errors_around_it() -> None:
    found = fault_behind(full_disk())
    assert found is not None
    assert found.filename == "/cache"


def test_other_errors_are_no_faults() -> None:
    assert fault_behind(OSError(errno.ENOENT, "no such file")) is None
    assert fault_behind(RuntimeError("no space left on device")) is None, "told by number, not by text"
    assert fault_behind(None) is None


def test_a_ring_of_errors_ends() -> None:
    first, second = RuntimeError("a"), RuntimeError("b")
    first.__context__, second.__context__ = second, first
    assert fault_behind(first) is None


def test_a_validation_passes_the_fault_on_instead_of_blaming_the_model() -> None:
    with pytest.raises(RuntimeError, match="backend failed"):
        failed_run(BASE, full_disk())
    assert failed_run(BASE, RuntimeError("backend failed")).verdict == "crashed"
