"""Find what the device's compiler raised in an exception that PyTorch may have wrapped."""

from __future__ import annotations

from spyre_backend.errors import SpyreInternalError, SpyreUnsupported


def unsupported_in(error: BaseException) -> SpyreUnsupported | None:
    """The refusal behind `error`; None when the device refused nothing."""
    found = raised_by_device(error)
    return found if isinstance(found, SpyreUnsupported) else None


def raised_by_device(error: BaseException) -> SpyreUnsupported | SpyreInternalError | None:
    """The refusal, or the defect of the backend, in the chain of causes of `error`, outermost first: what stands behind
    a defect, such as a refusal that was being handled, is not looked for."""
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        current = pending.pop(0)
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        if isinstance(current, (SpyreUnsupported, SpyreInternalError)):
            return current
        inner = getattr(current, "inner_exception", None)
        pending += [inner if isinstance(inner, BaseException) else None, current.__cause__, current.__context__]
    return None
