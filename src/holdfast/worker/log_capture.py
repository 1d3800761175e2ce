"""The last lines that a job has logged: what its code said through `ctx.log` and the standard `logging`.

One logging handler gets every record, and a context variable names its attempt. asyncio tasks and `asyncio.to_thread`
inherit the variable; threads that a handler starts do not. The lines go with the next beat and with every outcome that
is not a success, so that people can read what happened before the end. A job that logs nothing pays nothing.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from holdfast.core.durations import iso
from holdfast.core.text import one_line
from holdfast.runtime.log_fields import FIELDS, current_attempt, fields_of
from holdfast.worker.isolated import protocol

if TYPE_CHECKING:
    from holdfast.worker.attempt import Attempt
    from holdfast.worker.recent import RecentWork

log = logging.getLogger("holdfast.worker")

LINES_MAX = 20
LINE_MAX = 300  # characters
LOG_MAX = 4096  # bytes of all of them


class LogCapture:
    """The last lines of one attempt. Any thread may add one; nobody has to wait."""

    __slots__ = ("_ring", "fresh")

    def __init__(self) -> None:
        self._ring: deque[str] = deque(maxlen=LINES_MAX)
        self.fresh = False  # there are some that no beat has carried yet

    def hear(self, record: logging.LogRecord) -> None:
        """Keep a record as text: what it is made of may change, or be large."""
        try:
            line = _written(record)
        except Exception as error:
            line = f"(a record that cannot be written: {type(error).__name__})"
        self._ring.append(line[: 2 * LINE_MAX])
        self.fresh = True

    def take(self) -> str | None:
        """Return all of them, if some are new since the last time."""
        if not self.fresh:
            return None
        self.fresh = False  # before they are read: one that comes in between is new again
        return "\n".join(self.all())

    def all(self) -> list[str]:
        """Return them, oldest first, without secrets; if they are too long, the newest of them."""
        shown: list[str] = []
        room = LOG_MAX
        for line in reversed(self._ring.copy()):
            text = _shown(line)
            room -= len(text.encode()) + 1
            if room < 0:
                break
            shown.insert(0, text)
        return shown


@functools.lru_cache(1024)  # to look for secrets takes long, and every beat shows most lines again
def _shown(line: str) -> str:
    return one_line(line, LINE_MAX)


def _written(record: logging.LogRecord) -> str:
    text = record.getMessage()
    if record.exc_info and record.exc_info[1] is not None:
        text += f"\n{type(record.exc_info[1]).__name__}: {record.exc_info[1]}"
    elif record.exc_text:  # it comes from an isolated process
        text += "\n" + record.exc_text.rstrip().rpartition("\n")[2]
    return f"{iso(record.created)} {record.levelname} {record.name}: {text}"


# ------------------------------------------------------------------------------------------- listening


class Listener(logging.Handler):
    """Gives each record to the attempt that it belongs to, and shows it to nobody."""

    def handle(self, record: logging.LogRecord) -> bool:
        """Without the lock that a handler has: an interrupt inside it would leave it locked."""
        attempt = current_attempt.get()
        if attempt is not None:
            attempt.activity.hear(record)
        elif record.name.startswith("holdfast."):
            for worker in tuple(_workers):
                worker.hear(record)
        last = logging.lastResort
        if last is not None and record.levelno >= last.level and self._is_alone(record):
            last.handle(record)  # what `logging` does where nobody listens; we are nobody
        return True

    def _is_alone(self, record: logging.LogRecord) -> bool:
        logger: logging.Logger | None = logging.getLogger(record.name)
        while logger is not None:
            if any(each is not self for each in logger.handlers):
                return False
            logger = logger.parent if logger.propagate else None
        return True


_listener = Listener()
_lock = threading.Lock()
_places: Counter[logging.Logger] = Counter()
_workers: list[RecentWork] = []  # of this process: each hears what Holdfast says outside jobs


@contextmanager
def listening(logger: logging.Logger, worker: RecentWork | None = None) -> Iterator[None]:
    """Hear what jobs log until the end of the block: at the root logger, and where records of `logger` end up if they
    do not get there. Several workers in one process share one ear, so that nobody hears twice. The `worker`
    hears the lines of Holdfast itself."""
    places = {logging.getLogger(), _top(logger)}
    with _lock:
        heard = [worker] if worker is not None else []
        _workers.extend(heard)
        for place in places:
            _places[place] += 1
            keep_handler(place, _listener)
    try:
        yield
    finally:
        with _lock:
            for each in heard:
                _workers.remove(each)
            for place in places:
                _places[place] -= 1
                if not _places[place]:
                    vars(place).pop("removeHandler", None)
                    place.removeHandler(_listener)


def keep_handler(logger: logging.Logger, handler: logging.Handler) -> None:
    """Add a handler that `logging.config` and `basicConfig(force=True)` do not take away: a job may call them at any
    time, and they remove all that is there."""

    def remove(other: logging.Handler) -> None:
        if other is not handler:
            type(logger).removeHandler(logger, other)

    logger.addHandler(handler)
    vars(logger)["removeHandler"] = remove


class _Enabled(logging.Logger):
    """A logger that nobody can disable. Its level can still be set."""

    def __setattr__(self, name: str, value: object) -> None:
        if name != "disabled":
            super().__setattr__(name, value)


def enable_our_loggers() -> None:
    """Keep `logging.config` from disabling our loggers, now and later: by default it silences every logger that was
    there before, and a handler may call it at any time."""
    logging.getLogger("holdfast.job")  # what `ctx.log` is by default: now, so that it is among them
    for name, logger in tuple(logging.root.manager.loggerDict.items()):
        if isinstance(logger, logging.Logger) and name.partition(".")[0] == "holdfast":
            logger.disabled = False
            if type(logger) is logging.Logger:  # not one of a class of the user's
                logger.__class__ = _Enabled


def _top(logger: logging.Logger) -> logging.Logger:
    while logger.propagate and logger.parent is not None:
        logger = logger.parent
    return logger


def pass_on(word: protocol.Logged, attempt: Attempt | None) -> None:
    """Do with a record from an isolated process, which runs `attempt` now, what would be done with one of our own."""
    try:
        record = logging.makeLogRecord(word.record)
        logger = logging.getLogger(record.name)
        if not logger.isEnabledFor(record.levelno):
            return
        if attempt is not None and word.attempt == attempt.key:
            attempt.activity.hear(record)
            vars(record).setdefault(FIELDS, fields_of(attempt.job))
        logger.handle(record)
    except Exception as error:  # code of the user's made the record, and may have given it any name and level
        log.warning("a record that an isolated job logged cannot be shown: %s", type(error).__name__)
