"""Fingerprints of errors: one for all errors of the same kind, whatever ids and numbers their texts name.

The fingerprint is made of the type of the exception, the module and function of the innermost frame of the author's
code, and the text without digits, ids and quoted text. A line number is not part of it: it changes with every edit.
"""

from __future__ import annotations

import re
from hashlib import sha256

import msgspec

READ_MAX = 1_000  # characters of an error's text that are looked at
MESSAGE_MAX = 200  # characters of it that are kept, after ids and numbers are gone
KEPT_S = 30 * 86_400.0  # how long a store counts errors
SLOT_S = 60.0  # a store adds up the errors of as many seconds

_QUOTED = re.compile(r"""(?<!\w)(?:'[^'\n]*'|"[^"\n]*"|`[^`\n]*`)(?!\w)""")
_WITH_DIGITS = re.compile(r"[\w-]*\d[\w-]*")


class Fault(msgspec.Struct, frozen=True):
    """The error of an ending. `origin`: the module and function that raised it; the detector of a crash."""

    fingerprint: str
    kind: str  # the type of the exception; or "crash", "timed out", "stalled", "diverged", "failed"
    origin: str | None
    message: str


def fault(kind: str, origin: str | None, text: str) -> Fault:
    """Return the error with its fingerprint. `text` is masked first."""
    return exact(kind, origin, masked(text))


def exact(kind: str, origin: str | None, message: str) -> Fault:
    """Do the same with a message that is compared as it is."""
    parts = "\n".join((kind, origin or "", message))
    return Fault(sha256(parts.encode("utf-8", "replace")).hexdigest()[:12], kind, origin, message)


def masked(text: str) -> str:
    """Return the first line of a text with "…" for what is quoted, and "#" for each word that has a digit in it."""
    line = next(iter(text[:READ_MAX].strip().splitlines()), "")
    line = _WITH_DIGITS.sub("#", _QUOTED.sub("…", line))
    return " ".join(line.split())[:MESSAGE_MAX]


class ErrorGroup(msgspec.Struct, frozen=True, array_like=True):
    """Attempts of one task that ended with the same error, since some instant."""

    task: str
    fingerprint: str
    kind: str
    origin: str | None
    message: str
    attempts: int
    first_at: float  # wall time
    last_at: float
    releases: list[str]  # of the workers that ran them, as far as they were told one; sorted
    job_id: str  # the job that had it last


def slot_of(wall: float) -> int:
    """Return the number of the slot that an instant is in."""
    return int(wall // SLOT_S)
