"""Keys with rules, in a hash, and what follows from them in a verb at work."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.core.acts import Move
from holdfast.core.keys import PASSED, KeyHold, is_held
from holdfast.core.machine import LIVE
from holdfast.core.records import Job, NewJob
from holdfast.stores.protocol import Added, Reply
from holdfast.stores.redis.rows import live_key
from holdfast.stores.redis.work import Work

HOLDS, NAMES = "holds", "hold_names"


class WorkKeys:
    """See `stores/keyed_jobs.py: KeyRows`."""

    def __init__(self, work: Work) -> None:
        self._work = work

    def now(self) -> float:
        return self._work.now.wall

    def knows(self, job_id: str) -> bool:
        return self._work.job(job_id) is not None

    def live(self, key: str) -> Job | None:
        return self._work.live(key)

    def held(self, key: str, new_id: str) -> KeyHold | None:
        found: KeyHold | None = self._work.field(HOLDS, key, KeyHold)
        return found

    def row(self, job_id: str) -> Job | None:
        return self._work.job(job_id)

    def add(self, jobs: Sequence[NewJob]) -> list[Added]:
        return self._work.add(jobs)

    def take(self, key: str, hold: KeyHold) -> None:
        self._work.set(HOLDS, key, hold)
        self._work.do("ZADD", NAMES, 0, key)
        self._change(hold.job_id, key=key, key_scope=hold.scope)

    def pass_on(self, job_id: str) -> None:
        self._change(job_id, key_scope=PASSED)

    def move(self, move: Move) -> Reply:
        return moved(self._work, [move])[0]

    def rewrite(self, job_id: str, payload: str, expires_at: float | None) -> None:
        self._change(job_id, payload=payload, expires_at=expires_at)

    def _change(self, job_id: str, **changes: object) -> None:
        job = self._work.job(job_id)
        if job is not None:
            self._work.put(replace(job, **changes))


def moved(work: Work, moves: Sequence[Move]) -> list[Reply]:
    """Apply acts of people; see `Store.move`."""
    work.load(move.seen.job_id for move in moves)
    taken: set[str] = set()
    answers = []
    for move in moves:
        job = work.job(move.seen.job_id)
        if job is None or job.seen != move.seen:
            answers.append(Reply.REFUSED)
            continue
        key = job.key if job.key_scope is None else None
        if key is not None and job.state not in LIVE and move.verdict.state in LIVE:
            if key in taken or work.live(key) is not None:
                answers.append(Reply.TAKEN)
                continue
            taken.add(key)
        answers.append(Reply.ACCEPTED)
    for move, answer in zip(moves, answers, strict=True):
        job = work.job(move.seen.job_id)
        if answer is Reply.ACCEPTED and job is not None:
            work.apply(job, move.verdict, None)
            work.tell_parent(job.id)
    return answers


def is_free(work: Work, key: str) -> bool:
    """Say whether nobody has the key any more."""
    hold = work.field(HOLDS, key, KeyHold)
    return hold is None or not is_held(hold, work.job(hold.job_id), work.now.wall)


__all__ = ["HOLDS", "NAMES", "WorkKeys", "is_free", "live_key", "moved"]
