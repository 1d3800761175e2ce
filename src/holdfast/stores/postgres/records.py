"""Write the steps, children and signals of workflows on a connection."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from psycopg import errors

from holdfast.core.machine import State
from holdfast.core.records import Lease, NewJob, Record, Signal
from holdfast.core.settlement import stale_report
from holdfast.stores import row_json
from holdfast.stores.postgres import statements
from holdfast.stores.postgres.connection import Connections, Cursor
from holdfast.stores.protocol import Reply


def write_records(q: Connections, db: Cursor, records: Sequence[Record], wall: float | None) -> list[Reply]:
    """Write those whose lease is the current one. Most are steps and nothing else, and go in one statement."""
    answers: list[Reply] = []
    locked: set[str] = set()  # the jobs whose records must wait
    for part in _parts(records):
        waits = [record.lease.job_id in locked for record in part]
        free = [record for record, must_wait in zip(part, waits, strict=True) if not must_wait]
        found: list[Reply] = []
        if not free:
            pass
        elif _touches_others(free[0]):
            found = [_write_with_others(q, db, free[0], wall)]
        else:
            found = _write_steps(q, db, free, wall)
        locked |= {each.lease.job_id for each, answer in zip(free, found, strict=True) if answer is Reply.LOCKED}
        said = iter(found)
        answers += [Reply.LOCKED if must_wait else next(said) for must_wait in waits]
    return answers


def _write_steps(q: Connections, db: Cursor, records: list[Record], wall: float | None) -> list[Reply]:
    ours = _write(q, db, records)
    left = [record for place, record in enumerate(records) if place not in ours]
    why = iter(_refusals(q, db, left, wall) if left else [])
    return [Reply.ACCEPTED if place in ours else next(why) for place in range(len(records))]


def _touches_others(record: Record) -> bool:
    return bool(record.jobs or record.sent)


def _parts(records: Sequence[Record]) -> Iterator[list[Record]]:
    """Split, in their order, into what one statement can write: it says nothing about the order of two records of one
    step, and could not tell what a zombie says of a workflow from what its successor says."""
    part: list[Record] = []
    steps: set[tuple[str, int]] = set()
    leases: dict[str, Lease] = {}
    for record in records:
        own = [(record.lease.job_id, step.position) for step in record.steps]
        alone = _touches_others(record) or leases.get(record.lease.job_id, record.lease) != record.lease
        if part and (alone or not steps.isdisjoint(own) or _touches_others(part[0])):
            yield part
            part, steps, leases = [], set(), {}
        part.append(record)
        steps.update(own)
        leases[record.lease.job_id] = record.lease
    if part:
        yield part


def _write(q: Connections, db: Cursor, records: Sequence[Record]) -> set[int]:
    """Write steps and what goes with them; return the places of the records whose lease is the current one."""
    steps = [
        [*row_json.step(each.lease.job_id, step), place] for place, each in enumerate(records) for step in each.steps
    ]
    taken = [[each.lease.job_id, each.steps[0].position, signal] for each in records for signal in each.taken]
    values = {
        "tokens": _tokens(records),
        "steps": row_json.encode(steps).decode(),
        "facts": row_json.encode(row_json.facts(records)).decode(),
        "taken": row_json.encode(taken).decode(),
    }
    row = q.row(db.execute(q["record"], values, prepare=True))
    return set(row_json.numbers_from(row[0]))


class _Undo(Exception):
    """Nothing of a record is to be written."""

    def __init__(self, answer: Reply) -> None:
        self.answer = answer


def _write_with_others(q: Connections, db: Cursor, record: Record, wall: float | None) -> Reply:
    """Write a record with the children that it starts and the signals that it sends, or nothing."""
    touched = {record.lease.job_id} | {signal.job_id for signal in record.sent}
    try:
        with db.connection.transaction():
            if statements.lock_rows(q, db, touched):
                raise _Undo(Reply.LOCKED)
            if any(new.key is not None for new in record.jobs):
                db.execute(q["record_limit"], {"lock_ms": statements.KEY_LOCK_MS}, prepare=False)
            if not _write(q, db, [record]):
                raise _Undo(Reply.REFUSED)
            for new in record.jobs:
                [added] = statements.add(q, db, [new], wall)
                if added.id != new.id or (added.existed and not _is_own(q, db, new)):
                    raise _Undo(Reply.TAKEN)
            for signal in record.sent:
                if send(q, db, signal, wall) is Reply.GONE:
                    raise _Undo(Reply.GONE)
    except errors.LockNotAvailable:
        return Reply.LOCKED
    except _Undo as undo:
        return _refusals(q, db, [record], wall)[0] if undo.answer is Reply.REFUSED else undo.answer
    return Reply.ACCEPTED


def _is_own(q: Connections, db: Cursor, new: NewJob) -> bool:
    """Say whether the job that has the id of this child is this child: its record was written before."""
    values = {"id": new.id, "parent": new.parent, "task": new.task}
    return db.execute(q["record_child"], values, prepare=False).fetchone() is not None


def send(q: Connections, db: Cursor, signal: Signal, wall: float | None) -> Reply:
    values: dict[str, Any] = {**row_json.signal(signal), "wall": wall, "channel": q.channel}
    values["detail"] = row_json.encode(signal.line.detail).decode()
    try:
        with db.connection.transaction():
            known, reached, _ = q.row(db.execute(q["signal"], values, prepare=False))
    except errors.UniqueViolation:  # the same one came at the same time
        return Reply.ALREADY
    if known:
        return Reply.ALREADY
    return Reply.ACCEPTED if reached else Reply.GONE


def _refusals(q: Connections, db: Cursor, refused: list[Record], wall: float | None) -> list[Reply]:
    """Say why each of these was not written, and write down who came back after its time. A lease that is the current
    one was skipped: another transaction has locked the row."""
    row = q.row(db.execute(q["record_seen"], {"tokens": _tokens(refused)}, prepare=False))
    answers, events = [], []
    for record, (own, state, fence) in zip(refused, row_json.rows_from(row[0]), strict=True):
        answers.append(Reply.LOCKED if own and state == State.RUNNING else Reply.REFUSED)
        if state is not None and not own:
            event = stale_report(state, fence, step=record.steps[0].name if record.steps else "")
            lease = record.lease
            events += row_json.journal_lines(lease.job_id, lease.fence, record.worker, (event,))
    if events:
        statements.write_events(q, db, events, wall)
    return answers


def _tokens(records: Sequence[Record]) -> str:
    return row_json.encode([[each.lease.job_id, each.lease.fence, each.lease.claim_id] for each in records]).decode()
