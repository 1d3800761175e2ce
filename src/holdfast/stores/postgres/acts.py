"""Carry out acts of people on jobs on a connection."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from holdfast.core import orders
from holdfast.core.acts import Move
from holdfast.core.audit import about_jobs
from holdfast.core.machine import ENDED
from holdfast.core.records import NewEvent, OrderAct, Seen
from holdfast.core.row_text import ANSWER
from holdfast.stores import row_json
from holdfast.stores.postgres import statements
from holdfast.stores.postgres.connection import Connections, Cursor
from holdfast.stores.protocol import Reply

T = TypeVar("T")


def move(q: Connections, db: Cursor, moves: Sequence[Move], wall: float | None) -> list[Reply]:
    """Apply the acts whose jobs are still what the person saw, with all that belongs to them, in one commit."""
    if elsewhere := {each.seen.job_id: each.verdict.queue for each in moves if each.verdict.queue is not None}:
        queues = {"queues": row_json.encode(elsewhere).decode(), "channel": q.channel}
        db.execute(q["move_grouped"], queues, prepare=False)
    with db.connection.transaction():
        ending = [each.seen.job_id for each in moves if each.verdict.state in ENDED]
        # Those that end tell their parents, which may have to be locked before them.
        busy = set(row_json.names_from(_one(q, db, "move_lock", {"ids": ending}))) if ending else set[str]()
        if len(moves) > 1:  # many jobs do not wait long for the key of one
            db.execute(q["record_limit"], {"lock_ms": statements.KEY_LOCK_MS}, prepare=False)
        answers = _move(q, db, [each for each in moves if each.seen.job_id not in busy], wall)
    return [answers.get(each.seen.job_id, Reply.LOCKED) for each in moves]


def _move(q: Connections, db: Cursor, moves: Sequence[Move], wall: float | None) -> dict[str, Reply]:
    events = [
        line
        for seen, verdict in moves
        for line in row_json.journal_lines(seen.job_id, seen.fence, None, verdict.events)
    ]
    values = {
        "moves": row_json.encode([row_json.move(each) for each in moves]).decode(),
        "events": row_json.encode(events).decode(),
        "wall": wall,
        "channel": q.channel,
    }
    moved, parents, taken, locked, _ = q.row(db.execute(q["move"], values, prepare=False))
    answers = dict.fromkeys((each.seen.job_id for each in moves), Reply.REFUSED)
    for names, answer in ((moved, Reply.ACCEPTED), (taken, Reply.TAKEN), (locked, Reply.LOCKED)):
        answers |= dict.fromkeys(row_json.names_from(names), answer)
    _say_of_steps(q, db, [each for each in moves if answers[each.seen.job_id] is Reply.ACCEPTED])
    statements.tell_parents(q, db, [(parent, job_id) for parent, job_id in row_json.rows_from(parents)], wall)
    done = [each.verdict for each in moves if answers[each.seen.job_id] is Reply.ACCEPTED]
    statements.add_callbacks(q, db, done, wall)
    return answers


def _say_of_steps(q: Connections, db: Cursor, moves: Sequence[Move]) -> None:
    """Write down what people say of steps, and set aside what is to be run again."""
    steps = [row_json.step(seen.job_id, step) for seen, verdict in moves for step in verdict.steps]
    if steps:
        db.execute(q["move_steps"], {"steps": row_json.encode(steps).decode()}, prepare=False)
    for seen, verdict in moves:
        if verdict.aside_from is not None:
            first = {"id": seen.job_id, "seen_fence": seen.fence, "aside_from": verdict.aside_from, "answer": ANSWER}
            for query in ("move_aside", "move_give_back"):
                db.execute(q[query], first, prepare=False)


def delete(q: Connections, db: Cursor, jobs: Sequence[Seen], act: NewEvent | None, wall: float | None) -> list[Reply]:
    """Delete the jobs that are still what the person saw, with their history, in one commit."""
    with db.connection.transaction():
        busy = set(row_json.names_from(_one(q, db, "delete_lock", {"ids": [seen.job_id for seen in jobs]})))
        free = [seen for seen in jobs if seen.job_id not in busy]
        gone = set(row_json.names_from(_one(q, db, "delete", {"seen": row_json.encode(free).decode()})))
        if act is not None and gone:
            line = about_jobs(act, [seen.job_id for seen in free if seen.job_id in gone])
            statements.write_events(q, db, row_json.journal_lines("", 0, None, (line,)), wall)
    return [
        Reply.LOCKED if seen.job_id in busy else Reply.ACCEPTED if seen.job_id in gone else Reply.REFUSED
        for seen in jobs
    ]


def order(
    q: Connections,
    db: Cursor,
    name: str,
    act: OrderAct | None,
    actor: str | None,
    note: str | None,
    wall: float | None,
) -> bool:
    """Give workers an order, or take it back, with its line in the journal; return whether that changed anything."""
    with db.connection.transaction():
        given = {"name": name, "act": act, "actor": actor, "note": note, "wall": wall}
        changed = db.execute(q["order_end" if act is None else "order"], given, prepare=False).rowcount > 0
        if changed:
            lines = row_json.journal_lines("", 0, None, orders.events(name, act, actor, note))
            statements.write_events(q, db, lines, wall)
    return changed


def _one(q: Connections, db: Cursor, query: str, values: dict[str, object]) -> str:
    text: str = q.row(db.execute(q[query], values, prepare=False))[0]
    return text


def in_halves(act: Callable[[Sequence[T]], list[Reply]], many: Sequence[T]) -> list[Reply]:
    """Act on each half of many, after all of them took too long or one was in the way."""
    middle = len(many) // 2
    return act(many[:middle]) + act(many[middle:])
