"""Compares rows with the indexes that should have them, and the other way round, and looks at the type of each key."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from redis import exceptions

from holdfast.core import transitions
from holdfast.core.machine import State
from holdfast.errors import StoreDamaged
from holdfast.stores.redis import rows
from holdfast.stores.redis.connection import VITAL, Connections
from holdfast.stores.redis.reading import Reader, names_of
from holdfast.stores.redis.rows import NUL, Stored
from holdfast.stores.redis.work import AT_ONCE, pairs, read_rows

NAMED_MAX = 20  # jobs without a row: an eviction may have taken thousands
SCAN_AT_ONCE = 500  # keys that the server looks at in one piece

# The type of each key, by its name up to the first colon.
TYPES = {
    **dict.fromkeys(("j", "b", "torn"), "string"),
    **dict.fromkeys(
        ("meta", "keys", "holds", "workers", "locks", "recent", "queues", "set", "booked", "cursors"), "hash"
    ),
    **dict.fromkeys(("schedules", "duties", "published", "tokens", "batches", "incarnations", "doubts", "bad"), "hash"),
    **dict.fromkeys(("s", "sg", "br", "er", "cr", "ended", "lost"), "hash"),
    **dict.fromkeys(("l", "f", "q", "g", "d", "x", "e", "ks", "fp", "wf", "bm", "v", "ro"), "zset"),
    **dict.fromkeys(
        ("leases", "waits", "expiries", "dependents", "enrolled", "gone", "acts", "slots", "passed"), "zset"
    ),
    **dict.fromkeys(("crashes", "hold_names", "batch_names", "batches_open", "batches_opened"), "zset"),
    **dict.fromkeys(("alive", "held", "asked", "pg", "after", "kinds", "grouped", "pairs"), "set"),
    **dict.fromkeys(("h", "claims", "deltas"), "list"),
}


def found_wrong(db: Connections, read: Reader) -> list[str]:
    """See `Store.check`."""
    if wrong := _of_wrong_type(db, list(VITAL)):
        return wrong
    db.ask()
    alive: dict[str, set[str]] = defaultdict(set)
    lost: set[str] = set()
    for names in _scanned(db):
        wrong += _of_wrong_type(db, names)
        for name in names:
            if name.startswith("x:"):
                lost |= _without_row(db, name)
        ids = [name[2:] for name in names if name.startswith("j:")]
        for start in range(0, len(ids), AT_ONCE):
            page = read.stored(ids[start : start + AT_ONCE])
            wrong += _wrong_jobs(db, read, ids[start : start + AT_ONCE], page)
            for each in page:
                if (key := rows.live_key(each.job)) is not None:
                    alive[key].add(each.job.id)
    wrong += [f"key {key!r} has {len(jobs)} live jobs" for key, jobs in alive.items() if len(jobs) > 1]
    wrong += [f"job {job_id} is stored, and has lost its row" for job_id in sorted(lost)[:NAMED_MAX]]
    if len(lost) > NAMED_MAX:
        wrong.append(f"{len(lost) - NAMED_MAX:,} more jobs are stored, and have lost their rows")
    wrong += _stray(db, read)
    try:
        bad = pairs(db.ask(("HGETALL", "bad"))[0])
        wrong += [f"a write failed, {times.decode()} times: {each.decode()!r}" for each, times in bad]
    except StoreDamaged as error:
        wrong.append(str(error))
    return wrong


def _scanned(db: Connections) -> Iterator[list[str]]:
    """Yield the names of all keys of the store, without the prefix, in pages. One may come twice."""
    prefix = db.options.prefix
    pattern = "".join(f"\\{each}" if each in "*?[]\\" else each for each in prefix) + "*"
    cursor: bytes | int = 0
    while True:
        [answer] = db.send(("SCAN", cursor, "MATCH", pattern, "COUNT", SCAN_AT_ONCE))
        if isinstance(answer, exceptions.RedisError):
            raise db.explain(answer) from answer
        cursor, found = answer
        yield [name.removeprefix(prefix) for name in names_of(found)]
        if int(cursor) == 0:
            return


def _without_row(db: Connections, key: str) -> set[str]:
    """Return the jobs of a set by arrival that have no row: a server that evicts has deleted it."""
    lost: set[str] = set()
    below = "+inf"
    try:
        while page := db.ask(("ZRANGE", key, below, "-inf", "BYSCORE", "REV", "LIMIT", 0, AT_ONCE, "WITHSCORES"))[0]:
            names = names_of(page[::2])
            rows_there = db.ask(*(("EXISTS", f"j:{name}") for name in names))
            doubted = [name for name, there in zip(names, rows_there, strict=True) if not there]
            stored = db.ask(("ZMSCORE", key, *doubted))[0] if doubted else []  # a deleted job is not there any more
            lost |= {name for name, score in zip(doubted, stored, strict=True) if score is not None}
            below = f"({page[-1].decode()}"
    except StoreDamaged:
        return lost  # its type is named already
    return lost


def _of_wrong_type(db: Connections, names: list[str]) -> list[str]:
    wrong = []
    types = db.look(*(("TYPE", name) for name in names)) if names else []
    for name, found in zip(names, types, strict=True):
        kind, has = TYPES.get(name.partition(":")[0]), found.decode()
        if name.startswith("ro:") and name.count(":") > 1:
            kind = "hash"
        shown = (db.options.prefix + name).replace(NUL, " ")
        if kind is None:
            wrong.append(f"key {shown!r} is not one of Holdfast's: another program uses the same prefix")
        elif has not in (kind, "none"):  # none: it was deleted meanwhile
            wrong.append(f"key {shown!r} is a {has} and must be a {kind}: another program has written it")
    return wrong


def _wrong_jobs(db: Connections, read: Reader, ids: list[str], page: list[Stored]) -> list[str]:
    readable = {each.job.id for each in page}
    lost = [job_id for job_id in ids if job_id not in readable]
    wrong = []
    if lost:  # unreadable, or deleted meanwhile
        still = zip(lost, read_rows(db, lost)[1], strict=True)
        wrong += [f"the row of job {job_id} cannot be read" for job_id, (row, job) in still if row and job is None]
    # Rows change meanwhile; what is wrong twice is wrong.
    doubted = [each.job.id for each in page if any(_missing(db, [each]))]
    wrong += _missing(db, read.stored(doubted))
    for each in page:
        wrong += [f"job {each.job.id} {violation}" for violation in transitions.violations(each.job)]
    return wrong


def _missing(db: Connections, page: list[Stored]) -> list[str]:
    """Say which entries of these jobs are not in their indexes."""
    wanted: list[tuple[str, str, str, float | None]] = []
    passed = _passed_by(db, page)
    for each in page:
        job = each.job
        wanted += [(job.id, place.key, place.member, place.score) for place in rows.places_of(job, each.seq)]
        if job.state is State.READY and job.id not in passed:
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


def _passed_by(db: Connections, page: list[Stored]) -> set[str]:
    """Return the jobs that claims have passed by after their expiry: they wait for their end outside their lanes."""
    may_be = [each.job.id for each in page if each.job.state is State.READY and each.job.expires_at is not None]
    found = db.ask(*(("ZSCORE", "passed", name) for name in may_be)) if may_be else []
    return {name for name, score in zip(may_be, found, strict=True) if score is not None}


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
