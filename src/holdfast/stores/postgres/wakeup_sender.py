"""Sends hints to sleeping workers, and to nobody else.

NOTIFY is not free: its transaction holds a lock of the whole server until its commit is durable, so that all commits
with a NOTIFY in them happen one after the other. And nobody needs a hint while all workers are busy. So:

- A worker that finds nothing due raises the number in `sleep_count` (`due`), and then sleeps. The number is a
  sequence: everybody sees the new one at once, in whatever transaction and under whatever snapshot. Any hint for one of
  its queues makes it look again, and raise the number before its next sleep.
- A producer remembers for each queue the number that it saw when it last sent a hint. If the number is still the same
  after the commit of a job, nobody has gone to sleep since, and nothing is sent. A hint goes out after the commit, on a
  connection of ours: never inside a caller's transaction.
- To look at the number after each commit would cost a statement. So the insert itself reads it, a moment before its
  commit. A worker that falls asleep within that moment looks once more after `LOOK_AGAIN_S`; a producer whose insert
  took longer than `FRESH_S` reads the number again. One of the two finds the job.

A caller's transaction on a plain connection has no hook for its commit. So one process of the fleet looks each second
for what is due in any queue, and wakes those who sleep (`are_due`). They look for themselves every ten seconds.

Hints can be lost, with a connection or with a program that ends. Polling is the truth.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable

from holdfast.clock import Clock
from holdfast.errors import StoreError
from holdfast.stores.postgres.connection import Connections

log = logging.getLogger("holdfast.stores")

FRESH_S = 0.1  # an insert that took longer does not know whether a worker sleeps
LOOK_AGAIN_S = 0.2  # longer than any insert that trusts the number that it has read
WORTH_COUNTING = 1000  # due jobs of a queue and priority


class WakeupSender:
    """Tracks sleeping workers for one process; see the module's docstring."""

    def __init__(self, db: Connections, clock: Clock) -> None:
        self._db = db
        self._clock = clock
        self._woken: dict[str, int] = {}  # queue -> the number when we last sent a hint; 0: nobody has slept ever
        self._told: dict[str, list[int]] = {}  # queue -> what was due when we last told that something is
        self._wanted: set[str] = set()
        self._has_thread = False  # that will send what is wanted
        self._lock = threading.Lock()
        self._sending = threading.Lock()

    def committed(self, queues: Iterable[str], slept: int | None = None, since: float = 0.0) -> None:
        """Send a hint for jobs that are committed by now, unless nobody sleeps.

        `slept`: the number that their statement has read, after it was sent at `since`; None: it has read none.
        Threads share their hints: while one is being sent, the next one waits for all who come.
        """
        if slept is not None and self._clock.lease() - since <= FRESH_S:
            queues = [queue for queue in queues if self._woken.get(queue, 0) != slept]
            if not queues:
                return
        with self._lock:
            self._wanted.update(queues)
        with self._sending:
            self._send()

    def are_due(self, queues: dict[str, list[int]], slept: int | None, since: float) -> None:
        """Wake those who sleep though there is something due in these queues: a producer that has no hook for its
        commit tells nobody. Each queue: how much is due, and its newest job. For the same jobs nobody is woken twice:
        those who sleep do not have their tasks. Where more is due than is counted, a new job does not show, so they are
        woken by each look.
        """
        self._told = {queue: due for queue, due in self._told.items() if queue in queues}
        news = [queue for queue, due in queues.items() if self._told.get(queue) != due or due[0] >= WORTH_COUNTING]
        if slept is not None:
            news = [queue for queue in news if self._woken.get(queue, 0) != slept]
        if news:
            self.committed(news, slept, since)
            self._told |= {queue: queues[queue] for queue in news}

    def committed_elsewhere(self, queues: Iterable[str]) -> None:
        """Do the same from a hook of the caller's, which must not wait for us: on a thread, one for all hooks that come
        before it sends. Never raises: the caller has committed already."""
        with self._lock:
            self._wanted.update(queues)
            needs_thread = not self._has_thread
            self._has_thread = True
        if not needs_thread:
            return
        try:
            threading.Thread(target=self._send_on_thread, name="holdfast-wakeup").start()
        except RuntimeError as error:  # the limit of threads is reached, or the interpreter shuts down
            log.debug("could not wake sleeping workers: %s", error)
            with self._lock:
                self._has_thread = False  # the next one sends this hint too

    def _send_on_thread(self) -> None:
        with self._sending:
            with self._lock:
                self._has_thread = False
            self._send()

    def _send(self) -> None:
        with self._lock:
            queues, self._wanted = sorted(self._wanted), set()
        if not queues:
            return  # another thread has sent ours too
        woken = [self._woken.get(queue, 0) for queue in queues]
        slept: int | None
        try:
            slept, _ = self._db.one("wake", {"queues": queues, "woken": woken, "channel": self._db.channel})
        except StoreError as error:  # the jobs are stored, and are found by polling
            log.debug("could not wake sleeping workers: %s", error)
            return
        if slept is not None:
            self._woken |= dict.fromkeys(queues, slept)

    def forget(self) -> None:
        """Let a forked child start afresh."""
        self._lock, self._sending = threading.Lock(), threading.Lock()
        self._wanted = set()
        self._has_thread = False
