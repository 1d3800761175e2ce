"""Keys with rules, in a plain dict."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from holdfast.clock import Clock
from holdfast.core.acts import Move
from holdfast.core.keys import PASSED, KeyHold, is_held
from holdfast.core.machine import LIVE
from holdfast.core.records import Job, NewJob
from holdfast.stores.protocol import Added, Reply


def live_key(job: Job) -> str | None:
    """Return the key that the job has for as long as it is live."""
    return job.key if job.key_scope is None else None


class MemoryKeys:
    """See `stores/keyed_jobs.py: KeyRows`. It is used under the lock of the store."""

    def __init__(
        self,
        clock: Clock,
        jobs: dict[str, Job],
        add: Callable[[Sequence[NewJob]], list[Added]],
        move: Callable[[Sequence[Move]], list[Reply]],
    ) -> None:
        self._clock = clock
        self._jobs = jobs
        self.add = add
        self._move = move
        self._holds: dict[str, KeyHold] = {}

    def now(self) -> float:
        return self._clock.wall()

    def knows(self, job_id: str) -> bool:
        return job_id in self._jobs

    def live(self, key: str) -> Job | None:
        same = (job for job in self._jobs.values() if live_key(job) == key)
        return next((job for job in same if job.state in LIVE), None)

    def held(self, key: str, new_id: str) -> KeyHold | None:
        return self._holds.get(key)

    def row(self, job_id: str) -> Job | None:
        return self._jobs.get(job_id)

    def take(self, key: str, hold: KeyHold) -> None:
        self._holds[key] = hold
        self._change(hold.job_id, key=key, key_scope=hold.scope)

    def pass_on(self, job_id: str) -> None:
        self._change(job_id, key_scope=PASSED)

    def move(self, move: Move) -> Reply:
        return self._move([move])[0]

    def rewrite(self, job_id: str, payload: str, expires_at: float | None) -> None:
        self._change(job_id, payload=payload, expires_at=expires_at)

    def purge(self, after: str, limit: int) -> str | None:
        now = self._clock.wall()
        page = sorted(key for key in self._holds if key > after)[:limit]
        for key in page:
            hold = self._holds[key]
            if not is_held(hold, self._jobs.get(hold.job_id), now):
                del self._holds[key]
        return page[-1] if page else None

    def _change(self, job_id: str, **changes: Any) -> None:
        self._jobs[job_id] = replace(self._jobs[job_id], **changes)
