"""The thread that writes what workflows record, in batches.

While one batch is being written the next one gathers, so the steps of many workflows share a commit. A record is kept
through any outage: its workflow waits for it, and is stopped by the time limits before its lease ends . The records of
a job
whose row another transaction has locked are tried again by themselves, in their order.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

from holdfast.clock import Clock
from holdfast.core.records import Record
from holdfast.errors import StoreTimeout, StoreUnavailable, is_passing
from holdfast.runtime.locked_rows import LockedRows
from holdfast.runtime.store_backoff import StoreBackoff
from holdfast.runtime.vital_threads import Died, VitalThread
from holdfast.stores.protocol import Reply, Store

log = logging.getLogger("holdfast.worker")

BATCH = 500
Done = Callable[[Reply | Exception], None]
Entry = tuple[Record, Done]


class Recorder:
    """See the module's docstring. The thread is started with the first record."""

    def __init__(self, store: Store, clock: Clock, died: Died) -> None:
        self._store = store
        self._died = died
        self._clock = clock
        self._entries: deque[Entry] = deque()
        self._locked: LockedRows[Entry] = LockedRows(clock)
        self._wake = threading.Event()
        self._lock = threading.Lock()
        self._closing = False
        self._thread: VitalThread | None = None
        self._backoff = StoreBackoff(log, clock, "workflows wait until the store takes their steps")

    def put(self, record: Record, done: Done) -> None:
        """Write it soon; `done` is called by the recorder's thread with the answer, or with what went wrong."""
        self._entries.append((record, done))
        if self._thread is None:
            self._begin()
        self._wake.set()

    def close(self) -> None:
        self._closing = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(1.0)

    def _begin(self) -> None:
        with self._lock:
            if self._thread is None:
                thread = VitalThread("holdfast-recorder", self._serve, lambda: self._closing)
                thread.begin(self._died)
                self._thread = thread

    def _serve(self) -> None:
        while not (self._closing and not self._entries):
            retry_s = self._locked.next_s()
            if retry_s is None:
                self._wake.wait()
            else:
                self._clock.wait(self._wake, retry_s)
            self._wake.clear()
            while batch := self._next_batch():
                self._write(batch)
        for _, done in self._locked.take_all():
            _tell(
                done, StoreUnavailable("another transaction has locked the job's row, and the worker is shutting down")
            )

    def _next_batch(self) -> list[Entry]:
        if slow := self._locked.take_slow():
            return slow
        batch = self._locked.take_due()
        while self._entries and len(batch) < BATCH:
            entry = self._entries.popleft()
            batch += self._unless_locked([entry]) if self._locked else (entry,)
        return batch

    def _unless_locked(self, entries: list[Entry]) -> list[Entry]:
        """Return the entries of jobs whose rows are free; put the others behind those that wait already."""
        free = []
        for entry in entries:
            job_id = entry[0].lease.job_id
            if job_id in self._locked:
                self._locked.put(job_id, entry)
            else:
                free.append(entry)
        return free

    def _write(self, batch: list[Entry]) -> None:
        while True:
            try:
                answers = self._store.record([record for record, _ in batch])
                self._backoff.recovered()
                break
            except Exception as error:
                too_slow = isinstance(error, StoreTimeout)
                if too_slow and len(batch) == 1 and not self._closing:
                    self._put_aside(batch[0], error)
                    return
                if is_passing(error) and not too_slow and not self._closing:
                    self._clock.wait(threading.Event(), self._backoff.failed(error))
                    continue
                if len(batch) > 1:  # one that no store will ever take must not keep the others
                    middle = len(batch) // 2
                    self._write(batch[:middle])
                    self._write(self._unless_locked(batch[middle:]))
                    return
                _tell(batch[0][1], error)
                return
        for (record, done), answer in zip(batch, answers, strict=True):
            if answer is Reply.LOCKED:
                self._locked.put(record.lease.job_id, (record, done))
                continue
            self._locked.free(record.lease.job_id)
            _tell(done, answer)

    def _put_aside(self, entry: Entry, error: Exception) -> None:
        job_id = entry[0].lease.job_id
        log.warning("job %s: its step is not saved yet, and is tried again apart from the others: %s", job_id, error)
        self._locked.put(job_id, entry, slow=True)


def _tell(done: Done, answer: Reply | Exception) -> None:
    try:
        done(answer)
    except Exception:  # its event loop is closed
        log.debug("the caller no longer waits for its record", exc_info=True)
