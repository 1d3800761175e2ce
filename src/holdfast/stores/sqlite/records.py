"""Write the steps, children and signals of workflows on a connection."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from holdfast.core.records import NewJob, Record, Signal
from holdfast.core.settlement import stale_report
from holdfast.stores import row_json
from holdfast.stores.protocol import Reply
from holdfast.stores.sqlite import statements
from holdfast.stores.sqlite.rows import Q


def write_records(db: sqlite3.Connection, records: Sequence[Record], wall: float) -> list[Reply]:
    """Write those whose lease is the current one. Most are steps and nothing else, and go in one statement."""
    tokens = [[each.lease.job_id, each.lease.fence, each.lease.claim_id] for each in records]
    owned = db.execute(Q["record_owned"], {"tokens": row_json.encode(tokens).decode()}).fetchone()[0]
    ours = set(row_json.numbers_from(owned))
    answers = [Reply.ACCEPTED] * len(records)
    plain: list[Record] = []
    for place, record in enumerate(records):
        if place not in ours:
            answers[place] = _refuse(db, record, wall)
        elif record.jobs or record.sent:
            _write(db, plain)  # what came before is written before
            plain = []
            answers[place] = _write_with_others(db, record, wall)
        else:
            plain.append(record)
    _write(db, plain)
    return answers


def _write(db: sqlite3.Connection, records: Sequence[Record]) -> None:
    steps = [row_json.step(each.lease.job_id, step) for each in records for step in each.steps]
    facts = row_json.facts(records)
    if steps:
        db.execute(Q["record"], {"steps": row_json.encode(steps).decode()})
    if facts:
        db.execute(Q["record_facts"], {"facts": row_json.encode(facts).decode()})
    for each in records:
        if each.taken:
            signals = {"signals": row_json.encode(each.taken).decode(), "position": each.steps[0].position}
            db.execute(Q["record_taken"], {"id": each.lease.job_id, **signals})


def _write_with_others(db: sqlite3.Connection, record: Record, wall: float) -> Reply:
    """Write a record with the children that it starts and the signals that it sends, or nothing."""
    db.execute("SAVEPOINT record")
    answer = Reply.ACCEPTED
    for new in record.jobs:
        [added] = statements.add(db, [new], wall)
        if added.id != new.id or (added.existed and not _is_own(db, new)):
            answer = Reply.TAKEN
    for signal in record.sent:
        if answer is Reply.ACCEPTED and send(db, signal, wall) is Reply.GONE:
            answer = Reply.GONE
    if answer is Reply.ACCEPTED:
        _write(db, [record])
    else:
        db.execute("ROLLBACK TO record")
    db.execute("RELEASE record")
    return answer


def _is_own(db: sqlite3.Connection, new: NewJob) -> bool:
    """Say whether the job that has the id of this child is this child: its record was written before."""
    values = {"id": new.id, "parent": new.parent, "task": new.task}
    return db.execute(Q["record_child"], values).fetchone() is not None


def send(db: sqlite3.Connection, signal: Signal, wall: float) -> Reply:
    values = {**row_json.signal(signal), "wall": wall}
    if db.execute(Q["signal_known"], values).fetchone() is not None:
        return Reply.ALREADY
    fence = statements.reach(db, signal.job_id, signal.awaited, wall, signal.seen_fence)
    if fence is None:
        return Reply.GONE
    db.execute(Q["signal"], values)
    statements.write_events(db, row_json.journal_lines(signal.job_id, fence, None, (signal.line,)), wall)
    return Reply.ACCEPTED


def _refuse(db: sqlite3.Connection, record: Record, wall: float) -> Reply:
    lease = record.lease
    token = {"id": lease.job_id, "fence": lease.fence, "claim_id": lease.claim_id}
    row = db.execute(Q["record_seen"], token).fetchone()
    if row is not None and not row[0]:
        note = stale_report(row[1], row[2], step=record.steps[0].name if record.steps else "")
        statements.write_events(db, row_json.journal_lines(lease.job_id, lease.fence, record.worker, (note,)), wall)
    return Reply.REFUSED
