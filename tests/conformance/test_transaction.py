"""transaction: the caller's writes and the settlement in one commit, on stores with SQL."""

import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast.core.machine import State
from holdfast.core.records import Lease, NewJob
from holdfast.core.verdict import Failed, Outcome, Succeeded
from holdfast.errors import LeaseLost, TransactionExpired
from holdfast.stores.protocol import Reply, Store
from tests.factory import (
    EXPIRED,
    STALE,
    a_record,
    a_signal,
    a_step,
    add,
    claim,
    make_job,
    park,
    picture,
    row,
    settle,
    settlement,
    start,
    start_flow,
)

with_sql = pytest.mark.parametrize("store", ["sqlite", "postgres"], indirect=True)
only_sqlite = pytest.mark.parametrize("store", ["sqlite"], indirect=True)
Ledger = Callable[[], list[str]]


@pytest.fixture
def ledger(store: Store, tmp_path: Path) -> Iterator[Ledger]:
    """The user's own table in the same database, read by a connection that has nothing to do with the store."""
    outside: Any
    if store.url.startswith("sqlite"):
        outside = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)
    else:
        outside = psycopg.connect(store.url, autocommit=True)
        outside.execute("DROP TABLE IF EXISTS ledger")
    outside.execute("CREATE TABLE ledger (entry TEXT)")
    yield lambda: [entry for (entry,) in outside.execute("SELECT entry FROM ledger")]
    outside.close()


@with_sql
def test_writes_and_settlement_are_committed_together(store: Store, ledger: Ledger) -> None:
    job = start(store)
    with store.transaction(job.lease, 5.0) as transaction:
        transaction.connection.execute("INSERT INTO ledger VALUES ('paid')")
        assert (ledger(), row(store, job.id).state) == ([], State.RUNNING)
        assert transaction.settle(settlement(job, Succeeded('"ok"'))) is Reply.ACCEPTED
        assert (ledger(), row(store, job.id).state) == (["paid"], State.DONE)
    assert (ledger(), row(store, job.id).result) == (["paid"], '"ok"')
    assert store.counts() == {"default": {State.DONE: 1}}


@with_sql
def test_without_a_settlement_nothing_is_kept(store: Store, ledger: Ledger) -> None:
    job = start(store)
    with store.transaction(job.lease, 5.0) as transaction:
        transaction.connection.execute("INSERT INTO ledger VALUES ('paid')")
    assert (ledger(), row(store, job.id)) == ([], job)


@with_sql
def test_an_exception_undoes_the_writes_and_the_attempt_can_still_report_it(store: Store, ledger: Ledger) -> None:
    job = start(store)
    with suppress(ZeroDivisionError), store.transaction(job.lease, 5.0) as transaction:
        transaction.connection.execute("INSERT INTO ledger VALUES ('paid')")
        raise ZeroDivisionError
    assert (ledger(), row(store, job.id)) == ([], job)
    assert settle(store, job, Failed("division by zero")) is Reply.ACCEPTED


@with_sql
@pytest.mark.parametrize("outcome", [Succeeded(), EXPIRED], ids=["settled", "reaped"])
def test_an_attempt_that_is_over_opens_nothing_although_another_of_its_claim_runs(
    store: Store, outcome: Outcome
) -> None:
    store.add([make_job(), make_job()])
    over, _ = claim(store)
    settle(store, over, outcome)
    with pytest.raises(LeaseLost), store.transaction(over.lease, 5.0):
        pass


@with_sql
@pytest.mark.parametrize("stale", STALE.values(), ids=STALE.keys())
def test_a_stale_lease_opens_nothing(store: Store, stale: Callable[[Store], Lease]) -> None:
    lease = stale(store)
    before = row(store, lease.job_id)
    with pytest.raises(LeaseLost), store.transaction(lease, 5.0):
        pytest.fail("the transaction was opened")
    assert row(store, lease.job_id) == before
    add(store)  # the store takes writes


@with_sql
@pytest.mark.parametrize("stale", STALE.values(), ids=STALE.keys())
def test_a_settlement_that_is_refused_undoes_the_writes(
    store: Store, ledger: Ledger, stale: Callable[[Store], Lease]
) -> None:
    zombie = start(store)
    lease = stale(store)
    forged = settlement(zombie, Succeeded())
    forged = type(forged)(lease=lease, queue="default", worker="w", verdict=forged.verdict)
    before = row(store, lease.job_id)
    with store.transaction(zombie.lease, 5.0) as transaction:
        transaction.connection.execute("INSERT INTO ledger VALUES ('paid twice')")
        assert transaction.settle(forged) is Reply.REFUSED
    assert (ledger(), row(store, lease.job_id)) == ([], before)


