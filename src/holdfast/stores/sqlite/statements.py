"""Carry out an enqueue, a claim, a settlement and a deletion inside their transaction."""

from __future__ import annotations

import sqlite3
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.core import limits, rollups
from holdfast.core.acts import Move
from holdfast.core.error_fingerprint import KEPT_S, slot_of
from holdfast.core.limits import Queue
from holdfast.core.machine import ENDED, LIVE, State
from holdfast.core.records import Duty, NewEvent, NewJob, Seen
from holdfast.core.row_text import ANSWER, Awaited
from holdfast.core.settlement import Settlement, is_as_judged, own_event, stale_report
from holdfast.core.transitions import shares
from holdfast.core.verdict import Verdict
from holdfast.stores import row_json
from holdfast.stores.protocol import Added, Reply, duty_lost
from holdfast.stores.sqlite import contradictions, turns
from holdfast.stores.sqlite.rows import Executes, Q, any_text


def add(db: Executes, jobs: Sequence[NewJob], wall: float, batch: str | None = None) -> list[Added]:
    """Store the jobs whose id is new and whose key is free; say for each which one is stored."""
    return NewRows(jobs, batch).add(db, wall)


class NewRows:
    """Jobs as the statements take them: written before anybody waits for the write lock."""

    def __init__(self, jobs: Sequence[NewJob], batch: str | None = None) -> None:
        self._jobs = jobs
        self._batch = batch
        self._first = row_json.new_job(jobs[0])
        self._awaits = any(job.awaits for job in jobs)
        self._is_one = len(jobs) == 1 and batch is None
        self._are_alike = len(jobs) > 1 and batch is None and row_json.are_alike(jobs)
        if self._are_alike:
            self._rows = row_json.encode([row_json.own_part(job) for job in jobs]).decode()
        else:
            self._rows = "" if self._is_one else self._all_values()

    def _all_values(self) -> str:
        return row_json.encode([row_json.new_job(job) for job in self._jobs]).decode()

    def add(self, db: Executes, wall: float) -> list[Added]:
        """Store them; see the function `add`."""
        jobs = self._jobs
        id, task, queue, payload, key, priority, run_at, delay_s, *rest, expires_s, tags, meta = self._first
        rest += [None if expires_s is None else wall + expires_s, tags, meta]
        if self._is_one:
            one = [id, task, queue, payload, key, priority, run_at, wall, delay_s, wall, *rest]
            stored = db.execute(Q["add_one"], one)
        elif self._are_alike:
            alike = [task, queue, priority, run_at, wall, delay_s, wall, *rest, self._rows]
            stored = db.execute(Q["add_alike"], alike)
        else:
            stored = db.execute(Q["add"], {"jobs": self._rows, "wall": wall, "batch": self._batch})
        if grouped := {job.queue for job in jobs if job.group is not None}:
            db.execute(Q["add_grouped"], {"queues": row_json.encode(sorted(grouped)).decode()})
        answers = self._answers(db, stored)
        if self._awaits and (rows := row_json.awaiting(jobs, answers)):
            db.execute(Q["add_awaiting"], {"jobs": rows})
        return answers

    def _answers(self, db: Executes, stored: sqlite3.Cursor) -> list[Added]:
        jobs = self._jobs
        if stored.rowcount == len(jobs):
            return [Added(job.id, False) for job in jobs]
        # Rows are numbered without gaps inside a transaction: what lies below the new ones was there before.
        last = (stored.lastrowid or 0) - stored.rowcount if stored.rowcount else sys.maxsize
        rows = {"jobs": self._all_values(), "last": last}
        return _answers(jobs, row_json.rows_from(db.execute(Q["add_answers"], rows).fetchone()[0]))


