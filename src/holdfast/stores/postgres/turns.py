"""Queues with limits, a rate or groups: their part of a claim, and how limits come into force.

The function `claim_by_turns` does the work in the server. This process only remembers which queues need it, and, for
queues without limits, the group that had the last turn here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from holdfast.core import limits
from holdfast.core.limits import Queue
from holdfast.core.records import Job, NewJob
from holdfast.stores import row_json
from holdfast.stores.postgres.connection import Connections, Cursor

ASKED_AT_ONCE = 4  # queues that a claim asks without looking first which of them can start something
# How long claims pass by a queue whose row is locked: to find that out takes 0.1 s, at the cost of other queues. Other
# claims free the row at once; a row that stays locked is locked by another program.
PASSED_BY_S, PASSED_BY_MAX_S = 0.2, 1.0


class _Answer(msgspec.Struct, frozen=True):
    """The answer of the function `claim_by_turns`; its comment has the states."""

    state: str
    ids: list[list[str]] = []
    whole: bool = True
    by_turns: bool = True
    turns: dict[str, str] = {}


_answers = msgspec.json.Decoder(_Answer)


class Taken(NamedTuple):
    """The jobs that one queue gave. given: this claim was answered before. gone: the worker is not enrolled."""

    ids: Sequence[str] = ()
    whole: bool = True
    given: bool = False
    gone: bool = False


class _PassedBy(NamedTuple):
    until: float
    next_s: float


class Turns:
    """One for each store of a process; threads may share it."""

    def __init__(self, q: Connections, hot: Connections) -> None:
        self._q = q
        self._hot = hot
        self.queues: set[str] = set()  # those that the statement `claim` leaves alone, as far as this process knows
        self._cursors: dict[str, dict[str, str]] = {}  # of queues without limits: by priority
        self._locked: dict[str, _PassedBy] = {}
        self._grouped: set[str] = set()  # queues that are known to have had jobs with groups

    # ------------------------------------------------------------------------------------------ claims

    def take(self, db: Cursor, queue: str, wanted: int, asked: dict[str, Any], now: float) -> Taken:
        """Claim up to `wanted` jobs from the queue; `asked` as for the statement `claim`, with `started`."""
        bounds = {"probes": limits.PROBES_MAX, "spare": limits.SPARE_GROUPS}
        cursors = row_json.encode(self._cursors.get(queue, {})).decode()
        values = {**asked, **bounds, "queue": queue, "wanted": wanted, "cursors": cursors}
        answer = self._ask(db, {**values, "row_locked": False})
        if answer.state == "refused":
            with db.connection.transaction():
                db.execute(self._hot["claim_locked"], values, prepare=False)
                answer = self._ask(db, {**values, "row_locked": True})
        if answer.state in ("gone", "refused"):
            return Taken(gone=True)
        if answer.state == "locked":
            before = self._locked.get(queue)
            pause_s = before.next_s if before else PASSED_BY_S
            self._locked[queue] = _PassedBy(now + pause_s, min(2 * pause_s, PASSED_BY_MAX_S))
        else:
            self._locked.pop(queue, None)
        if not answer.by_turns:
            self.queues.discard(queue)
        if answer.turns:
            self._cursors[queue] = {**self._cursors.get(queue, {}), **answer.turns}
        ids = [job_id for page in answer.ids for job_id in page]
        return Taken(ids, answer.whole, given=answer.state == "given")

    def is_passed_by(self, queue: str, now: float) -> bool:
        """Say whether the row of the queue was locked a moment ago."""
        passed_by = self._locked.get(queue)
        return passed_by is not None and passed_by.until > now

    def worth_asking(self, db: Cursor, queues: Sequence[str], asked: dict[str, Any]) -> tuple[list[str], list[str]]:
        """Return the queues that can start something now, as each of the others would cost a call; and those of them
        from which jobs may be claimed ahead."""
        known = [queue for queue in queues if queue in self.queues]
        if len(known) <= ASKED_AT_ONCE:
            return list(queues), list(queues)
        waiting = {**asked, "queues": known, "lanes": None, "sleeps": False}
        _, _, server, set_for, firsts = self._hot.row(db.execute(self._hot["due"], waiting, prepare=True))
        wall = asked["wall"] if asked["wall"] is not None else server / 1e6
        found = row_json.queues_from(set_for or "[]")
        starts = starts_of(found, firsts or "{}", wall)
        late = {queue.name for queue in found if starts.get(queue.name, math.inf) > wall}
        due = [queue for queue in known if queue not in late]
        full = self._hot.row(db.execute(self._hot["claim_full"], {"queues": due}, prepare=True))[0] if due else "[]"
        worth = [queue for queue in queues if queue not in late.union(row_json.names_from(full))]
        limited = {queue.name for queue in found if queue.limits.any}
        return worth, [queue for queue in worth if queue not in limited]

    def _ask(self, db: Cursor, values: dict[str, Any]) -> _Answer:
        row = self._hot.row(db.execute(self._hot["claim_by_turns"], values, prepare=True))
        return _answers.decode(row[0])

    def rows(self, db: Cursor, ids: Sequence[str], values: dict[str, Any]) -> list[Job]:
        """Read the jobs that were claimed, after the commit: a client that is slow to take them holds no lock."""
        if not ids:
            return []
        row = self._hot.row(db.execute(self._hot["claim_rows"], {**values, "ids": list(ids)}, prepare=True))
        return row_json.jobs_from(row[0])

    def ghosts(self, queues: Sequence[str], instants: dict[str, float | None]) -> list[Job]:
        """Return the overdue holders of places; see the protocol."""
        known = row_json.queues_from(self._q.one("queues", {"queue": None})[0])
        counting = [queue.name for queue in known if queue.name in queues and queue.limits.counts]
        if not counting:
            return []
        page = self._hot.one("ghosts", {**instants, "queues": counting, "limit": limits.GHOSTS_MAX})
        ends = row_json.floats_from(page[1])
        return [replace(job, lease_until=ends[job.id]) for job in row_json.jobs_from(page[0])]

    # ---------------------------------------------------------------------------------------- settings

    def note_groups(self, jobs: Sequence[NewJob]) -> None:
        """Have claims look for groups in these queues, before the first job with a group is there. In a transaction of
        its own: that of the jobs may stay open for long."""
        if new := {job.queue for job in jobs if job.group is not None} - self._grouped:
            values = {"queues": sorted(new), "channel": self._q.channel}
            self._q.run(lambda db: db.execute(self._q["add_grouped"], values, prepare=False))
            self._grouped |= new

    def set_queue(
        self, name: str, change: Callable[[Queue], Queue], actor: str | None, note: str | None, wall: float | None
    ) -> None:
        """Change what is set for a queue.

        When it returns, every claim that did not see the limits has ended or will take nothing, and all that runs is
        counted.
        """

        def set_queue(db: Cursor) -> None:
            with db.connection.transaction():
                self._set_queue(db, name, change, actor, note, wall)

        self._q.run(set_queue)

    def _set_queue(
        self,
        db: Cursor,
        name: str,
        change: Callable[[Queue], Queue],
        actor: str | None,
        note: str | None,
        wall: float | None,
    ) -> None:
        q, values = self._q, {"queue": name}

        def do(statement: str, **more: Any) -> Cursor:
            return db.execute(q[statement], {**values, **more}, prepare=False)

        do("limit_row")
        do("limit_lock")
        [before] = row_json.queues_from(q.row(do("queues"))[0])
        after = change(before)
        held = after.limits
        step_s = None if held.rate is None else held.rate.step_s
        facts = {"limit": held.limit, "group_limit": held.group_limit, "rate_step_s": step_s, "burst": held.burst}
        do("limit", **row_json.queue(after), **facts, by_turns=after.takes_turns)
        if before.paused_groups != after.paused_groups:
            do("limit_resume")
            do("limit_pause", groups=row_json.encode(after.paused_groups).decode())
        if held.any and before.limits != held:
            do("limit_alone")
            do("limit_rows_locked")
            do("limit_workers")
        if held.counts and before.limits != held:
            do("limit_counted")
        lines = row_json.journal_lines("", 0, None, limits.events(before, after, actor, note))
        if lines:
            do("settle_journal", events=row_json.encode(lines).decode(), wall=wall)
        do("limit_tell", channel=q.channel)


def earliest_of_all(earliest: float | None, set_for: str, firsts: str, wall: float) -> float | None:
    """Return when the first job is due. earliest: of plain queues. set_for: the others. firsts: their earliest jobs."""
    instants = starts_of(row_json.queues_from(set_for), firsts, wall).values()
    return min(instants if earliest is None else [earliest, *instants], default=None)


def starts_of(queues: Sequence[Queue], firsts: str, wall: float) -> dict[str, float]:
    """Return from when on each of these queues may start a job, without those that wait for a job or for a person."""
    first, starts = row_json.instants_from(firsts), {}
    for queue in queues:
        if (run_at := first.get(queue.name)) is not None and (opens_at := queue.opens_at(wall)) is not None:
            starts[queue.name] = max(run_at, opens_at)
    return starts
