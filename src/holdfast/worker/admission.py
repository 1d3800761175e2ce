"""Check a claimed job before it starts: it must not be cancelled, and its call must not be held back.

Whether a call is held back is in the journal, and is read here, not at the enqueue: that stays one statement, and a
job that waits for days is judged by what is known when its turn comes. The journal is read every few seconds at most,
only for new jobs of tasks that ask for it (`hold_after`), and after they were claimed: what a person decided before a
job was enqueued counts for it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from holdfast.clock import Clock
from holdfast.core.crash_fingerprint import (
    CRASH_KINDS,
    LATELY_S,
    Fingerprint,
    call_of,
    calls_held_back,
    crashes_of,
    has_fallen,
    is_new,
)
from holdfast.core.records import DamagedJob, Job
from holdfast.core.verdict import Cancelled, HeldBack, Outcome
from holdfast.errors import HoldfastError
from holdfast.stores.protocol import Store, rows_of
from holdfast.tasks import Task
from holdfast.worker.attempt import Attempt

log = logging.getLogger("holdfast.worker")

REFRESH_S = 5.0  # how late holding back may begin and end
_EVENTS = 2000  # the newest
_JOBS = 20


class Admission:
    """See the module's docstring. For the claiming thread alone."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        tasks: Mapping[str, Task[..., Any]],
        settle: Callable[[Attempt, Outcome], None],
    ) -> None:
        self._store = store
        self._clock = clock
        self._settle = settle
        self._limits = {task.name: task.hold_after for task in tasks.values() if task.hold_after is not None}
        self._looked_at = float("-inf")
        self._calls: dict[tuple[str, int], Fingerprint | None] = {}  # that jobs fell with, by job and newest event
        self._held_back: dict[Fingerprint, str] = {}  # -> why

    def admit(self, attempts: Sequence[Attempt]) -> list[Attempt]:
        """Return those that may start; the others are settled."""
        if any(self._asks(attempt.job) for attempt in attempts):
            self._look()
        admitted = []
        for attempt in attempts:
            if attempt.job.cancel_requested:
                self._settle(attempt, Cancelled("cancelled before it started"))
            elif isinstance(attempt.job, DamagedJob):
                self._settle(attempt, HeldBack(attempt.job.damage))
            elif self._asks(attempt.job) and (why := self._held_back.get(call_of(attempt.job))) is not None:
                self._settle(attempt, HeldBack(why))
            else:
                admitted.append(attempt)
        return admitted

    def _look(self) -> None:
        """Learn which calls are held back, if it is time to. When that cannot be read, what was known stays so."""
        if self._clock.lease() - self._looked_at < REFRESH_S:
            return
        self._looked_at = self._clock.lease()
        try:
            self._held_back = self._read()
        except HoldfastError as error:
            log.warning("could not read which calls are held back (%s); using the last known list", error)

    def _asks(self, job: Job) -> bool:
        return job.task in self._limits and is_new(job)

    def _read(self) -> dict[Fingerprint, str]:
        since = self._store.now().wall - LATELY_S
        crashes = crashes_of(self._store.journal(kinds=CRASH_KINDS, since=since, limit=_EVENTS))
        unknown = {job_id: (job_id, seq) for job_id, seq in crashes if (job_id, seq) not in self._calls}
        calls = {key: self._calls.get(key) for key in crashes}
        for job in rows_of(self._store, list(unknown), _JOBS):
            if job.task in self._limits and has_fallen(job):  # a person may have answered for it
                calls[unknown[job.id]] = call_of(job)
        self._calls = calls
        return calls_held_back(crashes, calls, self._limits)
