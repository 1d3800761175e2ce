"""Carry out an enqueue, a claim and a settlement on a connection."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import lru_cache
from operator import itemgetter
from typing import Any, cast

from psycopg import errors
from psycopg.pq import TransactionStatus

from holdfast.core.error_fingerprint import KEPT_S
from holdfast.core.limits import REPEATS_MAX
from holdfast.core.machine import ENDED, State
from holdfast.core.policy import Policy
from holdfast.core.records import Duty, Firing, Job, NewJob
from holdfast.core.row_text import Awaited
from holdfast.core.settlement import Settlement, own_event, stale_report
from holdfast.core.transitions import shares
from holdfast.core.verdict import Verdict
from holdfast.errors import StoreUnavailable, UsageError
from holdfast.stores import row_json
from holdfast.stores.postgres.claim_cursor import ClaimCursor
from holdfast.stores.postgres.connection import Connections, Cursor, Session
from holdfast.stores.postgres.turns import Turns
from holdfast.stores.protocol import Added, Reply, duty_lost

COPY_FROM = 100  # from this many jobs on, they are sent as a stream
PIECE = 100  # jobs that are written to it at once
FOLD_EVERY = 500  # the counts are added up after this many batches of endings
_BY_ID: Callable[[list[Any]], str] = itemgetter(0)
KEY_TRIES = 10  # a job that had a key may end before it is read
KEY_LOCK_MS = "100"  # how long a set of jobs waits for a key that another open transaction holds


def add(q: Connections, db: Cursor, jobs: Sequence[NewJob], wall: float | None) -> list[Added]:
    """Store the jobs whose id is new and whose key is free; say for each which one is stored."""
    awaits = any(job.awaits for job in jobs)
    if len(jobs) >= COPY_FROM and not awaits and _copy(q, db, jobs, wall):
        return [Added(job.id, False) for job in jobs]
    for _ in range(KEY_TRIES):
        try:
            if len(jobs) == 1 and not awaits:  # one statement stores it, or nothing
                return add_now(q, db, jobs, wall)
            with db.connection.transaction():
                return add_now(q, db, jobs, wall)
        except KeyFreed:
            continue  # with nothing stored: holding one key while waiting for an earlier one could deadlock
    raise key_changed(q)


def add_to_batch(
    q: Connections, db: Cursor, jobs: Sequence[NewJob], wall: float | None, batch: str
) -> list[Added] | None:
    """Store the jobs as those of a batch; None if nothing can be added to it any more."""
    for _ in range(KEY_TRIES):
        try:
            with db.connection.transaction():
                if db.execute(q["batch_add"], {"id": batch, "wall": wall}, prepare=False).rowcount == 0:
                    return None
                return add_now(q, db, jobs, wall, batch) if jobs else []
        except KeyFreed:
            continue
    raise key_changed(q)


def key_changed(q: Connections) -> StoreUnavailable:
    return StoreUnavailable(
        f"{q.options.shown}: could not determine which job holds the key, because it changed 10 times; repeat the call"
    )


def add_one(q: Connections, db: Cursor, job: NewJob, wall: float | None) -> tuple[list[Added], int | None]:
    """Store a job with a session of our own; return how often workers have gone to sleep, or None if nobody looked."""
    head = (job.id, job.task, job.queue, job.payload, job.key, job.priority, job.run_at)
    belongs = (job.workflow, job.parent, job.group, job.callbacks)
    values = (*head, wall, job.delay_s, wall, *_policy(job.policy), *belongs, wall, job.expires_s, job.tags, job.meta)
    if q.pooled:
        row = db.execute(q["add_one"], values).fetchone()
    else:
        row = cast(Session, db.connection).first_row(b"add_one", q.add_one, [_text(value) for value in values])
    if row is None:
        return add(q, db, [job], wall), None
    slept = row[0]
    return [Added(job.id, False)], int(slept) if slept is not None else None


def _text(value: Any) -> bytes | None:
    """Write a value as the server reads it."""
    if value is None:
        return None
    return value.encode() if isinstance(value, str) else repr(value).encode()


class KeyFreed(Exception):
    """A job that had a key has ended before it could be read."""


def add_now(
    q: Connections, db: Cursor, jobs: Sequence[NewJob], wall: float | None, batch: str | None = None
) -> list[Added]:
    """Store the jobs once; raise `KeyFreed` if a job that had a key has ended since."""
    answers = _add_rows(q, db, jobs, wall, batch)
    if rows := row_json.awaiting(jobs, answers):
        db.execute(q["add_awaiting"], {"jobs": rows}, prepare=False)
    return answers


def _add_rows(q: Connections, db: Cursor, jobs: Sequence[NewJob], wall: float | None, batch: str | None) -> list[Added]:
    rows = row_json.encode([row_json.new_job(job) for job in jobs]).decode()
    row = q.row(db.execute(q["add"], {"jobs": rows, "wall": wall, "batch": batch}))
    check_path(row[1])
    new = row_json.names_from(row[0])
    if len(new) == len(jobs):
        return [Added(job.id, False) for job in jobs]
    row = q.row(db.execute(q["add_holders"], {"jobs": rows}, prepare=False))
    stored = [name for name in row_json.names_or_nulls_from(row[0]) if name is not None]
    if len(stored) < len(jobs):
        raise KeyFreed
    return _answers(jobs, stored, set(new))


def check_path(leads_to_ours: bool) -> None:
    """Refuse what was done with functions that are not PostgreSQL's own; the caller of this undoes it. A session of
    ours has its search_path pinned, but that of a caller's connection may be set at any time."""
    if not leads_to_ours:
        raise UsageError(
            "the connection's search_path names other schemas before pg_catalog: their functions would take the "
            "place of PostgreSQL's own. Leave pg_catalog out of it, or put it first"
        )


