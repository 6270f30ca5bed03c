"""The refusal that compilation raises: a :class:`SpyreUnsupported` that PyTorch passes on unwrapped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._dynamo.exc import ShortenTraceback, TorchDynamoException
from torch._inductor.exc import InductorError

from spyre_backend import capabilities
from spyre_backend.compiler.settings import SettingError
from spyre_backend.errors import SpyreError, SpyreUnsupported
from spyre_backend.program import Origin


class _PassedOn(ShortenTraceback):
    """A ShortenTraceback that a cooperative constructor can build: PyTorch's own asks for a frame."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args, first_useful_frame=None)


class CompileRefusal(SpyreUnsupported, _PassedOn):
    """A refusal raised inside ``torch.compile``.

    ``compile_fx`` and Dynamo wrap every exception but a ShortenTraceback; being one keeps the type, and so the typed
    fields, that the caller sees.
    """


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
        if isinstance(inner, CompileSettingError):
            raise inner from None
        raise


@contextmanager
def refusing(op: str, origin: Origin | None = None) -> Iterator[None]:
    """Raise a refusal where PyTorch's compiler, or a stage of this one, trips over an operation (D6.1).

    The detail says what the reason was; a refusal that PyTorch wrapped is raised itself.
    """
    try:
        yield
    except (SpyreError, TorchDynamoException):
        raise
    except Exception as error:
        reason: BaseException | None = error
        while reason is not None:
            if isinstance(reason, SpyreError):
                raise reason from None
            reason = reason.__cause__ or reason.__context__
        lines = str(error).strip().splitlines()
        text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
        raise refuse("lowering-failed", op=op, detail=text, origin=origin) from error


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
