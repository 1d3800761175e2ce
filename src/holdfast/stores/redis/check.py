"""Compares rows with the indexes that should have them, and the other way round."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from holdfast.core import transitions
from holdfast.core.machine import State
from holdfast.stores.redis import rows
from holdfast.stores.redis.connection import Connections
from holdfast.stores.redis.reading import Reader, names_of
from holdfast.stores.redis.rows import NUL, Stored
from holdfast.stores.redis.work import AT_ONCE


def found_wrong(db: Connections, read: Reader) -> list[str]:
    """See `Store.check`."""
    wrong = [f"a write failed twice: {each}" for each in names_of(db.ask(("LRANGE", "bad", 0, -1))[0])]
    alive, states = Counter[str](), Counter[State]()
    sets = read.sets()
    for page in _pages(read, sets):
        # Rows change meanwhile; what is wrong twice is wrong.
        doubted = [each.job.id for each in page if any(_missing(db, [each]))]
        wrong += _missing(db, read.stored(doubted))
        for each in page:
            wrong += [f"job {each.job.id} {violation}" for violation in transitions.violations(each.job)]
            states[each.job.state] += 1
            if (key := rows.live_key(each.job)) is not None:
                alive[key] += 1
    wrong += [f"key {key!r} has {times} live jobs" for key, times in alive.items() if times > 1]
    return wrong + _stray(db, read)


def _pages(read: Reader, sets: list[str]) -> Iterator[list[Stored]]:
    page: list[str] = []
    for job in read.by_arrival(sets):
        page.append(job.id)
        if len(page) == AT_ONCE:
            yield read.stored(page)
            page = []
    if page:
        yield read.stored(page)


def _missing(db: Connections, page: list[Stored]) -> list[str]:
    """Say which entries of these jobs are not in their indexes."""
    wanted: list[tuple[str, str, str, float | None]] = []
    for each in page:
        job = each.job
        wanted += [(job.id, place.key, place.member, place.score) for place in rows.places_of(job, each.seq)]
        if job.state is State.READY:
            willing = "a" if job.on_crash == "retry" else "x"
            lane = NUL.join((job.queue, str(job.priority), job.group or "", job.task, willing))
            wanted.append((job.id, f"l:{lane}", f"{each.seq:016d}{job.id}", job.run_at))
    asked = [("SISMEMBER" if score is None else "ZSCORE", key, member) for _, key, member, score in wanted]
    found = db.ask(*asked) if asked else []
    return [
        f"job {job_id} is not in the index {key.replace(NUL, ' ')!r} as its row says"
        for (job_id, key, _, score), there in zip(wanted, found, strict=True)
        if (there != 1 if score is None else there is None or float(there) != score)
    ]


def _stray(db: Connections, read: Reader) -> list[str]:
    """Say which leases belong to no running job."""
    wrong, skip = [], 0
    while names := names_of(db.ask(("ZRANGE", "leases", skip, skip + AT_ONCE - 1))[0]):
        known = {each.job.id: each.job.state for each in read.stored(names)}
        strays = [name for name in names if known.get(name) is not State.RUNNING]
        still = {job.id for job in read.rows(strays) if job.state is State.RUNNING}
        wrong += [f"job {name} has a lease and does not run" for name in strays if name not in still]
        skip += AT_ONCE
    return wrong