def _copy(q: Connections, db: Cursor, jobs: Sequence[NewJob], wall: float | None) -> bool:
    """Send the jobs as a stream; if any id or key is taken, store none and say so."""
    alone = db.connection.info.transaction_status == TransactionStatus.IDLE  # then the stream is a transaction itself
    try:
        with nullcontext() if alone else db.connection.transaction():
            added_at: float = q.row(db.execute(q["now"]))[0] / 1e6 if wall is None else wall
            if sum(job.key is not None for job in jobs) > 1:
                _copy_by_key(q, db, jobs, added_at)
            else:
                with db.copy(q["add_copy"]) as stream:
                    for first in range(0, len(jobs), PIECE):  # the server works on one while we write the next
                        stream.write("".join(_copy_lines(jobs[first : first + PIECE], added_at)))
            if not alone:
                check_path(q.row(db.execute(q["add_path"]))[0])
    except errors.UniqueViolation:
        return False
    return True


def _copy_by_key(q: Connections, db: Cursor, jobs: Sequence[NewJob], added_at: float) -> None:
    """Send the jobs in the order of their keys, as `add` does; their numbers follow the call."""
    numbers = row_json.numbers_from(q.row(db.execute(q["add_numbers"], {"many": len(jobs)}))[0])
    ordered = sorted(zip(numbers, jobs, strict=True), key=lambda each: (each[1].key or "", each[0]))
    lines = _copy_lines([job for _, job in ordered], added_at)
    with db.copy(q["add_copy_numbered"]) as stream:
        stream.write("".join([f"{number}\t{line}" for (number, _), line in zip(ordered, lines, strict=True)]))


def _copy_lines(jobs: Sequence[NewJob], wall: float) -> list[str]:
    """Write jobs as COPY reads them: tabs in between, and what would be taken for one escaped. Most have the task, the
    policy and the instant of the one before."""
    lines, last, tail, now = [], None, "", f"{wall!r}\t{wall!r}"
    for job in jobs:
        if last is None or job.policy is not last.policy or job.workflow != last.workflow:
            tail = _tail(job.policy, job.workflow)
        last = job
        when = now if job.run_at is None and not job.delay_s else f"{_run_at(job, wall)!r}\t{wall!r}"
        key = r"\N" if job.key is None else _escaped(job.key)
        names = f"{_escaped(job.id)}\t{_escaped(job.task)}\t{_escaped(job.queue)}\t{_escaped(job.payload)}"
        belongs = f"{_text_or_null(job.parent)}\t{_text_or_null(job.group)}\t{_text_or_null(job.callbacks)}"
        expires = r"\N" if job.expires_s is None else repr(wall + job.expires_s)
        labels = f"{_text_or_null(job.tags)}\t{_text_or_null(job.meta)}"
        lines.append(f"{names}\t{key}\t{job.priority}\t{when}\t{tail}{belongs}\t{expires}\t{labels}\n")
    return lines