@with_sql
def test_a_transaction_that_lasts_too_long_is_undone_and_says_so(store: Store, ledger: Ledger) -> None:
    job = start(store)
    others = set(threading.enumerate())
    with store.transaction(job.lease, 0.02) as transaction:
        transaction.connection.execute("INSERT INTO ledger VALUES ('too late')")
        for timer in {each for each in threading.enumerate() if isinstance(each, threading.Timer)} - others:
            timer.join(60)  # it measures real time, as the lock that it guards does
        with pytest.raises(TransactionExpired):
            transaction.connection.execute("SELECT 1")
        with pytest.raises(TransactionExpired):
            transaction.settle(settlement(job, Succeeded()))
        add(store)  # others are let in again
    assert (ledger(), row(store, job.id)) == ([], job)
    assert settle(store, job, Failed("too slow")) is Reply.ACCEPTED


HAMMER = """
import sys
from contextlib import suppress
from holdfast.core.records import NewJob, Worker
from holdfast.errors import TransactionExpired
from holdfast.stores.sqlite.store import SqliteStore

store = SqliteStore("sqlite:///" + sys.argv[1])
store.migrate()
store.enroll(Worker(id="w", name="w", host="h", pid=1, boot_id=store._clock.boot_id))
store.add([NewJob(id="j", task="t", payload="{}")])
[job] = store.claim("w", "c", ["default"], ["t"], 1)
for turn in range(40):
    with suppress(TransactionExpired), store.transaction(job.lease, 0.001 + turn / 40_000) as transaction:
        while True:
            transaction.connection.execute("SELECT count(*) FROM holdfast_job").fetchone()
store.retire("w", "over")
store.close()
print("survived")
"""


