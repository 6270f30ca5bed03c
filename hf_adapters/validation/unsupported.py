"""Find the device's typed refusal in an exception that compilers may have wrapped."""

from __future__ import annotations

from spyre_backend.errors import SpyreUnsupported


def unsupported_in(error: BaseException) -> SpyreUnsupported | None:
    """The `SpyreUnsupported` in the chain of causes of `error`, outermost first; None when the device refused
    nothing."""
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        current = pending.pop(0)
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        if isinstance(current, SpyreUnsupported):
            return current
        inner = getattr(current, "inner_exception", None)
        pending += [inner if isinstance(inner, BaseException) else None, current.__cause__, current.__context__]
    return None