def _run_at(job: NewJob, wall: float) -> float:
    return job.run_at if job.run_at is not None else wall + job.delay_s


def _escaped(text: str) -> str:
    return text.translate(_ESCAPES) if _special(text) else text


@lru_cache(maxsize=256)
def _policy(policy: Policy) -> tuple[Any, ...]:
    return tuple(row_json.policy(policy))


@lru_cache(maxsize=256)
def _tail(policy: Policy, workflow: bool) -> str:
    values = [*row_json.policy(policy), workflow]
    return "\t".join(r"\N" if value is None else str(value) for value in values) + "\t"


def _text_or_null(text: str | None) -> str:
    return r"\N" if text is None else text.translate(_ESCAPES)


_ESCAPES = str.maketrans({"\\": r"\\", "\t": r"\t", "\n": r"\n", "\r": r"\r"})
_special = re.compile(r"[\\\t\n\r]").search


def _answers(jobs: Sequence[NewJob], stored: list[str], new: set[str]) -> list[Added]:
    """Say for each wanted job which one is stored; the second of two in one batch existed too."""
    answers = []
    for job, name in zip(jobs, stored, strict=True):
        answers.append(Added(name, name != job.id or name not in new))
        new.discard(name)
    return answers


def claim(
    q: Connections,
    db: Cursor,
    frontier: ClaimCursor,
    by_turns: Turns,
    now: float,
    values: dict[str, Any],
    limit: int,
    ahead: int,
) -> list[Job] | None:
    """Claim up to `limit` jobs and up to `ahead` more; None when the worker is not enrolled. `now` is only compared.

    With one queue that is one statement. With several, each gets an even share first, and the rest goes to a queue that
    has more, in the queues' order: up to two statements for each of the two numbers. A queue with limits, a rate or
    groups is asked by itself.
    """
    run = _Claim(q, db, frontier, by_turns, now, values)
    queues, has_plain_shares = values["queues"], False
    if by_turns.queues.isdisjoint(queues):
        for most, further, even in _plan(len(queues), limit, ahead, run.jobs):
            if not run.plain(queues, most, further, even=even):
                return run.answer()
            if not by_turns.queues.isdisjoint(queues):  # this process had not heard of them
                has_plain_shares = True
                break
        if not has_plain_shares:
            return run.jobs
    queues, queues_ahead = by_turns.worth_asking(db, queues, values)
    for _ in range(REPEATS_MAX):
        if not run.share(queues, limit, started=True, has_plain_shares=has_plain_shares):
            return run.answer()
        if run.begun == limit and not run.share(queues_ahead, ahead, started=False):
            return run.answer()
        if run.begun or run.ahead or run.whole:
            break
        has_plain_shares, run.whole = False, True
    return run.answer()


