"""transaction: the caller's writes and the settlement in one commit, on stores with SQL."""

import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast.core.machine import State
from holdfast.core.records import Lease
from holdfast.core.verdict import Failed, Succeeded
from holdfast.errors import LeaseLost, TransactionExpired
from holdfast.stores.protocol import Answer, Store
from tests.factory import EXPIRED, STALE, add, picture, row, settle, settlement, start

pytestmark = pytest.mark.parametrize("store", ["sqlite"], indirect=True)


@pytest.fixture
def ledger(store: Store, tmp_path: Path) -> Iterator[Callable[[], list[str]]]:
    """The user's own table in the same file, read by a connection that has nothing to do with the store."""
    outside = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)
    outside.execute("CREATE TABLE ledger (entry TEXT)")
    yield lambda: [entry for (entry,) in outside.execute("SELECT entry FROM ledger")]
    outside.close()


Ledger = Callable[[], list[str]]


def test_writes_and_settlement_are_committed_together(store: Store, ledger: Ledger) -> None:
    job = start(store)
    with store.transaction(job.lease, 5.0) as transaction:
        transaction.connection.execute("INSERT INTO ledger VALUES (?)", ("paid",))
        assert (ledger(), row(store, job.id).state) == ([], State.RUNNING)
        assert transaction.settle(settlement(job, Succeeded('"ok"'))) is Answer.ACCEPTED
        assert (ledger(), row(store, job.id).state) == (["paid"], State.DONE)
    assert (ledger(), row(store, job.id).result) == (["paid"], '"ok"')
    assert store.counts() == {"default": {State.DONE: 1}}


def test_without_a_settlement_nothing_is_kept(store: Store, ledger: Ledger) -> None:
    job = start(store)
    with store.transaction(job.lease, 5.0) as transaction:
        transaction.connection.execute("INSERT INTO ledger VALUES ('paid')")
    assert (ledger(), row(store, job.id)) == ([], job)


def test_an_exception_undoes_the_writes_and_the_attempt_can_still_report_it(store: Store, ledger: Ledger) -> None:
    job = start(store)
    with suppress(ZeroDivisionError), store.transaction(job.lease, 5.0) as transaction:
        transaction.connection.execute("INSERT INTO ledger VALUES ('paid')")
        raise ZeroDivisionError
    assert (ledger(), row(store, job.id)) == ([], job)
    assert settle(store, job, Failed("division by zero")) is Answer.ACCEPTED


@pytest.mark.parametrize("stale", STALE.values(), ids=STALE.keys())
def test_a_stale_lease_opens_nothing(store: Store, stale: Callable[[Store], Lease]) -> None:
    lease = stale(store)
    before = row(store, lease.job_id)
    with pytest.raises(LeaseLost), store.transaction(lease, 5.0):
        pytest.fail("the transaction was opened")
    assert row(store, lease.job_id) == before
    add(store)  # the store takes writes


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
        assert transaction.settle(forged) is Answer.REFUSED
    assert (ledger(), row(store, lease.job_id)) == ([], before)


def test_a_transaction_that_lasts_too_long_is_undone_and_says_so(store: Store, ledger: Ledger) -> None:
    job = start(store)
    others = set(threading.enumerate())
    with store.transaction(job.lease, 0.02) as transaction:
        transaction.connection.execute("INSERT INTO ledger VALUES ('too late')")
        for timer in set(threading.enumerate()) - others:
            timer.join(10)  # it measures real time, as the lock that it guards does
        with pytest.raises(TransactionExpired):
            transaction.connection.execute("SELECT 1")
        with pytest.raises(TransactionExpired):
            transaction.settle(settlement(job, Succeeded()))
        add(store)  # others are let in again
    assert (ledger(), row(store, job.id)) == ([], job)
    assert settle(store, job, Failed("too slow")) is Answer.ACCEPTED


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


def test_code_that_is_busy_in_the_transaction_when_its_time_runs_out_gets_an_exception_and_no_crash(
    store: Store, tmp_path: Path
) -> None:
    command = [sys.executable, "-X", "faulthandler", "-c", HAMMER, str(tmp_path / "hammered.db")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (0, "survived\n"), done.stderr[-2000:]


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
        assert transaction.settle(settlement(job, Succeeded())) is Answer.ACCEPTED
    assert ledger() == ["paid"]


def test_rolling_back_may_be_repeated_and_lets_others_in(store: Store, ledger: Ledger) -> None:
    job = start(store)
    with store.transaction(job.lease, 5.0) as transaction:
        transaction.connection.execute("INSERT INTO ledger VALUES ('paid')")
        transaction.rollback()
        transaction.rollback()
        add(store)
    assert ledger() == []
    assert settle(store, row(store, job.id), EXPIRED) is Answer.ACCEPTED


def test_a_user_error_in_sql_is_the_users_and_changes_nothing(store: Store, ledger: Ledger) -> None:
    job = start(store)
    before = picture(store)
    with pytest.raises(sqlite3.OperationalError), store.transaction(job.lease, 5.0) as transaction:
        transaction.connection.execute("INSERT INTO no_such_table VALUES (1)")
    assert (picture(store), ledger()) == (before, [])
