"""What waits because somebody else has locked a job's row: each job is tried again by itself, at growing intervals."""

from __future__ import annotations

from typing import Generic, TypeVar

from holdfast.clock import Clock

T = TypeVar("T")

FIRST_S = 0.005  # most locks are held by a beat or a signal that is under way
LONGEST_S = 0.1  # when the lock goes, a result is saved well before a reaper may judge its lease


class LockedRows(Generic[T]):
    """Entries by job, each job's in the order in which they came."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._entries: dict[str, list[T]] = {}
        self._pause_s: dict[str, float] = {}  # of each job that was not settled yet
        self._retry_at: dict[str, float] = {}

    def __len__(self) -> int:
        return sum(len(entries) for entries in self._entries.values())

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._entries

    def put(self, job_id: str, entry: T) -> None:
        """Keep an entry until its job is to be tried again."""
        if job_id not in self._entries:
            pause_s = self._pause_s[job_id] = min(2 * self._pause_s.get(job_id, FIRST_S / 2), LONGEST_S)
            self._entries[job_id], self._retry_at[job_id] = [], self._clock.lease() + pause_s
        self._entries[job_id].append(entry)

    def take_due(self) -> list[T]:
        """Remove and return the entries of the jobs whose time has come."""
        now = self._clock.lease()
        due = [job_id for job_id, at in self._retry_at.items() if at <= now]
        return [entry for job_id in due for entry in self._take(job_id)]

    def take_all(self) -> list[T]:
        """Remove and return every entry."""
        return [entry for job_id in list(self._entries) for entry in self._take(job_id)]

    def free(self, job_id: str) -> None:
        """Note that the job's row was not locked."""
        if self._pause_s:
            self._pause_s.pop(job_id, None)

    def next_s(self) -> float | None:
        """Return the seconds until the next job is to be tried; None when nothing waits."""
        if not self._retry_at:
            return None
        return max(0.0, min(self._retry_at.values()) - self._clock.lease())

    def _take(self, job_id: str) -> list[T]:
        del self._retry_at[job_id]
        return self._entries.pop(job_id)