class _Claim:
    """One claim, carried out in several statements. Its methods return False when there is nothing more to ask."""

    def __init__(
        self, q: Connections, db: Cursor, frontier: ClaimCursor, turns: Turns, now: float, values: dict[str, Any]
    ) -> None:
        self._q = q
        self._db = db
        self._frontier = frontier
        self._turns = turns
        self._now = now
        self._values = values
        self._first = True
        self.jobs: list[Job] = []
        self._ids: list[str] = []  # taken by turns; the rows are read at the end
        self.begun = self.ahead = 0  # how many jobs were taken to be started, and how many ahead
        self.whole = True
        self._is_gone = self._is_given = False

    def plain(self, queues: Sequence[str], most: int, further: int, *, even: bool) -> bool:
        """Claim from queues without limits, rates or groups."""
        lanes = self._frontier.lanes(self._now)
        asked = {**self._values, "queues": list(queues), "limit": most, "most": most + further, "even": even}
        row = _claim(self._q, self._db, {**asked, "first": self._first, "lanes": lanes})
        enrolled, self._is_given, took_s, found, ends, lines, by_turns = row
        self._is_gone = not enrolled
        if self._is_gone or self._is_given:
            return False
        self._frontier.looked(lanes, took_s, found, ends, self._now)
        given = row_json.jobs_from(lines)
        self.jobs += given
        self.begun += sum(job.started for job in given)
        self.ahead += sum(not job.started for job in given)
        self._first = False
        if by_turns is not None:
            self._turns.queues.update(row_json.names_from(by_turns))
        return True

    def share(self, queues: Sequence[str], most: int, *, started: bool, has_plain_shares: bool = False) -> bool:
        """Claim from any queues: an even share from each first, then whatever is left, in their order.

        has_plain_shares: those that are claimed in one statement have had theirs.
        """
        known, even_shares = frozenset(self._turns.queues), dict(shares(queues, most)[: len(queues)])
        plain = [queue for queue in even_shares if queue not in known]
        parts = [([queue], True) for queue in even_shares if queue in known]
        if plain and not has_plain_shares:
            parts.append((plain, True))
        rest = list(queues)
        while rest:
            part = list(itertools.takewhile(lambda queue: queue not in known, rest)) or rest[:1]
            parts.append((part, False))
            rest = rest[len(part) :]
        return all(self._part(part, most, even_shares if even else None, started=started) for part, even in parts)

    def _part(self, part: Sequence[str], most: int, even_shares: Mapping[str, int] | None, *, started: bool) -> bool:
        """Claim from one queue, or from several that take no turns as far as this process knows: the statement says
        which of them do by now, and they are asked after it."""

        def wanted(queues: Sequence[str]) -> int:
            left = most - (self.begun if started else self.ahead)
            return left if even_shares is None else min(left, sum(even_shares[queue] for queue in queues))

        plain = [queue for queue in part if queue not in self._turns.queues]
        if plain and (share := wanted(plain)) > 0:
            limit, ahead = (share, 0) if started else (0, share)
            if not self.plain(plain, limit, ahead, even=even_shares is not None):
                return False
        for queue in [queue for queue in part if queue in self._turns.queues]:
            share = wanted([queue])
            if share > 0 and not self._by_turns(queue, share, started=started):
                return False
        return True

    def _by_turns(self, queue: str, wanted: int, *, started: bool) -> bool:
        if self._turns.is_passed_by(queue, self._now):
            return True
        asked = {**self._values, "started": started, "first": self._first}
        taken = self._turns.take(self._db, queue, wanted, asked, self._now)
        self._is_gone, self._is_given = taken.gone, taken.given
        if taken.gone or taken.given:
            return False
        self._first = False
        self.whole = self.whole and taken.whole
        self._ids += taken.ids
        self.begun += len(taken.ids) if started else 0
        self.ahead += 0 if started else len(taken.ids)
        return True

    def answer(self) -> list[Job] | None:
        """Return the jobs; None when the worker is not enrolled."""
        if self._first and not self._is_gone and not self._is_given:  # no queue had a share
            self.plain([], 0, 0, even=True)
        if self._is_gone:
            return None
        if self._is_given:  # the answer was lost
            row = self._q.row(self._db.execute(self._q["claim_answers"], self._values, prepare=False))
            return row_json.jobs_from(row[0])
        found = self._turns.rows(self._db, self._ids, self._values)
        return sorted([*self.jobs, *found], key=lambda job: not job.started)


def _claim(q: Connections, db: Cursor, asked: dict[str, Any]) -> Any:
    """Claim, and ask once more if it was refused: the worker is not enrolled, or another transaction has locked its
    row."""
    row = q.row(db.execute(q["claim"], asked | {"row_locked": False}, prepare=True))
    if row[0]:
        return row
    with db.connection.transaction():
        db.execute(q["claim_locked"], asked, prepare=False)
        return q.row(db.execute(q["claim"], asked | {"row_locked": True}, prepare=True))


def _plan(queues: int, limit: int, ahead: int, jobs: list[Job]) -> Iterator[tuple[int, int, bool]]:
    """Yield what to ask for next: how many to start, how many ahead, whether in even shares. `jobs` has what came."""
    if queues == 1:
        yield limit, ahead, True
        if limit <= len(jobs) < limit + ahead:
            yield 0, limit + ahead - len(jobs), True  # what may not be claimed ahead stood before what may
        return
    yield limit, 0, True
    if len(jobs) < limit:
        yield limit - len(jobs), 0, False
    if len(jobs) == limit and ahead:
        yield 0, ahead, True
        if len(jobs) < limit + ahead:
            yield 0, limit + ahead - len(jobs), False


def settle(
    q: Connections, db: Cursor, settlements: Sequence[Settlement], wall: float | None, under: Duty | None = None
) -> list[Reply]:
    """Apply all whose lease is the current one, and say what stands in the way of the others."""
    if any(each.verdict.jobs or (each.parent is not None and each.verdict.state in ENDED) for each in settlements):
        return _settle_families(q, db, settlements, wall, under)
    answers: list[Reply] = []
    for part in _without_repeats(settlements):
        answers += _settle(q, db, part, wall, under)
    return answers


