"""What compilation raises, as PyTorch passes it on unwrapped: a SpyreUnsupported, or a SpyreInternalError."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._dynamo.exc import ShortenTraceback, TorchDynamoException
from torch._inductor.exc import InductorError, LoweringException

from spyre_backend import capabilities
from spyre_backend.compiler.settings import SettingError
from spyre_backend.errors import SpyreError, SpyreInternalError, SpyreUnsupported
from spyre_backend.program import Origin

OURS = __name__.partition(".")[0]


class _PassedOn(ShortenTraceback):
    """A ShortenTraceback that a cooperative constructor can build: PyTorch's own asks for a frame."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args, first_useful_frame=None)


class CompileRefusal(SpyreUnsupported, _PassedOn):
    """A refusal raised inside ``torch.compile``.

    ``compile_fx`` and Dynamo wrap every exception but a ShortenTraceback; being one keeps the type, and so the typed
    fields, that the caller sees.
    """


class CompilerFault(SpyreInternalError, _PassedOn):
    """A defect of the compiler, raised inside ``torch.compile``."""


class CompileSettingError(SettingError, _PassedOn):
    """A compiler setting that cannot be had, raised inside ``torch.compile``."""


@contextmanager
def unwrapped() -> Iterator[None]:
    """Raise a refusal itself where PyTorch would wrap it: from graphs that Inductor's cache cannot hold, from loading
    a program, and from loading one that Inductor's cache held (which Inductor lets pass as it is, and Dynamo wraps).
    """
    try:
        yield
    except SpyreUnsupported as error:
        raise _passed_on(error) from None
    except InductorError as error:
        inner = error.inner_exception
        if isinstance(inner, SpyreUnsupported):
            raise _passed_on(inner) from None
        if isinstance(inner, (CompileSettingError, CompilerFault)):
            raise inner from None
        raise


@contextmanager
def refusing(op: str, origin: Origin | None = None) -> Iterator[None]:
    """Raise a refusal where PyTorch's compiler trips over an operation (D6.1), and a CompilerFault where ours does.

    A refusal that PyTorch wrapped is raised itself.  A full disk or memory is neither, and passes.
    """
    try:
        yield
    except (SpyreError, TorchDynamoException, OSError, MemoryError):
        raise
    except Exception as error:
        judged, reason = _judged(error, op, origin or Origin())
        raise judged from reason


def _judged(error: Exception, op: str, origin: Origin) -> tuple[SpyreError, BaseException | None]:
    """What ``error`` is raised as, and from which cause: by whose code raised it, never by its text."""
    current: BaseException | None = error
    while current is not None:
        if isinstance(current, SpyreError):
            return current, None
        package, place = _raised_in(current)
        if package == OURS:
            where = {"module_path": origin.module_path, "source_line": origin.source_line}
            return CompilerFault(op=origin.aten or op, place=place, detail=_first_line(current), **where), error
        # LoweringException replaces its cause, which is left as the context; any other context may be an error that
        # somebody further out is handling.
        current = current.__cause__ or (current.__context__ if isinstance(current, LoweringException) else None)
    return refuse("lowering-failed", op=op, detail=_first_line(error), origin=origin), error


def _raised_in(error: BaseException) -> tuple[str, str]:
    """Whose code raised ``error``, this package's or PyTorch's, and where.

    The innermost frame of either decides: a library in between (sympy, the standard library) answers to its caller.
    """
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        module = str(frame.f_globals.get("__name__", ""))
        package = module.partition(".")[0]
        if package in (OURS, "torch"):
            return package, f"{module}:{line} ({frame.f_code.co_qualname})"
    return "", ""


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _passed_on(error: SpyreUnsupported) -> CompileRefusal:
    """The refusal in the form that Dynamo does not wrap; what loading a program refuses has another."""
    if isinstance(error, CompileRefusal):
        return error
    return CompileRefusal(
        op=error.op,
        rule=error.rule,
        shapes=error.shapes,
        dtypes=error.dtypes,
        module_path=error.module_path,
        source_line=error.source_line,
        hint=error.hint,
        detail=error.detail,
    )


def refuse(
    rule: str,
    *,
    op: str,
    detail: str = "",
    shapes: Sequence[Sequence[int]] = (),
    dtypes: Sequence[torch.dtype | str] = (),
    origin: Origin | None = None,
) -> CompileRefusal:
    """The refusal for breaking ``rule`` (an id of the current capability file), ready to be raised.

    Args:
        rule: rule id, such as "matmul-k-stick".
        op: the aten op, or the device operation if no aten op is known.
        detail: the offending expression or size, in the device's own words where it has them.
        shapes: sizes of the operands, in elements.
        dtypes: dtypes of the operands.
        origin: where in the model the operation stands.
    """
    known = capabilities.current().rule(rule)
    where = origin or Origin()
    return CompileRefusal(
        op=where.aten or op,
        rule=rule,
        shapes=tuple(tuple(int(n) for n in shape) for shape in shapes),
        dtypes=tuple(str(d).removeprefix("torch.") for d in dtypes),
        module_path=where.module_path,
        source_line=where.source_line,
        hint=known.hint,
        detail=detail or known.message or known.title,
    )
