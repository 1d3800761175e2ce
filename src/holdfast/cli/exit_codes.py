"""Turn errors into exit codes. No other module does.

0 ok · 1 failed · 2 usage or import error · 3 store unreachable, missing, lost, read-only or full
4 schema stale or newer · 5 not found · 6 refused (fence, state) · 7 unhealthy
129 hung up · 130 interrupted · 141 output closed · 143 terminated
"""

from __future__ import annotations

from enum import IntEnum

from holdfast import errors


class Exit(IntEnum):
    OK = 0
    FAILED = 1
    USAGE = 2
    STORE = 3
    SCHEMA = 4
    NOT_FOUND = 5
    REFUSED = 6
    UNHEALTHY = 7
    UNREAD = 141  # as if SIGPIPE had ended it; not 0, because a verdict or an act may be among what was not said


# The first that fits; so the narrow ones stand before the broad ones.
_CODES: tuple[tuple[type[errors.HoldfastError], Exit], ...] = (
    (errors.UsageError, Exit.USAGE),
    (errors.SchemaMismatch, Exit.SCHEMA),
    (errors.StoreError, Exit.STORE),
    (errors.NotFound, Exit.NOT_FOUND),
    (errors.Refused, Exit.REFUSED),
)


def code_of(error: errors.HoldfastError) -> Exit:
    """Return the exit code that an error means."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), Exit.FAILED)
