"""Make an app wait for the ticks and workers of this process before it closes its store."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from holdfast.errors import UsageError

CLOSED = "this app is closed; make another one"


@dataclass(eq=False)
class Work:
    """One tick or worker. `stop` lets it claim nothing more; `within_s` is how long it may then take to leave;
    `is_inside` says whether the caller is a job that it runs."""

    stop: Callable[[], None]
    within_s: float
    is_inside: Callable[[], bool] = lambda: False
    pid: int = field(default_factory=os.getpid)  # a forked process has none of its threads
    thread: threading.Thread | None = None  # which it runs in, from its beginning

    def outlive_its_caller(self, within_s: float) -> None:
        """Note that its caller has returned, and may close the app."""
        self.thread, self.within_s = None, within_s

    def runs_the_caller(self) -> bool:
        """Say whether the caller is one of its own jobs, or runs it: then waiting would never end."""
        return self.thread is threading.current_thread() or self.is_inside()


class Closing:
    """The users of the store of one app. Once it is closing, no new one begins."""

    def __init__(self, logger: logging.Logger) -> None:
        self._log = logger
        self._works: set[Work] = set()
        self._closing = False
        self._changed = threading.Condition()

    def begin(self, work: Work) -> None:
        """Take note of one that begins. Raises `UsageError` when the app is closed, or about to be."""
        with self._changed:
            if self._closing:
                raise UsageError(CLOSED)
            work.thread = threading.current_thread()
            self._works.add(work)

    def end(self, work: Work) -> None:
        """Take note that one needs the store no more."""
        with self._changed:
            self._works.discard(work)
            self._changed.notify_all()

    def drain(self) -> None:
        """Stop all of them, and wait until they have left, or have had their time.

        Raises `UsageError`, and stops nobody, when one of them runs the caller: each would wait for the other.
        """
        with self._changed:
            works = [work for work in self._works if work.pid == os.getpid()]
            if any(work.runs_the_caller() for work in works):
                raise UsageError("a job or tick cannot close the app that runs it; close the app when it has returned")
            self._closing = True
        for work in works:
            work.stop()
        within_s = max((work.within_s for work in works), default=0.0)
        with self._changed:
            if not self._changed.wait_for(lambda: self._works.isdisjoint(works), within_s):
                self._log.warning("closing the store although a worker has not stopped; a reaper will recover its jobs")
                self._works.difference_update(works)