def _answers(jobs: Sequence[NewJob], found: list[list[Any]]) -> list[Added]:
    """Say for each wanted job which one is stored; the second of two in one batch existed too."""
    answers: list[Added] = []
    new: set[str] = set()
    for job, (stored, before) in zip(jobs, found, strict=True):
        answers.append(Added(stored, bool(before) or stored != job.id or stored in new))
        new.add(stored)
    return answers


def take(
    db: sqlite3.Connection,
    lanes: list[list[Any]],
    queues: Sequence[str],
    by_turns: Mapping[str, Queue],
    limit: int,
    values: dict[str, Any],
) -> tuple[int, bool]:
    """Claim up to `limit` jobs: an even share from each queue first, then whatever is left, in the queues' order.

    by_turns: the queues with limits, a rate or groups. Return how many, and whether all groups of these were looked at.
    """
    priorities: dict[str, list[int]] = {queue: [] for queue in queues}
    for queue, priority in lanes:
        priorities[queue].append(priority)
    taken, whole = 0, True
    for queue, share in shares(queues, limit):
        wanted = min(share, limit - taken)
        if queue in by_turns:
            got, saw_all = turns.take(db, by_turns[queue], wanted, values, move)
            taken += got
            whole = whole and saw_all
            continue
        for priority in sorted(priorities[queue], reverse=True):
            if wanted <= 0:
                break
            lane = {**values, "queue": queue, "priority": priority, "limit": wanted}
            got = contradictions.claim(db, "claim", lane, move)
            wanted -= got
            taken += got
        if wanted > 0:
            priorities[queue] = []  # it has no more to give
    return taken, whole


def apply(db: sqlite3.Connection, settlements: Sequence[Settlement], wall: float) -> int:
    """Apply the settlements whose lease is the current one; return how many that were."""
    plain: list[list[Any]] = []
    others: list[list[Any]] = []
    for each in settlements:
        if row_json.is_plain_success(each):
            plain.append(row_json.success_row(each))
        else:
            others.append(row_json.settlement_row(each))
    applied = 0
    if plain:
        applied += db.execute(Q["settle_done"], {"endings": row_json.encode(plain).decode(), "wall": wall}).rowcount
    if others:
        applied += db.execute(Q["settle"], {"endings": row_json.encode(others).decode(), "wall": wall}).rowcount
    return applied


def settle(db: sqlite3.Connection, settlements: Sequence[Settlement], wall: float) -> list[Reply]:
    """Apply all at once; if any is refused, undo that and go one by one to learn which."""
    db.execute("SAVEPOINT settle")
    if apply(db, settlements, wall) == len(settlements):
        _write_down(db, settlements, wall)
        answers = [Reply.ACCEPTED] * len(settlements)
    else:
        db.execute("ROLLBACK TO settle")
        answers = [_settle_one(db, settlement, wall) for settlement in settlements]
    for settlement, answer in zip(settlements, answers, strict=True):
        if settlement.parent is not None and answer is Reply.ACCEPTED and settlement.verdict.state in ENDED:
            reach(db, settlement.parent, Awaited("job", settlement.lease.job_id), wall)
    db.execute("RELEASE settle")
    return answers


def _settle_one(db: sqlite3.Connection, settlement: Settlement, wall: float) -> Reply:
    if apply(db, [settlement], wall) == 1:
        _write_down(db, [settlement], wall)
        return Reply.ACCEPTED
    lease = settlement.lease
    token = {"id": lease.job_id, "fence": lease.fence, "claim_id": lease.claim_id}
    row = db.execute(Q["settle_seen"], {**token, "seen_lease_until": settlement.seen_lease_until}).fetchone()
    if row is None:
        return Reply.REFUSED
    own, state, fence, renewed, *facts = row
    if own and state != State.RUNNING:
        return Reply.ALREADY
    if own and not renewed and not is_as_judged(settlement, *facts):
        return Reply.AGAIN
    if not own and _is_repeat(db, settlement):
        return Reply.ALREADY
    if not own and not settlement.verdict.raises_fence:  # a second reaper is late, but no zombie
        events = (stale_report(state, fence, reported=settlement.verdict.state),)
        write_events(db, row_json.journal_lines(lease.job_id, lease.fence, settlement.worker, events), wall)
    return Reply.REFUSED