def _settle_families(
    q: Connections, db: Cursor, settlements: Sequence[Settlement], wall: float | None, under: Duty | None
) -> list[Reply]:
    """Settle, tell the workflows that have started these jobs, and store their callbacks, all in one commit.

    Those that have neither go with them: a commit of their own costs more than their locks do.
    """
    with db.connection.transaction():
        touched = {each.lease.job_id for each in settlements} | {each.parent for each in settlements if each.parent}
        locked = lock_rows(q, db, touched)
        waits = [not locked.isdisjoint((each.lease.job_id, each.parent)) for each in settlements]
        free = [each for each, must_wait in zip(settlements, waits, strict=True) if not must_wait]
        answers: list[Reply] = []
        for part in _without_repeats(free):
            answers += _settle(q, db, part, wall, under)
        news = [
            (each.parent, each.lease.job_id)
            for each, answer in zip(free, answers, strict=True)
            if answer is Reply.ACCEPTED and each.parent is not None and each.verdict.state in ENDED
        ]
        tell_parents(q, db, news, wall)
        done = [each.verdict for each, answer in zip(free, answers, strict=True) if answer is Reply.ACCEPTED]
        add_callbacks(q, db, done, wall)
    said = iter(answers)
    return [Reply.LOCKED if must_wait else next(said) for must_wait in waits]


def lock_rows(q: Connections, db: Cursor, ids: set[str]) -> set[str]:
    """Lock the rows of these jobs until the transaction ends; return those that another transaction has locked."""
    row = q.row(db.execute(q["locked"], {"ids": sorted(ids)}, prepare=False))
    return set(row_json.names_from(row[0]))


def tell_parents(q: Connections, db: Cursor, news: list[tuple[str, str]], wall: float | None) -> None:
    """Tell workflows that children of theirs have ended: the id of the workflow, and that of the child."""
    if news:
        ended = [(parent, Awaited("job", child).text) for parent, child in news]
        values = {"news": row_json.encode(ended).decode(), "wall": wall, "channel": q.channel}
        db.execute(q["signal_parents"], values, prepare=False)


def add_callbacks(q: Connections, db: Cursor, accepted: Sequence[Verdict], wall: float | None) -> None:
    """Store the jobs that follow from endings, and tell sleeping workers; one whose id is known is there already."""
    if jobs := [job for verdict in accepted for job in verdict.jobs]:
        rows = row_json.encode([row_json.new_job(job) for job in jobs]).decode()
        values = {"jobs": rows, "wall": wall, "batch": None}
        check_path(q.row(db.execute(q["add"], values, prepare=False))[1])
        queues = sorted({job.queue for job in jobs})
        db.execute(q["wake"], {"channel": q.channel, "queues": queues, "woken": [-1] * len(queues)}, prepare=False)


def _without_repeats(settlements: Sequence[Settlement]) -> Iterator[list[Settlement]]:
    """Split where a job comes again: one statement says nothing about the order of two attempts of one job."""
    if len({each.lease.job_id for each in settlements}) == len(settlements):
        yield list(settlements)
        return
    part: list[Settlement] = []
    seen: set[str] = set()
    for each in settlements:
        if each.lease.job_id in seen:
            yield part
            part, seen = [], set()
        part.append(each)
        seen.add(each.lease.job_id)
    yield part


def _settle(
    q: Connections, db: Cursor, settlements: list[Settlement], wall: float | None, under: Duty | None
) -> list[Reply]:
    plain: list[Settlement] = []
    others: list[Settlement] = []
    for each in settlements:
        (plain if under is None and _is_plain(each) else others).append(each)
    applied: set[str] = set()
    kept: set[str] = set()  # these were not locked, and something else stands in the way
    if plain:
        rows = sorted([row_json.success_row(each) for each in plain], key=_BY_ID)
        values = {"endings": row_json.encode(rows).decode(), "many": len(plain), "wall": wall}
        row = q.row(db.execute(q["settle_done"], values, prepare=True))
        if not others and row[1] is None:
            return [Reply.ACCEPTED] * len(settlements)
        applied |= _applied(row, plain, under)
    if others:
        rows = sorted([row_json.settlement_row(each) for each in others], key=_BY_ID)
        events = [line for each in others for line in _lines(each)]
        errors = [line for each in others if (line := row_json.error_line(each)) is not None]
        values = {
            "endings": row_json.encode(rows).decode(),
            "events": row_json.encode(events).decode(),
            "errors": row_json.encode(errors).decode(),
            "wall": wall,
            "channel": q.channel,
            **duty_token(under),
        }
        row = q.row(db.execute(q["settle"], values, prepare=True))
        applied |= _applied(row, others, under)
        kept = set(row_json.names_from(row[2]))
    left = [each for each in settlements if each.lease.job_id not in applied]
    answers = _refusals(q, db, left, kept, wall) if left else []
    why = dict(zip((each.lease.job_id for each in left), answers, strict=True))
    return [why.get(each.lease.job_id, Reply.ACCEPTED) for each in settlements]


