"""Who waits for whom on PostgreSQL: rows of several jobs are locked in one order, and who waited sees what came."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from holdfast.core import acts
from holdfast.core.acts import Move
from holdfast.core.machine import State
from holdfast.core.records import Job, NewEvent
from holdfast.core.verdict import Failed, Succeeded
from holdfast.stores.postgres import records, statements
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.protocol import Reply
from holdfast.testing import FakeClock
from tests.factory import (
    a_record,
    a_signal,
    a_step,
    add,
    job_in,
    make_job,
    move,
    park,
    record,
    row,
    settlement,
    start,
    start_flow,
)
from tests.servers import CLOCK, pause

LOCK = "SELECT FROM holdfast.job WHERE id = %s FOR NO KEY UPDATE"
PATIENCE_S = 60.0


@pytest.fixture
def store(postgres: str, clock: FakeClock) -> Iterator[PostgresStore]:
    store = PostgresStore(postgres, clock=clock)
    store.migrate()
    yield store
    store.close()


@contextmanager
def meanwhile(postgres: str, call: Callable[[], object], *first: tuple[str, tuple[Any, ...]]) -> Iterator[Any]:
    """A session that runs these statements and has not committed when `call`, in a thread, waits for it. The call is
    over at the end, and what it returned, or raised, is in the list."""
    answers: list[object] = []

    def carry_out() -> None:
        try:
            answers.append(call())
        except Exception as error:
            answers.append(error)

    with psycopg.connect(postgres) as db, psycopg.connect(postgres, autocommit=True) as eyes:
        for statement, values in first:
            db.execute(statement, values)  # type: ignore[call-overload]
        thread = threading.Thread(target=carry_out, daemon=True)
        thread.start()
        waits = "SELECT count(*) FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid))"
        give_up_at = CLOCK.lease() + PATIENCE_S
        while not eyes.execute(waits, (db.info.backend_pid,)).fetchone()[0]:  # type: ignore[index]
            assert CLOCK.lease() < give_up_at, f"nobody waits; the answer was {answers}"
            pause(0.01)
        yield db, answers
        db.commit()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def cancels(store: PostgresStore, job: Job) -> Callable[[], object]:
    return lambda: move(store, job.id, job.state, job.fence, acts.cancel(job, actor="ann"))


@pytest.mark.parametrize("locked", ["parent", "child"])
def test_ending_children_by_hand_skips_locked_ones_and_locked_parents(
    store: PostgresStore, postgres: str, locked: str
) -> None:
    parent = start_flow(store, id="parent")
    child = add(store, id="child", parent=parent.id)
    flow, orphan = start_flow(store), add(store, parent="nobody")
    other = add(store, parent=flow.id)
    moves = [Move(job.seen, acts.cancel(job, actor="ann")) for job in (child, other, orphan)]
    with psycopg.connect(postgres) as db:
        db.execute(LOCK, (locked,))
        assert store.move(moves) == [Reply.LOCKED, Reply.ACCEPTED, Reply.ACCEPTED]
        assert row(store, child.id) == child
        assert (row(store, parent.id).inbox, row(store, flow.id).inbox) == (0, 1)
    assert store.move(moves) == [Reply.ACCEPTED, Reply.REFUSED, Reply.REFUSED]
    assert row(store, parent.id).inbox == 1


@pytest.mark.parametrize("locked", ["parent", "child"])
@pytest.mark.parametrize("act", ["the child ends", "the parent signals the child"])
def test_a_verb_that_needs_a_locked_row_answers_at_once_and_the_others_are_done(
    store: PostgresStore, postgres: str, act: str, locked: str
) -> None:
    parent = start_flow(store, id="parent")
    if act == "the child ends":
        child, other = start(store, id="child", parent=parent.id), start(store)

        def call() -> list[Reply]:
            return store.settle([settlement(child, Succeeded()), settlement(other, Succeeded())])
    else:
        child, flow = add(store, id="child", parent=parent.id, workflow=True), start_flow(store)

        def call() -> list[Reply]:
            sending = a_record(parent, a_step(1), sent=(a_signal(child),))
            behind = a_record(parent, a_step(2))
            return store.record([sending, behind, a_record(flow, a_step(1))])[::2]

    with psycopg.connect(postgres) as db:
        db.execute(LOCK, (locked,))
        assert call() == [Reply.LOCKED, Reply.ACCEPTED]
        assert store.steps(parent.id) == []
        db.rollback()
        db.execute(LOCK, (add(store).id,))
        assert call()[0] is Reply.ACCEPTED, "another row is locked, which is none of its business"


def test_records_of_a_job_whose_row_is_locked_stay_in_their_order(
    store: PostgresStore, postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock goes between the two: if the second went ahead, the step would be opened after it was closed."""
    flow, other = start_flow(store), start_flow(store)
    opens = a_record(flow, a_step(1, "started", repeatable=False), open_step="charge")
    closes = a_record(flow, a_step(1, repeatable=False), open_step="")
    look = records._refusals
    with psycopg.connect(postgres) as db:
        db.execute(LOCK, (flow.id,))

        def late(*given: Any) -> list[Reply]:
            answers = look(*given)
            db.rollback()
            return answers

        monkeypatch.setattr(records, "_refusals", late)
        answers = store.record([opens, a_record(other, a_step(1)), closes])
    assert answers == [Reply.LOCKED, Reply.ACCEPTED, Reply.LOCKED]
    assert store.record([opens, closes]) == [Reply.ACCEPTED, Reply.ACCEPTED]
    assert row(store, flow.id).open_step is None


