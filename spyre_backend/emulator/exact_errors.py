"""What the exact executor refuses: a program that leaves its addresses, its lifetimes, its slice or the scratchpad."""

from __future__ import annotations

from spyre_backend.errors import SpyreRuntimeError


class ExactExecutionError(SpyreRuntimeError):
    """A program does what the hardware cannot do, or would do wrongly.

    Attributes:
        program: Name of the program.
        op: Position of the operation in the program, None where the program as a whole is wrong.
        function: Device function of that operation ("add").
        core: Number of the core, None where every core is concerned.
        tensor: The tensor that was accessed.
        address: Byte address in the scratchpad of the core, or in the memory of the tensor; None if there is none.
        detail: The violation in words.
    """

    def __init__(
        self,
        detail: str,
        *,
        core: int | None = None,
        tensor: str | None = None,
        address: int | None = None,
    ) -> None:
        self.detail = detail
        self.core = core
        self.tensor = tensor
        self.address = address
        self.program: str | None = None
        self.op: int | None = None
        self.function: str | None = None
        super().__init__(detail)

    def located(self, program: str, op: int | None = None, function: str | None = None) -> ExactExecutionError:
        """This error with the place where it happened, which the memory model does not know."""
        self.program, self.op, self.function = program, op, function
        self.args = (str(self),)
        return self

    def __str__(self) -> str:
        places = [] if self.program is None else [f"program {self.program!r}"]
        if self.op is not None:
            places.append(f"op {self.op} ({self.function})")
        if self.core is not None:
            places.append(f"core {self.core}")
        if self.tensor is not None:
            places.append(f"tensor {self.tensor!r}")
        if self.address is not None:
            places.append(f"address {self.address:#x}")
        return f"{', '.join(places)}: {self.detail}" if places else self.detail


class AddressError(ExactExecutionError):
    """An access or a layout reaches what is no element of its tensor, or an address is missing or misaligned.

    ``loops`` are the loop variables of the first offence, where an access is wrong.
    """

    loops: tuple[int, ...] | None = None

    def at(self, loops: tuple[int, ...]) -> AddressError:
        """This error with the loop variables of the first offence."""
        self.loops = loops
        return self


class PaddingError(AddressError):
    """A lane beyond the logical elements of a stick is read: it holds garbage (D2.3)."""


class StickError(AddressError):
    """The lanes that an access walks are not those of a stick: no legal stick expression describes it (D2.5)."""


class LifetimeError(ExactExecutionError):
    """Bytes are used by a value that does not live there: two live values overlap, or a dead one is read."""


class UninitialisedError(ExactExecutionError):
    """Memory is read that nothing has written."""


class SliceError(ExactExecutionError):
    """The cores' slices do not cover the operation, or a core touches what another one holds (D4.4, D4.5)."""


class CapacityError(ExactExecutionError):
    """A value or a working set does not fit the memory it was given (D1.2)."""
