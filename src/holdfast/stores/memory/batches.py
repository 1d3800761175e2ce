"""Batches in a plain dict."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec.structs import replace

from holdfast.clock import Clock
from holdfast.core.batches import Batch
from holdfast.core.machine import LIVE, State
from holdfast.core.records import Job, NewJob
from holdfast.stores.protocol import Added


class MemoryBatches:
    """See `stores/protocol.py: Batches`."""

    def __init__(
        self,
        lock: threading.RLock,
        clock: Clock,
        jobs: Callable[[], Iterable[Job]],
        add: Callable[[Sequence[NewJob]], list[Added]],
        put: Callable[[str, str], None],
    ) -> None:
        self._lock = lock
        self._clock = clock
        self._jobs = jobs
        self._add = add
        self._put = put  # a job, by its id, into a batch
        self._batches: dict[str, Batch] = {}  # in the order in which they were opened
        self._removed: Counter[tuple[str, State]] = Counter()

    def open(self, batch: Batch) -> Batch:
        with self._lock:
            wall = self._clock.wall()
            fresh = replace(batch, created_at=wall, added_at=wall, live=False)
            return self._seen(self._batches.setdefault(batch.id, fresh))

    def add(self, batch_id: str, jobs: Sequence[NewJob]) -> list[Added] | None:
        with self._lock:
            batch = self._batches.get(batch_id)
            if batch is None or batch.closed_at is not None:
                return None
            self._batches[batch_id] = replace(batch, added_at=self._clock.wall())
            answers = self._add(jobs)
            for each in answers:
                if not each.existed:
                    self._put(each.id, batch_id)
            return answers

    def close(self, batch_id: str, *, complete: bool, unless_added_since: float | None = None) -> bool:
        with self._lock:
            batch = self._batches.get(batch_id)
            if batch is None or batch.closed_at is not None:
                return False
            if unless_added_since is not None and batch.added_at > unless_added_since:
                return False
            self._batches[batch_id] = replace(batch, closed_at=self._clock.wall(), complete=complete)
            return True

    def get(self, ids: Sequence[str]) -> list[Batch]:
        with self._lock:
            return [self._seen(self._batches[each]) for each in sorted(set(ids)) if each in self._batches]

    def find(self, after: str = "", limit: int = 100, *, unended: bool = False) -> list[Batch]:
        with self._lock:
            ids = [each for each in sorted(self._batches) if each > after]
            wanted = [each for each in ids if not unended or self._batches[each].ended_at is None]
            return self.get(wanted[:limit])

    def newest(self, limit: int = 100) -> list[Batch]:
        with self._lock:
            return [self._seen(each) for each in list(reversed(self._batches.values()))[:limit]]

    def counts(self, batch_id: str) -> dict[str, int]:
        with self._lock:
            counts = Counter(job.state.value for job in self._members(batch_id))
            for (name, state), jobs in self._removed.items():
                if name == batch_id:
                    counts[state.value] += jobs
            return dict(counts)

    def jobs(self, batch_id: str, states: Sequence[State], limit: int) -> list[Job]:
        with self._lock:
            return [job for job in self._members(batch_id) if not states or job.state in states][:limit]

    def end(self, batch_id: str, counts: Mapping[str, int], job: NewJob | None) -> bool:
        with self._lock:
            batch = self._batches.get(batch_id)
            if batch is None or not self._seen(batch).is_over:
                return False
            self._batches[batch_id] = replace(batch, ended_at=self._clock.wall(), counts=dict(counts))
            if job is not None:
                self._add([job])
            return True

    def purge(self, before: float, limit: int) -> int:
        with self._lock:
            kept = {job.batch for job in self._jobs()}
            old = [
                each.id
                for each in self._batches.values()
                if each.ended_at is not None and each.ended_at < before and each.id not in kept
            ][:limit]
            for batch_id in old:
                del self._batches[batch_id]
                self._removed = Counter({key: jobs for key, jobs in self._removed.items() if key[0] != batch_id})
            return len(old)

    def removed(self, job: Job) -> None:
        """Count a job of a batch that is deleted. The caller has the lock."""
        if job.batch is not None:
            self._removed[job.batch, job.state] += 1

    def _members(self, batch_id: str) -> Iterable[Job]:
        return (job for job in self._jobs() if job.batch == batch_id)

    def _seen(self, batch: Batch) -> Batch:
        return replace(batch, live=any(job.state in LIVE for job in self._members(batch.id)))