def test_a_child_whose_key_an_open_transaction_holds_makes_only_its_own_record_wait(
    store: PostgresStore, postgres: str
) -> None:
    flow, other = start_flow(store), start_flow(store)
    starting = a_record(flow, a_step(1), jobs=(make_job(key="K", parent=flow.id),))
    with psycopg.connect(postgres) as db:
        store.add([make_job(key="K")], connection=db)
        answers = store.record([starting, a_record(other, a_step(1))])
        assert answers == [Reply.LOCKED, Reply.ACCEPTED]
        assert store.steps(flow.id) == []
        db.rollback()
    assert store.record([starting]) == [Reply.ACCEPTED]


def test_a_locked_row_is_not_a_request_to_cancel_nor_a_refusal(store: PostgresStore, postgres: str) -> None:
    mine, asked = start(store), start(store)
    assert cancels(store, asked)()
    failures = [settlement(each, Failed("no luck")) for each in (mine, asked)]
    with psycopg.connect(postgres) as db:
        db.execute(LOCK, (mine.id,))
        assert store.settle(failures) == [Reply.LOCKED, Reply.AGAIN]
        assert store.settle([settlement(mine, Succeeded())]) == [Reply.LOCKED]
        assert store.locked([mine.id, asked.id, "unknown"]) == [mine.id]
    assert store.locked([mine.id, asked.id]) == []
    assert store.settle([settlement(mine, Succeeded())]) == [Reply.ACCEPTED]
    assert store.journal(mine.id) == []


def test_a_child_that_a_person_ends_wakes_its_parent(store: PostgresStore) -> None:
    parent = start_flow(store)
    child = add(store, parent=parent.id)
    park(store, parent, f"job:{child.id}")
    assert cancels(store, child)()
    assert (row(store, parent.id).state, row(store, parent.id).inbox) == (State.READY, 1)


def test_a_delete_passes_by_a_workflow_that_gets_a_signal_and_takes_it_along_later(
    store: PostgresStore, postgres: str
) -> None:
    """Else the signal, and what the journal says of it, would be there for ever."""
    flow, other = add(store, workflow=True), add(store)
    with psycopg.connect(postgres) as db:
        db.execute("UPDATE holdfast.job SET inbox = inbox + 1 WHERE id = %s", (flow.id,))
        db.execute("INSERT INTO holdfast.signal (id, job_id, name, sent_at) VALUES ('s', %s, 'go', 1)", (flow.id,))
        line = "INSERT INTO holdfast.journal (job_id, at, kind, fence, detail) VALUES (%s, 1, 'signalled', 0, '{}')"
        db.execute(line, (flow.id,))
        assert store.delete([flow.seen, other.seen]) == [Reply.LOCKED, Reply.ACCEPTED]
    assert store.delete([flow.seen]) == [Reply.ACCEPTED]
    assert store.inbox(flow.id).signals == []
    assert store.journal(flow.id) == []


def test_a_signal_that_waited_for_a_delete_reaches_nobody(store: PostgresStore, postgres: str) -> None:
    flow = add(store, workflow=True)
    gone = ("DELETE FROM holdfast.job WHERE id = %s", (flow.id,))
    with meanwhile(postgres, lambda: store.signal(a_signal(flow)), gone) as (_, answers):
        assert answers == []
    assert answers == [Reply.GONE]
    assert store.inbox(flow.id).signals == []


def test_what_changed_and_changed_back_is_to_be_judged_again(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Why a verdict was not applied is looked at a moment later. A refusal would be believed, and the ending lost."""
    job, look = start_flow(store), statements._refusals
    record(store, job, a_step(1, "started", repeatable=False), open_step="charge")

    def later(*given: Any) -> list[Reply]:
        record(store, job, a_step(1, repeatable=False), open_step="")
        return look(*given)

    monkeypatch.setattr(statements, "_refusals", later)
    assert store.settle([settlement(job, Failed("no luck"))]) == [Reply.AGAIN]
    assert row(store, job.id).state is State.RUNNING
    assert store.journal(job.id) == []


def test_a_workflow_that_runs_again_is_not_forked_by_a_call_that_waited(store: PostgresStore, postgres: str) -> None:
    old, new = job_in(store, State.DEAD, workflow=True), make_job(workflow=True)
    revived = "UPDATE holdfast.job SET state = 'ready', ended_at = NULL WHERE id = %s"
    note = NewEvent("moved", {"forked_from": old.id}, "ann")
    with meanwhile(postgres, lambda: store.fork(new, old.id, old.fence, 1, note), (revived, (old.id,))) as (_, answers):
        assert answers == []
    assert (answers, store.get(new.id)) == ([None], None)
