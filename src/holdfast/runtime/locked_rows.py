"""Results and records whose job row cannot be written now. Each job is retried alone, at growing intervals.

The row is locked by another transaction, or the store takes too long to write it, even alone.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from holdfast.clock import Clock

T = TypeVar("T")

FIRST_S = 0.005  # most locks are held by a beat or a signal that is under way
LONGEST_S = 0.1  # when the lock goes, a result is saved well before a reaper may judge its lease
SLOW_FIRST_S, SLOW_LONGEST_S = 1.0, 30.0  # of a row that takes too long: each try holds up the others


class LockedRows(Generic[T]):
    """Entries by job, each job's in the order in which they came."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._entries: dict[str, list[T]] = {}
        self._pause_s: dict[str, float] = {}  # of each job that was not settled yet
        self._retry_at: dict[str, float] = {}
        self._slow: set[str] = set()
        self._took_slow = False

    def __len__(self) -> int:
        return sum(len(entries) for entries in self._entries.values())

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._entries

    def put(self, job_id: str, entry: T, *, slow: bool = False) -> None:
        """Keep an entry until its job is to be tried again; `slow`: the store took too long to write it alone."""
        if job_id not in self._entries:
            first_s, longest_s = (SLOW_FIRST_S, SLOW_LONGEST_S) if slow else (FIRST_S, LONGEST_S)
            pause_s = self._pause_s[job_id] = min(max(2 * self._pause_s.get(job_id, 0.0), first_s), longest_s)
            self._entries[job_id], self._retry_at[job_id] = [], self._clock.lease() + pause_s
            if slow:
                self._slow.add(job_id)
        self._entries[job_id].append(entry)

    def take_due(self) -> list[T]:
        """Remove and return the entries of the jobs whose time has come, except the slow ones."""
        if not self._entries:
            return []
        return [entry for job_id in self._due() if job_id not in self._slow for entry in self._take(job_id)]

    def take_slow(self) -> list[T]:
        """Remove and return the entries of one slow job whose time has come, to be written alone. Every second call
        returns nothing, so that the others have their turn."""
        due = [] if self._took_slow or not self._slow else [job_id for job_id in self._due() if job_id in self._slow]
        self._took_slow = bool(due)
        return self._take(due[0]) if due else []

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

    def _due(self) -> list[str]:
        now = self._clock.lease()
        return [job_id for job_id, at in self._retry_at.items() if at <= now]

    def _take(self, job_id: str) -> list[T]:
        self._slow.discard(job_id)
        del self._retry_at[job_id]
        return self._entries.pop(job_id)
