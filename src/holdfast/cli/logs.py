"""The log of programs that must continue, even if no process reads their log.

A pipe whose reader has stopped, or a terminal that was stopped by Ctrl-S, lets every writer wait. A worker that waits
settles nothing, so its log waits a second at most; then it drops lines until its reader continues, and says how many.
"""

from __future__ import annotations

import logging
import os
import select
import sys
from typing import Literal

LogForm = Literal["text", "json"]

LOG_FORMAT = "%(asctime)s %(levelname)-7s %(name)s %(message)s"
WAIT_S = 1.0
PIECE = select.PIPE_BUF  # bytes that a pipe takes at once if it takes anything


def log_to_stderr(level: str | int, form: LogForm = "text", worker: str | None = None) -> None:
    """Send the log of this program to stderr, unless the program has chosen another place for it.

    worker: the name that lines of JSON carry.
    """
    handler = PatientHandler()
    handler.setFormatter(_json(worker) if form == "json" else logging.Formatter(LOG_FORMAT))
    handler.all_records = form == "json"
    logging.basicConfig(level=level, handlers=[handler])


def _json(worker: str | None) -> logging.Formatter:
    from holdfast.cli.json_logs import JsonFormatter

    return JsonFormatter(worker)


class PatientHandler(logging.Handler):
    """Writes to stderr, and never waits for long. all_records: a program reads it, so each line is a record."""

    all_records = False

    def __init__(self) -> None:
        super().__init__()
        self._dropped = 0  # lines, since the last one was read
        self._is_torn = False  # the first of them was written in part

    def emit(self, record: logging.LogRecord) -> None:
        try:
            if sys.stderr is not None:
                self._write(sys.stderr.fileno(), f"{self.format(record)}\n".encode(errors="backslashreplace"))
        except RecursionError:
            raise
        except Exception:
            self.handleError(record)

    def _write(self, descriptor: int, line: bytes) -> None:
        if self._dropped:
            if not _is_ready(descriptor, 0.0):
                self._dropped += 1
                return
            line = ("\n" * self._is_torn + self._missing()).encode() + line
            self._dropped = 0
        for start in range(0, len(line), PIECE):
            if not _is_ready(descriptor, WAIT_S):
                self._dropped += 1
                self._is_torn = start > 0
                return
            os.write(descriptor, line[start : start + PIECE])

    def _missing(self) -> str:
        text = f"{self._dropped} log lines are missing here: the reader of the log was too slow"
        if self.all_records:
            record = {"levelno": logging.WARNING, "levelname": "WARNING", "name": "holdfast.log", "msg": text}
            text = self.format(logging.makeLogRecord(record))
        return f"{text}\n"


def _is_ready(descriptor: int, wait_s: float) -> bool:
    """Say whether a piece can be written without waiting; wait for that a little."""
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return bool(poll.poll(wait_s * 1000))
