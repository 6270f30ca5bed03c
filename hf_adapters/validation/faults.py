"""Faults of the machine, which are no findings about a model: a full or a read-only disk."""

from __future__ import annotations

import errno

_FAULTS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})


def fault_behind(error: BaseException | None) -> OSError | None:
    """The full or read-only disk behind an exception, or None when the exception has another cause."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, OSError) and error.errno in _FAULTS:
            return error
        error = error.__cause__ or error.__context__
    return None