def _write_down(db: sqlite3.Connection, accepted: Sequence[Settlement], wall: float) -> None:
    """Count the endings, write their lines and store their callbacks, in the order of the batch."""
    tallies: Counter[tuple[str, State]] = Counter()
    events: list[list[Any]] = []
    errors: list[list[Any]] = []
    for settlement in accepted:
        verdict, lease = settlement.verdict, settlement.lease
        if verdict.state in ENDED:
            tallies[settlement.queue, verdict.state] += 1
        if verdict.events:
            events += row_json.journal_lines(lease.job_id, lease.fence, settlement.worker, verdict.events)
        if (line := row_json.error_line(settlement)) is not None:
            errors.append(line)
    write_tallies(db, tallies)
    added = rollups.delta(accepted, wall)
    db.execute(Q["settle_delta"], {"minute": added.minute, "lines": row_json.encode(added.lines).decode()})
    write_events(db, events, wall)
    if errors:
        slots = {"slot": slot_of(wall), "oldest": slot_of(wall - KEPT_S)}
        db.execute(Q["settle_errors"], {**slots, "errors": row_json.encode(errors).decode(), "wall": wall})
        db.execute(Q["settle_errors_old"], slots)
    add_callbacks(db, [each.verdict for each in accepted], wall)


def add_callbacks(db: Executes, accepted: Sequence[Verdict], wall: float) -> None:
    """Store the jobs that follow from endings; one whose id is known is there already."""
    if jobs := [job for verdict in accepted for job in verdict.jobs]:
        add(db, jobs, wall)


def reach(db: Executes, job_id: str, what: Awaited, wall: float, seen_fence: int | None = None) -> int | None:
    """Tell a workflow that something came for it; return its fence, or None when it cannot be reached."""
    values = {"id": job_id, "what": what.text, "wall": wall, "seen_fence": seen_fence}
    row = db.execute(Q["signal_reach"], values).fetchone()
    return row[0] if row is not None else None


def move(db: Executes, moves: Sequence[Move], wall: float) -> list[Reply]:
    """Apply acts of people, with all that belongs to them."""
    rows = row_json.encode([row_json.move(each) for each in moves]).decode()
    comes_alive = any(each.verdict.state in LIVE and each.seen.state not in LIVE for each in moves)
    taken = db.execute(Q["move_taken"], {"moves": rows}).fetchone()[0] if comes_alive else "[]"
    with any_text(db):
        found = db.execute(Q["move"], {"moves": rows, "taken": taken, "wall": wall}).fetchall()
    moved = {job_id: (queue, parent) for job_id, queue, parent in found}
    tallies: Counter[tuple[str, State]] = Counter()
    events: list[list[Any]] = []
    for seen, verdict in (each for each in moves if each.seen.job_id in moved):
        queue, parent = moved[seen.job_id]
        _say_of_steps(db, seen, verdict)
        if parent is not None and verdict.state in ENDED:
            reach(db, parent, Awaited("job", seen.job_id), wall)
        tallies[queue, seen.state] -= seen.state in ENDED
        tallies[queue, verdict.state] += verdict.state in ENDED
        events += row_json.journal_lines(seen.job_id, seen.fence, None, verdict.events)
    write_tallies(db, tallies)
    write_events(db, events, wall)
    if elsewhere := [each.seen.job_id for each in moves if each.verdict.queue is not None]:
        db.execute(Q["move_grouped"], {"ids": row_json.encode(elsewhere).decode()})
    add_callbacks(db, [each.verdict for each in moves if each.seen.job_id in moved], wall)
    others = set(row_json.names_from(taken))
    return [
        Reply.ACCEPTED if seen.job_id in moved else Reply.TAKEN if seen.job_id in others else Reply.REFUSED
        for seen, _ in moves
    ]


