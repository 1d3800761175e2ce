"""The last endings and the last log lines of a worker, which it reports with its beats.

Both are kept in memory and written to one row, at most once for each beat and only if there is news. So a job costs no
write, an idle worker writes nothing, and people can read what a worker did before it died.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable

from holdfast.core.records import EndedAttempt, Recent
from holdfast.core.verdict import Outcome
from holdfast.worker.log_capture import LogCapture

ENDINGS_MAX = 100

_WORDS: dict[type, str] = {}


class RecentWork:
    """The settler adds endings, any thread adds log lines, and the heartbeat takes both."""

    def __init__(self) -> None:
        self._endings: deque[EndedAttempt] = deque(maxlen=ENDINGS_MAX)
        self._lines = LogCapture()
        self._fresh = False

    def add(self, endings: Iterable[EndedAttempt]) -> None:
        """Note attempts that have been settled, oldest first."""
        self._endings.extend(endings)
        self._fresh = True

    def hear(self, record: logging.LogRecord) -> None:
        """Keep a log line of the worker itself."""
        self._lines.hear(record)

    def take(self) -> Recent | None:
        """Return all of it, if some is new since the last time."""
        if not self._fresh and not self._lines.fresh:
            return None
        self._fresh = self._lines.fresh = False  # before it is read: what comes in between is new again
        return Recent(tuple(self._endings.copy()), "\n".join(self._lines.all()))

    def unheard(self) -> None:
        """Note that what was taken last may not have reached the store."""
        self._fresh = True


def outcome_word(outcome: Outcome) -> str:
    """Return the name of an outcome as the journal writes it: `timed_out` for `TimedOut`."""
    kind = type(outcome)
    if (word := _WORDS.get(kind)) is None:
        letters = (f"_{char.lower()}" if char.isupper() else char for char in kind.__name__)
        word = _WORDS[kind] = "".join(letters).lstrip("_")
    return word
