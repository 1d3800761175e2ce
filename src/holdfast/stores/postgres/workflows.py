"""The verbs of workflows over PostgreSQL."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from psycopg import errors

from holdfast.core.machine import ENDED, State
from holdfast.core.records import Inbox, Lease, NewJob, Note, Record, Signal, Step, Unroused
from holdfast.core.row_text import ANSWER
from holdfast.core.settlement import stale_report
from holdfast.core.verdict import Verdict
from holdfast.failpoints import point
from holdfast.stores import row_json
from holdfast.stores.postgres import statements
from holdfast.stores.postgres.connection import Connections, Cursor
from holdfast.stores.protocol import Added, Answer


class Workflows(ABC):
    """The part of `PostgresStore` that knows steps and signals. See `stores/protocol.py: Store` for every promise."""

    _db: Connections
    _hot: Connections

    def record(self, records: Sequence[Record]) -> list[Answer]:
        if not records:
            return []
        point("record.before")
        answers = self._hot.run(lambda db: write_records(self._hot, db, records, self._wall()))
        if any(record.jobs or record.sent for record in records):
            self.wake()
        point("record.after")
        return answers

    def steps(self, job_id: str, after: int = 0, limit: int = 1000, *, aside: bool = False) -> list[Step]:
        values = {"id": job_id, "after": after, "limit": limit, "aside": aside}
        return row_json.steps_from(self._db.one("steps", values)[0])

    def signal(self, signal: Signal) -> Answer:
        answer = self._db.run(lambda db: _send(self._db, db, signal, self._wall()))
        self.wake()
        return answer

    def inbox(self, job_id: str, name: str | None = None, limit: int = 1000) -> Inbox:
        row = self._db.one("inbox", {"id": job_id, "name": name, "limit": limit})
        return Inbox(row[0], row_json.signals_from(row[1])) if row is not None else Inbox(0)

    def rouse(self, limit: int = 500) -> float | None:
        values = {"wall": self._wall(), "limit": limit, "channel": self._hot.channel}
        earliest: float | None = self._hot.one("rouse", values)[0]
        return earliest

    def unroused(self) -> list[Unroused]:
        return row_json.unroused_from(self._db.one("unroused", {"wall": self._wall()})[0])

    def fork(self, new: NewJob, source: str, seen_fence: int, before: int, note: Note) -> Added | None:
        values = {"id": new.id, "source": source, "seen_fence": seen_fence, "before": before}

        def fork(db: Cursor) -> Added | None:
            with db.connection.transaction():
                if db.execute(self._db["fork_source"], values, prepare=False).fetchone() is None:
                    return None
                [added] = statements.add(self._db, db, [new], self._wall())
                if not added.existed:
                    db.execute(self._db["fork"], values, prepare=False)
                    lines = row_json.journal_lines(new.id, 0, None, (note,))
                    statements.write_notes(self._db, db, lines, self._wall())
            return added

        added = self._db.run(fork)
        self.wake()
        return added

    def _move(self, db: Cursor, job_id: str, seen_state: State, seen_fence: int, verdict: Verdict) -> bool:
        """Apply an act of a person, with all that belongs to it."""
        seen = {"id": job_id, "seen_state": seen_state.value, "seen_fence": seen_fence, "wall": self._wall()}
        notes = row_json.encode(row_json.journal_lines(job_id, seen_fence, None, verdict.notes)).decode()
        values = {**row_json.changes(verdict), **seen, "notes": notes, "channel": self._db.channel}
        with db.connection.transaction():
            if verdict.state in ENDED:  # then its parent is told, and may have to be locked before it
                db.execute(self._db["move_lock"], {"id": job_id}, prepare=False)
            moved, parent, _ = self._db.row(db.execute(self._db["move"], values, prepare=False))
            if moved and verdict.steps:
                rows = row_json.encode([row_json.step(job_id, step) for step in verdict.steps]).decode()
                db.execute(self._db["move_steps"], {"steps": rows}, prepare=False)
            if moved and verdict.aside_from is not None:
                first = {**seen, "aside_from": verdict.aside_from, "answer": ANSWER}
                for query in ("move_aside", "move_give_back"):
                    db.execute(self._db[query], first, prepare=False)
            if moved and parent is not None and verdict.state in ENDED:
                statements.tell_parents(self._db, db, [(parent, job_id)], self._wall())
        return bool(moved)

    # Of the store itself:

    @abstractmethod
    def _wall(self) -> float | None: ...

    @abstractmethod
    def wake(self) -> None: ...


def write_records(q: Connections, db: Cursor, records: Sequence[Record], wall: float | None) -> list[Answer]:
    """Write those whose lease is the current one. Most are steps and nothing else, and go in one statement."""
    answers: list[Answer] = []
    locked: set[str] = set()  # the jobs whose records must wait
    for part in _parts(records):
        waits = [record.lease.job_id in locked for record in part]
        free = [record for record, must_wait in zip(part, waits, strict=True) if not must_wait]
        found: list[Answer] = []
        if not free:
            pass
        elif _touches_others(free[0]):
            found = [_write_with_others(q, db, free[0], wall)]
        else:
            found = _write_steps(q, db, free, wall)
        locked |= {each.lease.job_id for each, answer in zip(free, found, strict=True) if answer is Answer.LOCKED}
        said = iter(found)
        answers += [Answer.LOCKED if must_wait else next(said) for must_wait in waits]
    return answers


def _write_steps(q: Connections, db: Cursor, records: list[Record], wall: float | None) -> list[Answer]:
    ours = _write(q, db, records)
    left = [record for place, record in enumerate(records) if place not in ours]
    why = iter(_refusals(q, db, left, wall) if left else [])
    return [Answer.ACCEPTED if place in ours else next(why) for place in range(len(records))]


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

    def __init__(self, answer: Answer) -> None:
        self.answer = answer


def _write_with_others(q: Connections, db: Cursor, record: Record, wall: float | None) -> Answer:
    """Write a record with the children that it starts and the signals that it sends, or nothing."""
    touched = {record.lease.job_id} | {signal.job_id for signal in record.sent}
    try:
        with db.connection.transaction():
            if statements.lock_rows(q, db, touched):
                raise _Undo(Answer.LOCKED)
            if any(new.key is not None for new in record.jobs):
                db.execute(q["record_limit"], {"lock_ms": statements.KEY_LOCK_MS}, prepare=False)
            if not _write(q, db, [record]):
                raise _Undo(Answer.REFUSED)
            for new in record.jobs:
                [added] = statements.add(q, db, [new], wall)
                if added.id != new.id or (added.existed and not _is_own(q, db, new)):
                    raise _Undo(Answer.TAKEN)
            for signal in record.sent:
                if _send(q, db, signal, wall) is Answer.GONE:
                    raise _Undo(Answer.GONE)
    except errors.LockNotAvailable:
        return Answer.LOCKED
    except _Undo as undo:
        return _refusals(q, db, [record], wall)[0] if undo.answer is Answer.REFUSED else undo.answer
    return Answer.ACCEPTED


def _is_own(q: Connections, db: Cursor, new: NewJob) -> bool:
    """Say whether the job that has the id of this child is this child: its record was written before."""
    values = {"id": new.id, "parent": new.parent, "task": new.task}
    return db.execute(q["record_child"], values, prepare=False).fetchone() is not None


def _send(q: Connections, db: Cursor, signal: Signal, wall: float | None) -> Answer:
    values: dict[str, Any] = {**row_json.signal(signal), "wall": wall, "channel": q.channel}
    values["detail"] = row_json.encode(signal.line.detail).decode()
    try:
        with db.connection.transaction():
            known, reached, _ = q.row(db.execute(q["signal"], values, prepare=False))
    except errors.UniqueViolation:  # the same one came at the same time
        return Answer.ALREADY
    if known:
        return Answer.ALREADY
    return Answer.ACCEPTED if reached else Answer.GONE


def _refusals(q: Connections, db: Cursor, refused: list[Record], wall: float | None) -> list[Answer]:
    """Say why each of these was not written, and write down who came back after its time. A lease that is the current
    one was skipped: somebody else has locked the row."""
    row = q.row(db.execute(q["record_seen"], {"tokens": _tokens(refused)}, prepare=False))
    answers, notes = [], []
    for record, (own, state, fence) in zip(refused, row_json.rows_from(row[0]), strict=True):
        answers.append(Answer.LOCKED if own and state == State.RUNNING else Answer.REFUSED)
        if state is not None and not own:
            note = stale_report(state, fence, step=record.steps[0].name if record.steps else "")
            lease = record.lease
            notes += row_json.journal_lines(lease.job_id, lease.fence, record.worker, (note,))
    if notes:
        statements.write_notes(q, db, notes, wall)
    return answers


def _tokens(records: Sequence[Record]) -> str:
    return row_json.encode([[each.lease.job_id, each.lease.fence, each.lease.claim_id] for each in records]).decode()