def _say_of_steps(db: Executes, seen: Seen, verdict: Verdict) -> None:
    """Write down what a person says of steps, and set aside what is to be run again."""
    if verdict.steps:
        rows = [row_json.step(seen.job_id, step) for step in verdict.steps]
        db.execute(Q["record"], {"steps": row_json.encode(rows).decode()})
    if verdict.aside_from is not None:
        first = {"id": seen.job_id, "aside_from": verdict.aside_from}
        db.execute(Q["move_aside"], {**first, "seen_fence": seen.fence})
        db.execute(Q["move_give_back"], {**first, "answer": ANSWER})


def _is_repeat(db: sqlite3.Connection, settlement: Settlement) -> bool:
    """Say whether this very ending was accepted before, and the job has moved on since."""
    note, lease = own_event(settlement.verdict), settlement.lease
    if note is None:
        return False
    line = {
        "id": lease.job_id,
        "fence": lease.fence,
        "kind": note.kind,
        "detail": row_json.encode(note.detail).decode(),
    }
    return db.execute(Q["settle_before"], line).fetchone() is not None


def remove(db: sqlite3.Connection, found: str) -> list[str]:
    """Delete the jobs that were found, with their history, and count them no more; return their ids."""
    rows = row_json.rows_from(found)
    queries = ["purge_journal", "purge_steps", "purge_signals", "purge_jobs"]
    if any(batch is not None for *_, batch in rows):
        queries.append("purge_batches")
    for query in queries:
        db.execute(Q[query], {"jobs": found.encode("utf-8", "surrogateescape")})
    ended = [(queue, State(state)) for _, _, queue, state, _ in rows if State(state) in ENDED]
    write_tallies(db, Counter({key: -count for key, count in Counter(ended).items()}))
    return [job_id for _, job_id, *_ in rows]


def check_duty(db: sqlite3.Connection, duty: Duty | None) -> None:
    """Raise `DutyLost` when the act is under a duty that another process has by now."""
    if duty is not None and db.execute(Q["acquire_check"], duty_token(duty)).fetchone() is None:
        raise duty_lost(duty)


def duty_token(duty: Duty) -> dict[str, Any]:
    """Flatten what proves a duty."""
    return {"name": duty.name, "holder": duty.holder, "term": duty.term}


def write_tallies(db: Executes, tallies: Counter[tuple[str, State]]) -> None:
    rows = [(queue, state, jobs) for (queue, state), jobs in tallies.items() if jobs and row_json.is_whole(queue)]
    if rows:
        db.execute(Q["settle_tally"], {"tallies": row_json.encode(rows).decode()})


def write_events(db: Executes, events: list[list[Any]], wall: float) -> None:
    if events:
        db.execute(Q["settle_journal"], {"events": row_json.encode(events).decode(), "wall": wall})


def note_act(db: sqlite3.Connection, act: NewEvent, wall: float) -> None:
    """Write down an act of a person on the store itself."""
    write_events(db, row_json.journal_lines("", 0, None, (act,)), wall)


def set_queue(
    db: sqlite3.Connection, before: Queue, after: Queue, actor: str | None, note: str | None, wall: float
) -> None:
    """Write what is set for a queue by now, and the lines of the journal; what runs counts if it is to be counted."""
    db.execute(Q["limit"], row_json.queue(after))
    if before.paused_groups != after.paused_groups:
        db.execute(Q["limit_resume"], {"queue": after.name})
        db.execute(Q["limit_pause"], {"queue": after.name, "groups": row_json.encode(after.paused_groups).decode()})
    if after.limits.counts:
        db.execute(Q["limit_counted"], {"queue": after.name})
    write_events(db, row_json.journal_lines("", 0, None, limits.events(before, after, actor, note)), wall)