def _is_plain(settlement: Settlement) -> bool:
    return row_json.is_plain_success(settlement) and not settlement.verdict.events


def _lines(settlement: Settlement) -> list[list[Any]]:
    lease, verdict = settlement.lease, settlement.verdict
    return row_json.journal_lines(lease.job_id, lease.fence, settlement.worker, verdict.events)


def _applied(row: Any, sent: list[Settlement], under: Duty | None) -> set[str]:
    allowed, names, *_ = row
    if not allowed:
        raise duty_lost(under)
    return {each.lease.job_id for each in sent} if names is None else set(row_json.names_from(names))


def _refusals(q: Connections, db: Cursor, refused: list[Settlement], kept: set[str], wall: float | None) -> list[Reply]:
    """Say why each of these was not applied, and write down who came back after its time. An attempt that has the
    current lease, and was not `kept`, was skipped: another transaction has locked its row."""
    tokens = {"tokens": row_json.encode([_token(each) for each in refused]).decode()}
    row = q.row(db.execute(q["settle_seen"], tokens, prepare=False))
    answers, events = [], []
    for settlement, found in zip(refused, row_json.rows_from(row[0]), strict=True):
        own, state, fence, renewed, before = found
        answer = Reply.REFUSED
        if own and state != "running":
            answer = Reply.ALREADY
        elif own and settlement.lease.job_id not in kept:
            answer = Reply.LOCKED
        elif own and not renewed:  # it was not as judged, even if it is so again by now
            answer = Reply.AGAIN
        elif not own and before:
            answer = Reply.ALREADY
        elif state is not None and not own and not settlement.verdict.raises_fence:  # not a reaper that is late
            event = stale_report(State(state), fence, reported=settlement.verdict.state)
            lease = settlement.lease
            events += row_json.journal_lines(lease.job_id, lease.fence, settlement.worker, (event,))
        answers.append(answer)
    if events:
        write_events(q, db, events, wall)
    return answers


def _token(settlement: Settlement) -> list[Any]:
    event, lease = own_event(settlement.verdict), settlement.lease
    kind = event.kind if event is not None else None
    detail = row_json.encode(event.detail).decode() if event is not None else None
    return [lease.job_id, lease.fence, lease.claim_id, kind, detail, settlement.seen_lease_until]


def write_events(q: Connections, db: Cursor, events: list[list[Any]], wall: float | None) -> None:
    """Write lines of the journal; a stale_report that is there already stays as it is."""
    db.execute(q["settle_journal"], {"events": row_json.encode(events).decode(), "wall": wall}, prepare=False)


def fold(q: Connections, db: Cursor, wall: float | None) -> None:
    """Add up what many settlements have counted."""
    db.execute(q["settle_fold"])
    db.execute(q["settle_fold_errors"], {"wall": wall, "kept_s": KEPT_S})
    db.execute(q["settle_fold_crashes"], {"wall": wall})


def duty_token(duty: Duty | None) -> dict[str, Any]:
    """Flatten what proves a duty."""
    if duty is None:
        return {"duty": None, "holder": None, "term": None}
    return {"duty": duty.name, "holder": duty.holder, "term": duty.term}


def firing_parts(firings: Sequence[Firing]) -> Iterator[list[Firing]]:
    """Split where a schedule or a job's key comes again: one statement would not see what it has just stored."""
    part: list[Firing] = []
    names: set[tuple[str, str]] = set()
    for each in firings:
        own = {("schedule", each.schedule)} | ({("key", each.job.key)} if each.job.key is not None else set())
        if not names.isdisjoint(own):
            yield part
            part, names = [], set()
        part.append(each)
        names |= own
    if part:
        yield part
