"""Batches of jobs, in a hash, and their jobs in a sorted set for each state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from msgspec.structs import replace

from holdfast.core.batches import Batch
from holdfast.core.machine import LIVE, State
from holdfast.core.records import Job, NewJob
from holdfast.failpoints import point
from holdfast.stores.protocol import Added
from holdfast.stores.redis.connection import Connections
from holdfast.stores.redis.rows import NUL
from holdfast.stores.redis.work import AT_ONCE, Work, check_size, committed, decode, pairs, read_rows

BATCHES, NAMES, OPEN, OPENED = "batches", "batch_names", "batches_open", "batches_opened"


def _set(batch_id: str, state: State) -> str:
    return f"bm:{batch_id}{NUL}{state.value}"


class RedisBatches:
    """See `stores/protocol.py: Batches`."""

    def __init__(self, db: Connections) -> None:
        self._db = db

    def open(self, batch: Batch) -> Batch:
        committed(self._db, partial(_open, batch))
        return self.get([batch.id])[0]

    def add(self, batch_id: str, jobs: Sequence[NewJob]) -> list[Added] | None:
        check_size(len(jobs), "one call adds to a batch")

        def add(work: Work) -> list[Added] | None:
            batch = work.field(BATCHES, batch_id, Batch)
            if batch is None or batch.closed_at is not None:
                return None
            work.set(BATCHES, batch_id, replace(batch, added_at=work.now.wall))
            return work.add(jobs, batch_id)

        return committed(self._db, add)

    def close(self, batch_id: str, *, complete: bool, unless_added_since: float | None = None) -> bool:
        def close(work: Work) -> bool:
            batch = work.field(BATCHES, batch_id, Batch)
            if batch is None or batch.closed_at is not None:
                return False
            if unless_added_since is not None and batch.added_at > unless_added_since:
                return False
            work.set(BATCHES, batch_id, replace(batch, closed_at=work.now.wall, complete=complete))
            return True

        return committed(self._db, close)

    def get(self, ids: Sequence[str]) -> list[Batch]:
        wanted = sorted(set(ids))
        if not wanted:
            return []
        sizes = [("ZCARD", _set(each, state)) for each in wanted for state in LIVE]
        texts, *jobs = self._db.ask(("HMGET", BATCHES, *wanted), *sizes)
        found = []
        for place, text in enumerate(texts):
            if text is not None:
                live = any(jobs[place * len(LIVE) : (place + 1) * len(LIVE)])
                found.append(replace(decode(text, Batch), live=live))
        return found

    def find(self, after: str = "", limit: int = 100, *, unended: bool = False) -> list[Batch]:
        least = f"({after}" if after else "-"
        command = ("ZRANGE", OPEN if unended else NAMES, least, "+", "BYLEX", "LIMIT", 0, limit)
        return self.get(_names(self._db.ask(command)[0]))

    def newest(self, limit: int = 100) -> list[Batch]:
        names = _names(self._db.ask(("ZRANGE", OPENED, 0, limit - 1, "REV"))[0]) if limit else []
        found = {batch.id: batch for batch in self.get(names)}
        return [found[name] for name in names if name in found]

    def counts(self, batch_id: str) -> dict[str, int]:
        return _counts(self._db, batch_id)

    def jobs(self, batch_id: str, states: Sequence[State], limit: int) -> list[Job]:
        commands = [("ZRANGE", _set(batch_id, each), 0, limit - 1) for each in states or State]
        ids = [name for page in self._db.ask(*commands) for name in _names(page)][:limit] if limit else []
        found: list[Job] = []
        for start in range(0, len(ids), AT_ONCE):
            found += [each.job for _, each in read_rows(self._db, ids[start : start + AT_ONCE])[1] if each is not None]
        return [job for job in found if job.batch == batch_id and (not states or job.state in states)]

    def end(self, batch_id: str, counts: Mapping[str, int], job: NewJob | None) -> bool:
        def end(work: Work) -> bool:
            batch = work.field(BATCHES, batch_id, Batch)
            if batch is None or batch.closed_at is None or batch.ended_at is not None:
                return False
            for state in LIVE:
                if self._db.ask(("ZCARD", _set(batch_id, state)))[0]:
                    return False
                work.expect("size", _set(batch_id, state), "", 0)
            work.set(BATCHES, batch_id, replace(batch, ended_at=work.now.wall, counts=dict(counts)))
            work.do("ZREM", OPEN, batch_id)
            if job is not None:
                work.add([job])
            return True

        point("end_batch.before")
        ended = committed(self._db, end)
        point("end_batch.after")
        return ended

    def purge(self, before: float, limit: int) -> int:
        purged = 0
        for name in _names(self._db.ask(("ZRANGE", NAMES, 0, -1))[0]):
            if purged == limit:
                break
            purged += committed(self._db, partial(self._purge, name, before))
        return purged

    def _purge(self, batch_id: str, before: float, work: Work) -> bool:
        batch = work.field(BATCHES, batch_id, Batch)
        if batch is None or batch.ended_at is None or batch.ended_at >= before:
            return False
        sizes = self._db.ask(*(("ZCARD", _set(batch_id, state)) for state in State))
        if any(sizes):
            return False
        work.set(BATCHES, batch_id, None)
        work.do("ZREM", NAMES, batch_id)
        work.do("ZREM", OPENED, batch_id)
        work.do("UNLINK", f"br:{batch_id}")
        return True


def _open(batch: Batch, work: Work) -> None:
    if work.field(BATCHES, batch.id) is not None:
        return
    number = work.field("meta", "batches")
    work.do("HINCRBY", "meta", "batches", 1)
    wall = work.now.wall
    work.set(BATCHES, batch.id, replace(batch, created_at=wall, added_at=wall, live=False))
    work.do("ZADD", NAMES, 0, batch.id)
    work.do("ZADD", OPEN, 0, batch.id)
    work.do("ZADD", OPENED, int(number or 0), batch.id)


def _counts(db: Connections, batch_id: str) -> dict[str, int]:
    removed, *sizes = db.ask(("HGETALL", f"br:{batch_id}"), *(("ZCARD", _set(batch_id, state)) for state in State))
    counts = {state.value: size for state, size in zip(State, sizes, strict=True)}
    for state, jobs in pairs(removed):
        counts[state.decode()] += int(jobs)
    return {state: jobs for state, jobs in counts.items() if jobs}


def _names(found: Iterable[bytes]) -> list[str]:
    return [each.decode() for each in found]