@only_sqlite
def test_code_that_is_busy_in_the_transaction_when_its_time_runs_out_gets_an_exception_and_no_crash(
    store: Store, tmp_path: Path
) -> None:
    command = [sys.executable, "-X", "faulthandler", "-c", HAMMER, str(tmp_path / "hammered.db")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (0, "survived\n"), done.stderr[-2000:]


@only_sqlite
@pytest.mark.parametrize("statement", ["COMMIT", "ROLLBACK", "BEGIN", "END"])
def test_the_callers_code_cannot_end_the_transaction_by_itself(store: Store, ledger: Ledger, statement: str) -> None:
    job = start(store)
    with store.transaction(job.lease, 5.0) as transaction:
        transaction.connection.execute("INSERT INTO ledger VALUES ('paid')")
        with pytest.raises(sqlite3.Error):
            transaction.connection.execute(statement)
        for by_hand in (transaction.connection.commit, transaction.connection.rollback):
            with pytest.raises(sqlite3.Error):
                by_hand()
        with pytest.raises(sqlite3.Error):
            transaction.connection.executescript("SELECT 1;")
        assert transaction.settle(settlement(job, Succeeded())) is Reply.ACCEPTED
    assert ledger() == ["paid"]


@with_sql
def test_the_driver_neither_commits_nor_rolls_back_by_hand(store: Store, ledger: Ledger) -> None:
    job = start(store)
    with store.transaction(job.lease, 5.0) as transaction:
        transaction.connection.execute("INSERT INTO ledger VALUES ('paid')")
        for by_hand in (transaction.connection.commit, transaction.connection.rollback):
            with pytest.raises((sqlite3.Error, psycopg.Error)):
                by_hand()
        with suppress(sqlite3.Error), transaction.connection:  # how people commit
            pass
        assert ledger() == []
        assert transaction.settle(settlement(job, Succeeded())) is Reply.ACCEPTED
    assert ledger() == ["paid"]


@with_sql
def test_a_savepoint_is_the_callers_own_business(store: Store, ledger: Ledger) -> None:
    job = start(store)
    with store.transaction(job.lease, 5.0) as transaction:
        for statement in ("SAVEPOINT a", "INSERT INTO ledger VALUES ('undone')", "ROLLBACK TO SAVEPOINT a"):
            transaction.connection.execute(statement)
        transaction.connection.execute("INSERT INTO ledger VALUES ('paid')")
        assert transaction.settle(settlement(job, Succeeded())) is Reply.ACCEPTED
    assert ledger() == ["paid"]


@with_sql
def test_the_next_job_of_a_chain_is_stored_with_the_settlement(store: Store, ledger: Ledger) -> None:
    job = start(store)
    follower, lost = (NewJob(id=name, task="t", payload="{}") for name in ("follower", "lost"))
    with store.transaction(job.lease, 5.0) as transaction:
        store.add([follower], transaction.connection)
        assert store.get("follower") is None
        assert transaction.settle(settlement(job, Succeeded())) is Reply.ACCEPTED
    assert row(store, "follower").state is State.READY
    other = start(store)
    with store.transaction(other.lease, 5.0) as transaction:
        store.add([lost], transaction.connection)
    assert store.get("lost") is None


@with_sql
def test_the_connection_is_of_no_use_afterwards(store: Store, ledger: Ledger) -> None:
    job = start(store)
    with store.transaction(job.lease, 5.0) as transaction:
        assert transaction.settle(settlement(job, Succeeded())) is Reply.ACCEPTED
        with pytest.raises((sqlite3.Error, psycopg.Error)):
            transaction.connection.execute("INSERT INTO ledger VALUES ('late')")
    assert ledger() == []


@with_sql
def test_rolling_back_may_be_repeated_and_lets_others_in(store: Store, ledger: Ledger) -> None:
    job = start(store)
    with store.transaction(job.lease, 5.0) as transaction:
        transaction.connection.execute("INSERT INTO ledger VALUES ('paid')")
        transaction.rollback()
        transaction.rollback()
        add(store)
    assert ledger() == []
    assert settle(store, row(store, job.id), EXPIRED) is Reply.ACCEPTED


@with_sql
def test_a_user_error_in_sql_is_the_users_and_changes_nothing(store: Store, ledger: Ledger) -> None:
    job = start(store)
    before = picture(store)
    with (
        pytest.raises((sqlite3.OperationalError, psycopg.errors.UndefinedTable)),
        store.transaction(job.lease, 5.0) as transaction,
    ):
        transaction.connection.execute("INSERT INTO no_such_table VALUES (1)")
    assert (picture(store), ledger()) == (before, [])


# ------------------------------------------------------------------------------------------ of workflows


@with_sql
def test_writes_and_record_are_committed_together_and_the_attempt_goes_on(store: Store, ledger: Ledger) -> None:
    job = start_flow(store)
    for number in (1, 2):
        with store.transaction(job.lease, 5.0) as transaction:
            transaction.connection.execute("INSERT INTO ledger VALUES ('paid')")
            assert (len(ledger()), len(store.steps(job.id))) == (number - 1, number - 1)
            assert transaction.record(a_record(job, a_step(number, kind="transaction"))) is Reply.ACCEPTED
    assert (ledger(), [step.position for step in store.steps(job.id)]) == (["paid", "paid"], [1, 2])
    assert row(store, job.id) == job
    assert settle(store, job, Succeeded()) is Reply.ACCEPTED


@with_sql
@pytest.mark.parametrize("stale", STALE.values(), ids=STALE.keys())
def test_a_record_that_is_refused_undoes_the_writes(
    store: Store, ledger: Ledger, stale: Callable[[Store], Lease]
) -> None:
    running = start_flow(store)
    lease = stale(store)
    before = row(store, lease.job_id)
    with store.transaction(running.lease, 5.0) as transaction:
        transaction.connection.execute("INSERT INTO ledger VALUES ('paid twice')")
        assert transaction.record(a_record(lease, a_step(1))) is Reply.REFUSED
    assert (ledger(), row(store, lease.job_id), store.steps(lease.job_id)) == ([], before, [])


@with_sql
def test_a_record_that_cannot_start_its_child_undoes_the_writes(store: Store, ledger: Ledger) -> None:
    add(store, key="k")
    job = start_flow(store)
    with store.transaction(job.lease, 5.0) as transaction:
        transaction.connection.execute("INSERT INTO ledger VALUES ('paid')")
        record = a_record(job, a_step(1), jobs=(make_job(key="k"),))
        assert transaction.record(record) is Reply.TAKEN
    assert (ledger(), store.steps(job.id)) == ([], [])


@with_sql
def test_children_and_signals_go_with_the_record_and_its_writes(store: Store, ledger: Ledger) -> None:
    job, other = start_flow(store), park(store, start_flow(store), "signal:go")
    with store.transaction(job.lease, 5.0) as transaction:
        transaction.connection.execute("INSERT INTO ledger VALUES ('paid')")
        record = a_record(job, a_step(1), jobs=(make_job(id="child", parent=job.id),), sent=(a_signal(other),))
        assert transaction.record(record) is Reply.ACCEPTED
    assert (ledger(), row(store, "child").state, row(store, other.id).state) == (["paid"], State.READY, State.READY)


@with_sql
def test_a_child_that_settles_with_its_writes_wakes_its_parent(store: Store, ledger: Ledger) -> None:
    parent = start_flow(store)
    child = start(store, parent=parent.id)
    park(store, parent, f"job:{child.id}")
    with store.transaction(child.lease, 5.0) as transaction:
        transaction.connection.execute("INSERT INTO ledger VALUES ('paid')")
        assert transaction.settle(settlement(child, Succeeded())) is Reply.ACCEPTED
    assert (ledger(), row(store, child.id).state) == (["paid"], State.DONE)
    assert (row(store, parent.id).state, row(store, parent.id).inbox) == (State.READY, 1)
