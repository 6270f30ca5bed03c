"""Errors and warnings of the Spyre backend.

Everything the device refuses is a :class:`SpyreUnsupported`; its fields say
what was refused and by which rule, so that nobody has to read the message.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Shapes = tuple[tuple[int, ...], ...]


class SpyreError(RuntimeError):
    """Base of every error raised by the Spyre backend."""


class SpyreRuntimeError(SpyreError):
    """The runtime was used in a way that it cannot carry out."""


class SpyreUnsupported(SpyreError):
    """The device cannot do what was asked.

    Attributes:
        op: The operator, as torch prints it (`aten.pow.Tensor_Scalar`).
        rule: Stable identifier of the broken rule (`matmul-k-stick`).
        shapes: Shapes of the tensor operands.
        dtypes: Dtypes of the tensor operands, such as `torch.float16`.
        module_path: Path of the module in the model, when known.
        source_line: The user's source line, when known.
        hint: What to do about it, when known.
        detail: The broken condition in words.
    """

    code = "E_UNSUPPORTED"

    def __init__(
        self,
        *,
        op: str,
        rule: str,
        shapes: Shapes = (),
        dtypes: tuple[str, ...] = (),
        module_path: str | None = None,
        source_line: str | None = None,
        hint: str | None = None,
        detail: str = "",
    ) -> None:
        self.op = op
        self.rule = rule
        self.shapes = tuple(tuple(shape) for shape in shapes)
        self.dtypes = tuple(dtypes)
        self.module_path = module_path
        self.source_line = source_line
        self.hint = hint
        self.detail = detail
        super().__init__(self._message())

    def _message(self) -> str:
        text = f"Spyre backend does not support: {self.op}"
        if self.shapes:
            operands = zip(self.dtypes, self.shapes, strict=False)
            text += f"({', '.join(f'{dtype}{list(shape)}' for dtype, shape in operands) or self.shapes})"
        text += f" [{self.rule}]"
        if self.detail:
            text += f": {self.detail}"
        return text + self._places()

    def _places(self) -> str:
        lines = ""
        if self.module_path:
            lines += f"\n  in module: {self.module_path}"
        if self.source_line:
            lines += f"\n  at: {self.source_line}"
        if self.hint:
            lines += f"\n  hint: {self.hint}"
        return lines

    def fields(self) -> dict[str, Any]:
        """All fields as keyword arguments of the constructor."""
        names = ("op", "rule", "shapes", "dtypes", "module_path", "source_line", "hint", "detail")
        return {name: getattr(self, name) for name in names}

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.fields())


class SpyreInternalError(SpyreError):
    """A defect of this backend met while it compiled an operation: no statement about the device or the model.

    Attributes:
        op: The operator being compiled, as torch prints it.
        place: Module, line and function of the backend that raised.
        module_path: Path of the module in the model, when known.
        source_line: The user's source line, when known.
        detail: The exception that was raised there.
    """

    code = "E_INTERNAL"
    hint = "report this with the model and the operator; it is a defect of the backend, not of the model"

    def __init__(
        self,
        *,
        op: str,
        place: str,
        module_path: str | None = None,
        source_line: str | None = None,
        detail: str = "",
    ) -> None:
        self.op = op
        self.place = place
        self.module_path = module_path
        self.source_line = source_line
        self.detail = detail
        text = f"Spyre backend failed on {op} in {place}: {detail}"
        if module_path:
            text += f"\n  in module: {module_path}"
        if source_line:
            text += f"\n  at: {source_line}"
        super().__init__(text)

    def fields(self) -> dict[str, Any]:
        """All fields as keyword arguments of the constructor."""
        return {name: getattr(self, name) for name in ("op", "place", "module_path", "source_line", "detail")}

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.fields())


class UnsupportedDtype(SpyreUnsupported):
    """The device has no format for this dtype (D1.6)."""

    def __init__(self, dtype: object) -> None:
        self.dtype = str(dtype)
        super().__init__(
            op="aten.empty.memory_format",
            rule="dtype-unsupported",
            dtypes=(self.dtype,),
            hint="convert on the CPU first, e.g. tensor.to(torch.float16)",
        )

    def _message(self) -> str:
        return f"Spyre backend does not support dtype {self.dtype}" + self._places()

    def __reduce__(self) -> tuple[Any, ...]:
        return UnsupportedDtype, (self.dtype,)


class FallbackWarning(UserWarning):
    """An operator has no device kernel and ran on the CPU."""


class DowncastWarning(UserWarning):
    """A dtype is held in a narrower one on the device."""


def _rebuild(cls: Callable[..., SpyreError], fields: dict[str, Any]) -> SpyreError:
    return cls(**fields)
