"""Reads of jobs, the journal and tables, in pages: no question keeps the server busy for long."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from holdfast.core import transitions
from holdfast.core.dependencies import Dependent, ids_of, waits_for_others
from holdfast.core.error_fingerprint import ErrorGroup, slot_of
from holdfast.core.machine import LIVE, State
from holdfast.core.records import Event, Filter, Job
from holdfast.stores import row_json
from holdfast.stores.redis.connection import Connections
from holdfast.stores.redis.figures import scored
from holdfast.stores.redis.rows import NUL, Stored
from holdfast.stores.redis.work import AT_ONCE, decode, event_of, pairs, read_rows

SAME_MAX = 1000  # how many jobs with the same score are put into the order in which they came
SEQ_DIGITS = 16  # of the number of arrival, with which a member of a lane begins
LATER_MAX = 1_000  # ready jobs that are not due, and that a list sorts; among more it walks


class Reader:
    """Reads what is stored, and changes nothing."""

    def __init__(self, db: Connections) -> None:
        self._db = db

    def stored(self, ids: Sequence[str]) -> list[Stored]:
        found: list[Stored] = []
        for start in range(0, len(ids), AT_ONCE):
            found += [each for _, each in read_rows(self._db, ids[start : start + AT_ONCE])[1] if each is not None]
        return found

    def rows(self, ids: Sequence[str]) -> list[Job]:
        return [each.job for each in self.stored(ids)]

    def table(self, key: str, kind: Any, names: Sequence[str] | None) -> dict[str, Any]:
        """Return the values of a hash, all or those with these names. One that cannot be read is left out."""
        if names is None:
            found = {name.decode(): row for name, row in pairs(self._db.ask(("HGETALL", key))[0])}
        else:
            rows_there = self._db.ask(("HMGET", key, *names))[0] if names else []
            found = {name: row for name, row in zip(names, rows_there, strict=True) if row is not None}
        values = {}
        for name, row in found.items():
            try:
                values[name] = decode(row, kind)
            except (msgspec.DecodeError, ValueError) as error:
                row_json.log_once(f"{key} {name!r} cannot be read and is left out: {error}")
        return values

    def until(self, key: str, latest: float, limit: int, skip: int = 0) -> list[Stored | None]:
        """Return the jobs of an index up to this score, the lowest first, and first come among equal ones."""
        if limit <= 0:
            return []
        page = ("BYSCORE", "LIMIT", 0, skip + limit, "WITHSCORES")
        found = list(scored(self._db.ask(("ZRANGE", key, "-inf", repr(latest), *page))[0]))
        if not found:
            return []
        last = found[-1][1]
        same = self._db.ask(("ZRANGE", key, last, last, "BYSCORE", "LIMIT", 0, skip + limit + SAME_MAX))[0]
        scores = {member.decode(): float(score) for member, score in [*found, *((each, last) for each in same)]}
        known = {each.job.id: each for each in self.stored(list(scores))}
        places = {name: known[name].seq if name in known else 0 for name in scores}
        ordered = sorted(scores, key=lambda name: (scores[name], places[name]))
        return [known.get(name) for name in ordered][skip : skip + limit]

    def find(self, where: Filter) -> list[Job]:
        """See `Store.find`."""
        if where.ids is not None:
            return self._among(where.ids, where)
        if where.worker is not None:
            return self._among(names_of(self._db.ask(("SMEMBERS", f"held:{where.worker}"))[0]), where)
        if where.later is not None and where.states == (State.READY,):
            later = self._later(where.later)
            if later is not None:
                return self._among(later, where)
        if where.key is not None:
            sets = [f"ks:{where.key}"]
        elif where.fingerprint is not None:
            sets = [f"fp:{where.fingerprint}"]
        elif where.workflow or where.asking:  # only a workflow asks
            sets = ["wf"]
        else:
            sets = self.sets(where.states, where.queue, where.task)
        found: list[Job] = []
        for job in self.by_arrival(sets, where.before, where.limit):
            if len(found) >= where.limit:
                break
            if transitions.matches(job, where):
                found.append(job)
        return found

    def _later(self, wall: float) -> list[str] | None:
        """Return the ready jobs that are not due by then; None if too many to sort: a walk soon meets some."""
        queues = sorted({pair.partition(b"\0")[0].decode() for pair in self._db.ask(("SMEMBERS", "pairs"))[0]})
        found = self._db.ask(*(("ZRANGE", f"d:{queue}", 0, -1) for queue in queues)) if queues else []
        lanes = [f"l:{queue}{NUL}{path.decode()}" for queue, paths in zip(queues, found, strict=True) for path in paths]
        after = (f"({wall!r}", "+inf")
        if not lanes or sum(self._db.ask(*(("ZCOUNT", lane, *after) for lane in lanes))) > LATER_MAX:
            return None if lanes else []
        pages = self._db.ask(*(("ZRANGE", lane, *after, "BYSCORE", "LIMIT", 0, LATER_MAX) for lane in lanes))
        return [name.decode()[SEQ_DIGITS:] for page in pages for name in page]

    def _among(self, ids: Sequence[str], where: Filter) -> list[Job]:
        """Return those of the named jobs that match, newest first."""
        known = [each for each in self.stored(list(dict.fromkeys(ids))) if transitions.matches(each.job, where)]
        newest = sorted(known, key=lambda each: -each.seq)
        if where.before is not None:
            before = self.stored([where.before])
            newest = [each for each in newest if before and each.seq < before[0].seq]
        return [each.job for each in newest][: where.limit]

    def sets(self, states: Sequence[State] = (), queue: str | None = None, task: str | None = None) -> list[str]:
        """Return the sets by arrival that have all jobs in these states, of this queue, of this task."""
        names = [pair.decode().split(NUL) for pair in self._db.ask(("SMEMBERS", "pairs"))[0]]
        wanted = [(of, what) for of, what in names if queue in (None, of) and task in (None, what)]
        return [f"x:{of}{NUL}{what}{NUL}{state.value}" for of, what in wanted for state in states or State]

    def by_arrival(self, sets: Sequence[str], before: str | None = None, page: int = AT_ONCE) -> Iterable[Job]:
        """Yield jobs of these sets, newest first, a page for each question."""
        below = "+inf"
        if before is not None:
            known = self.stored([before])
            if not known:
                return
            below = f"({known[0].seq}"
        while sets:
            found = self._db.run("newest", below, min(AT_ONCE, max(page, 1)), *sets)
            ids = names_of(found[1::2])
            if not ids:
                return
            yield from self.rows(ids)
            below = f"({found[-2]}"

    def counts(self) -> dict[str, dict[State, int]]:
        """See `Store.counts`."""
        sets = self.sets()
        sizes = self._db.ask(*(("ZCARD", each) for each in sets)) if sets else []
        counts: dict[str, dict[State, int]] = {}
        for each, size in zip(sets, sizes, strict=True):
            queue, _, state = each.removeprefix("x:").split(NUL)
            if size:
                of_queue = counts.setdefault(queue, {})
                of_queue[State(state)] = of_queue.get(State(state), 0) + size
        return counts

    def errors(self, since: float, task: str | None, limit: int) -> list[ErrorGroup]:
        """See `Store.errors`."""
        slots = self._db.ask(("ZRANGE", "slots", slot_of(since), "+inf", "BYSCORE"))[0]
        pages = self._db.ask(*(("HGETALL", f"er:{slot.decode()}") for slot in slots)) if slots else []
        found: dict[tuple[str, str], ErrorGroup] = {}
        for page in pages:
            for one in _error_groups(page):
                if task in (None, one.task):
                    known = found.get((one.task, one.fingerprint))
                    found[one.task, one.fingerprint] = one if known is None else _together(known, one)
        return sorted(found.values(), key=lambda each: (-each.attempts, -each.last_at, each.task, each.fingerprint))[
            :limit
        ]

    def journal(
        self, job_id: str | None, kinds: Sequence[str], limit: int, since: float | None, before: int | None
    ) -> list[Event]:
        """See `Store.journal`."""
        if job_id is not None:
            events = self.journals([job_id], 1_000_000).get(job_id, [])
            wanted = [event for event in events if not kinds or event.kind in kinds]
            wanted = [event for event in wanted if since is None or event.at >= since]
            return [event for event in wanted if before is None or event.seq < before][:limit]
        found: list[Event] = []
        for event in self._backwards([f"v:{kind}" for kind in kinds or self._kinds()], before) if limit else ():
            if since is not None and event.at < since:
                continue  # the wall clock may have been set
            found.append(event)
            if len(found) == limit:
                break
        return found[::-1]

    def journals(self, job_ids: Sequence[str], limit: int) -> dict[str, list[Event]]:
        """See `Store.journals`."""
        found: dict[str, list[Event]] = {}
        for start in range(0, len(job_ids), AT_ONCE):
            page = job_ids[start : start + AT_ONCE]
            for job_id, lines in zip(page, self._db.run("history", limit, *page), strict=True):
                if lines:
                    found[job_id] = [event_of(line) for line in lines]
        return found

    def dependents(self, on: Sequence[str] | None, after: str, limit: int) -> list[Dependent]:
        """See `Store.dependents`."""
        if on is None:
            least = f"({after}" if after else "-"
            ids = names_of(self._db.ask(("ZRANGE", "dependents", least, "+", "BYLEX", "LIMIT", 0, limit))[0])
        else:
            pages = self._db.ask(*(("SMEMBERS", f"after:{each}") for each in on)) if on else []
            ids = sorted({name for page in pages for name in names_of(page) if name > after})[:limit]
        jobs = [job for job in self.rows(ids) if waits_for_others(job)]
        awaited = self.rows(list(dict.fromkeys(each for job in jobs for each in ids_of(job.awaits))))
        live = {job.id for job in awaited if job.state in LIVE}
        return [Dependent(job.id, live.isdisjoint(ids_of(job.awaits))) for job in jobs]

    def audit(self, limit: int, since: float | None, before: int | None, actor: str | None) -> list[Event]:
        """See `Store.audit`."""
        found: list[Event] = []
        for event in self._backwards(["acts"], before):
            if since is not None and event.at < since:
                break
            if actor in (None, event.actor):
                found.append(event)
            if len(found) == limit:
                break
        return found[::-1] if limit else []

    def _kinds(self) -> list[str]:
        return sorted(names_of(self._db.ask(("SMEMBERS", "kinds"))[0]))

    def lines(self, kinds: Sequence[str]) -> list[Event]:
        """Return all events of these kinds, oldest first."""
        return list(self._backwards([f"v:{kind}" for kind in kinds], None))[::-1]

    def _backwards(self, sets: Sequence[str], before: int | None) -> Iterable[Event]:
        """Yield lines of the journal, newest first."""
        below = "+inf" if before is None else f"({before}"
        while sets:
            found = self._db.run("newest", below, 500, *sets)
            if not found:
                return
            lines = found[1::2]
            if list(sets) == ["acts"]:
                lines = self._acts(lines)
            yield from (event_of(line) for line in lines)
            below = f"({found[-2]}"

    def _acts(self, names: Sequence[bytes]) -> list[bytes]:
        wanted = [(each[:16].decode(), each[16:].decode()) for each in names]
        pages = self._db.ask(*(("ZRANGE", f"v:{kind}", number, number, "BYSCORE") for number, kind in wanted))
        return [line for page in pages for line in page]


def names_of(found: Iterable[bytes]) -> list[str]:
    """Return names as text."""
    return [each.decode() for each in found]


def _error_groups(page: Any) -> Iterable[ErrorGroup]:
    found = {name.decode(): text for name, text in pairs(page)}
    for name, number in found.items():
        if name.startswith("n"):
            task, fingerprint, release = name[1:].split(NUL)
            kind, origin, message, first_at = decode(found[f"f{name[1:]}"], list[Any])
            last_at, _, job_id = found[f"l{name[1:]}"].decode().partition(" ")
            releases = [release] if release else []
            said = (kind, origin, message, int(number), first_at, float(last_at), releases, job_id)
            yield ErrorGroup(task, fingerprint, *said)


def _together(one: ErrorGroup, other: ErrorGroup) -> ErrorGroup:
    last = max(one, other, key=lambda each: (each.last_at, each.job_id))
    return ErrorGroup(
        *(one.task, one.fingerprint, one.kind, one.origin, one.message),
        one.attempts + other.attempts,
        min(one.first_at, other.first_at),
        last.last_at,
        sorted({*one.releases, *other.releases}),
        last.job_id,
    )
