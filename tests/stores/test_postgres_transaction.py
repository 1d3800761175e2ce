"""ctx.transaction() on PostgreSQL, where it differs from SQLite: others write meanwhile, COMMIT cannot be forbidden, an
error aborts it, the server may go away. What is common stands in tests/conformance/test_transaction.py."""

import asyncio
import multiprocessing
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from queue import Queue
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from holdfast import AsyncFlow, Context, Flow, JobDead, Retry
from holdfast.core.machine import State
from holdfast.core.policy import OnCrash
from holdfast.core.records import Job, Pulse
from holdfast.core.verdict import Failed, Succeeded
from holdfast.errors import StoreError, StoreUnavailable, TransactionExpired, UsageError
from holdfast.stores.postgres.connection import is_outage
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.postgres.transaction import FencedConnection
from holdfast.stores.protocol import Reply
from tests.factory import EXPIRED, add, again, row, settle, settlement, start
from tests.proxy import Proxy
from tests.servers import PostgresServer
from tests.worker.house import House, until

ONCE = Retry(attempts_max=1)
Houses = Callable[..., House]
Stores = Callable[..., PostgresStore]
both_kinds = pytest.mark.parametrize("is_async", [False, True], ids=["in a thread", "on the loop"])


@pytest.fixture
def stores(server: PostgresServer, schema: str) -> Iterator[Stores]:
    """Open stores on the test's schema, with options of the address."""
    with ExitStack() as opened:

        def make(url: str = server.url, options: str = "") -> PostgresStore:
            store = PostgresStore(f"{url}?schema={schema}{options}")
            opened.callback(store.close)
            store.migrate()
            return store

        yield make


@pytest.fixture
def store(stores: Stores, ledger: Callable[[], list[Any]]) -> PostgresStore:
    return stores()


@pytest.fixture
def ledger(server: PostgresServer) -> Callable[[], list[Any]]:
    """The user's own table, as somebody else sees it."""
    server.execute("DROP TABLE IF EXISTS ledger; CREATE TABLE ledger (entry text)")
    return lambda: [entry for (entry,) in server.execute("SELECT entry FROM ledger ORDER BY 1")]


Ledger = Callable[[], list[Any]]
PAID = "INSERT INTO ledger VALUES ('paid')"


# --- The end comes by hand, or too early -----------------------------------------------------------------


@pytest.mark.parametrize("statement", ["COMMIT", "ROLLBACK", "END", "ABORT", f"{PAID}; COMMIT"])
def test_an_end_in_plain_sql_is_noticed_at_once(store: PostgresStore, ledger: Ledger, statement: str) -> None:
    job = start(store)
    with store.transaction(job.lease, 5.0) as transaction:
        with pytest.raises(UsageError, match=r"committed or rolled back by hand in SQL.*leave that to Holdfast"):
            transaction.connection.execute(statement)
        with pytest.raises(UsageError, match="by hand"):
            transaction.connection.execute("INSERT INTO ledger VALUES ('more')")
        with pytest.raises(UsageError, match="by hand"):
            transaction.settle(settlement(job, Succeeded()))
    assert row(store, job.id) == job
    assert "more" not in ledger()


@pytest.mark.parametrize("statement", ["COMMIT AND CHAIN", "ROLLBACK AND CHAIN", "COMMIT; BEGIN", "ROLLBACK; BEGIN"])
def test_an_end_with_a_new_beginning_is_noticed_by_the_settlement(
    store: PostgresStore, ledger: Ledger, statement: str
) -> None:
    job = start(store)
    with store.transaction(job.lease, 5.0) as transaction:
        transaction.connection.execute(statement)
        transaction.connection.execute("INSERT INTO ledger VALUES ('more')")
        with pytest.raises(UsageError, match="by hand"):
            transaction.settle(settlement(job, Succeeded()))
    assert (row(store, job.id), ledger()) == (job, [])


def test_closing_it_is_not_the_tasks_business(store: PostgresStore, ledger: Ledger) -> None:
    job = start(store)
    with store.transaction(job.lease, 5.0) as transaction:
        transaction.connection.execute(PAID)
        with pytest.raises(psycopg.ProgrammingError, match="do not close it by hand"):
            transaction.connection.close()
        with pytest.raises(psycopg.ProgrammingError, match="autocommit cannot be changed"):
            transaction.connection.autocommit = True
        assert transaction.settle(settlement(job, Succeeded())) is Reply.ACCEPTED
    assert ledger() == ["paid"]


def test_an_error_that_the_task_swallowed_is_named_and_nothing_is_kept(store: PostgresStore, ledger: Ledger) -> None:
    job = start(store)
    with store.transaction(job.lease, 5.0) as transaction:
        transaction.connection.execute(PAID)
        with suppress(psycopg.errors.DivisionByZero):
            transaction.connection.execute("SELECT 1 / 0")
        with pytest.raises(UsageError, match="failed and the task went on: PostgreSQL has undone all of it"):
            transaction.settle(settlement(job, Succeeded()))
    assert (row(store, job.id), ledger()) == (job, [])
    assert settle(store, job, Failed("no luck")) is Reply.ACCEPTED


def test_an_error_in_a_block_of_the_driver_undoes_the_block_alone(store: PostgresStore, ledger: Ledger) -> None:
    job = start(store)
    with store.transaction(job.lease, 5.0) as transaction:
        transaction.connection.execute(PAID)
        with suppress(psycopg.errors.DivisionByZero), transaction.connection.transaction():
            transaction.connection.execute("INSERT INTO ledger VALUES ('undone')")
            transaction.connection.execute("SELECT 1 / 0")
        assert transaction.settle(settlement(job, Succeeded())) is Reply.ACCEPTED
    assert ledger() == ["paid"]


def test_a_constraint_that_is_checked_at_the_commit(store: PostgresStore, server: PostgresServer) -> None:
    server.execute("DROP TABLE IF EXISTS one; CREATE TABLE one (n int UNIQUE DEFERRABLE INITIALLY DEFERRED)")
    job = start(store)
    with store.transaction(job.lease, 5.0) as transaction:
        transaction.connection.execute("INSERT INTO one VALUES (1), (1)")
        with pytest.raises(StoreError, match="duplicate key"):
            transaction.settle(settlement(job, Succeeded()))
    assert row(store, job.id) == job
    assert server.execute("SELECT * FROM one") == []


# --- Time ------------------------------------------------------------------------------------------------


def sessions(server: PostgresServer, words: str) -> int:
    """How many sessions are at such a statement, or idle in a transaction after it."""
    asked = "SELECT count(*) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND state <> 'idle' AND query LIKE"
    [(count,)] = server.execute(f"{asked} '%{words}%'")
    assert isinstance(count, int)
    return count


def test_a_statement_that_runs_on_is_stopped_when_the_time_is_over(
    store: PostgresStore, ledger: Ledger, server: PostgresServer
) -> None:
    job = start(store)
    with store.transaction(job.lease, 2.0) as transaction:
        transaction.connection.execute(PAID)
        with pytest.raises(TransactionExpired, match=r"open for more than 2 s and was rolled back; keep it short"):
            transaction.connection.execute("SELECT pg_sleep(60)")
        with pytest.raises(TransactionExpired):
            transaction.settle(settlement(job, Succeeded()))
        until(lambda: not sessions(server, "pg_sleep"))
    assert (row(store, job.id), ledger()) == (job, [])


def test_an_idle_one_lets_its_locks_go_when_the_time_is_over(
    store: PostgresStore, ledger: Ledger, server: PostgresServer
) -> None:
    server.execute("INSERT INTO ledger VALUES ('old')")
    job = start(store)
    with store.transaction(job.lease, 2.0) as transaction:
        transaction.connection.execute("UPDATE ledger SET entry = 'new'")
        server.execute("UPDATE ledger SET entry = 'another'")  # waits until the row is free
        for use in (transaction.connection.cursor, transaction.connection.transaction().__enter__):
            with pytest.raises(TransactionExpired):
                use()
    assert ledger() == ["another"]


@pytest.mark.slow  # the server's own limit is a second longer than ours
@pytest.mark.parametrize("running", [False, True], ids=["idle", "in a statement"])
def test_the_server_ends_it_when_the_worker_cannot(store: PostgresStore, server: PostgresServer, running: bool) -> None:
    """A worker that is frozen, or whose network is gone: its timer is of no use."""
    job = start(store)
    with store.transaction(job.lease, 2.0) as transaction:
        transaction._timer.cancel()
        transaction.connection.execute("SELECT 'frozen'")
        if running:
            with pytest.raises(psycopg.errors.QueryCanceled):
                transaction.connection.execute("SELECT pg_sleep(60)")
        else:
            until(lambda: not sessions(server, "frozen"))
            with pytest.raises(psycopg.Error, match="idle-in-transaction"):
                transaction.connection.execute("SELECT 1")
    assert row(store, job.id) == job


@pytest.mark.slow  # a server that does not answer is given time
def test_a_network_that_is_silent_does_not_hold_the_task(
    proxy: Proxy, stores: Stores, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the session is not closed while the driver is in it, which would be the end of the process."""
    store, far = stores(), stores(proxy.url)
    job = start(store)
    order: list[str] = []
    wait, close = FencedConnection.wait, FencedConnection.close

    def waited(self: FencedConnection, *arguments: Any, **options: Any) -> Any:
        try:
            return wait(self, *arguments, **options)
        finally:
            order.append("the driver is out")

    monkeypatch.setattr(FencedConnection, "wait", waited)
    monkeypatch.setattr(FencedConnection, "close", lambda self: (order.append("closed"), close(self)))
    with far.transaction(job.lease, 2.0) as transaction:
        order.clear()
        proxy.stall()
        with pytest.raises(TransactionExpired):
            transaction.connection.execute(PAID)
        proxy.flow()
    assert order[:2] == ["the driver is out", "closed"]
    assert (row(store, job.id), ledger()) == (job, [])


def test_a_roll_back_stops_the_statement_that_another_thread_waits_for(
    store: PostgresStore, ledger: Ledger, server: PostgresServer
) -> None:
    """As when a coroutine is cancelled that awaits a thread with the connection."""
    job = start(store)
    with ThreadPoolExecutor(1) as elsewhere:
        with store.transaction(job.lease, 60.0) as transaction:
            transaction.connection.execute(PAID)
            running = elsewhere.submit(transaction.connection.execute, "SELECT pg_sleep(60)")
            until(lambda: sessions(server, "pg_sleep"))
        with pytest.raises(psycopg.Error):
            running.result(60)
    until(lambda: not sessions(server, "pg_sleep"))
    assert (row(store, job.id), ledger()) == (job, [])


# --- Others meanwhile ------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["read committed", "repeatable read", "serializable"])
def test_the_beat_goes_on_while_it_is_open(stores: Stores, ledger: Ledger, level: str) -> None:
    store = stores(options=f"&options=-c%20default_transaction_isolation%3D{level.replace(' ', '%5C%20')}")
    job = start(store, lease_s=30)
    assert job.worker is not None
    with store.transaction(job.lease, 5.0) as transaction:
        transaction.connection.execute(PAID)
        answer = store.beat(job.worker, [Pulse(job.lease)])
        assert (answer.lost, answer.skipped) == ([], [])
        assert (row(store, job.id).lease_until or 0) > (job.lease_until or 0)
        assert transaction.settle(settlement(job, Succeeded())) is Reply.ACCEPTED
    assert ledger() == ["paid"]


def test_a_fence_that_is_lost_in_the_middle_takes_everything_back(store: PostgresStore, ledger: Ledger) -> None:
    job = start(store)
    with store.transaction(job.lease, 5.0) as transaction:
        transaction.connection.execute("INSERT INTO ledger VALUES ('by the zombie')")
        assert settle(store, job, EXPIRED) is Reply.ACCEPTED  # nobody waits for us
        successor = again(store, row(store, job.id))
        with store.transaction(successor.lease, 5.0) as second:
            second.connection.execute("INSERT INTO ledger VALUES ('by the successor')")
            assert transaction.settle(settlement(job, Succeeded())) is Reply.REFUSED
            assert second.settle(settlement(successor, Succeeded())) is Reply.ACCEPTED
    assert ledger() == ["by the successor"]
    assert row(store, job.id).fence == successor.fence


def test_two_settlements_of_one_attempt_and_only_one_counts(store: PostgresStore, ledger: Ledger) -> None:
    """The reaper's is under way when ours comes: it waits for the row, and then for the verdict of the fence."""
    job = start(store)
    with store.transaction(job.lease, 5.0) as first, store.transaction(job.lease, 5.0) as second:
        first.connection.execute("INSERT INTO ledger VALUES ('first')")
        second.connection.execute("INSERT INTO ledger VALUES ('second')")
        with ThreadPoolExecutor(2) as both:
            answers = [both.submit(each.settle, settlement(job, Succeeded('"ok"'))).result for each in (first, second)]
            outcomes = sorted(str(answer(20)) for answer in answers)
    assert outcomes[0] == "accepted"
    assert outcomes[1] in ("already", "refused")
    assert len(ledger()) == 1


def test_many_at_once_keep_nobody_waiting_for_a_connection(stores: Stores, ledger: Ledger) -> None:
    store = stores(options="&pool_max=2&wait_s=30")
    jobs = [start(store) for _ in range(20)]
    with ExitStack() as opened:
        transactions = [opened.enter_context(store.transaction(job.lease, 30.0)) for job in jobs]
        for transaction in transactions:
            transaction.connection.execute(PAID)
        add(store)
        assert jobs[0].worker is not None
        assert store.beat(jobs[0].worker, [Pulse(jobs[0].lease)]).lost == []
        for job, transaction in zip(jobs, transactions, strict=True):
            assert transaction.settle(settlement(job, Succeeded())) is Reply.ACCEPTED
    assert ledger() == ["paid"] * 20


@pytest.mark.parametrize("cursors", [psycopg.RawCursor, psycopg.ClientCursor])
def test_what_the_task_sets_on_the_connection_does_not_disturb(
    store: PostgresStore, ledger: Ledger, cursors: Any
) -> None:
    job = start(store)
    with store.transaction(job.lease, 5.0) as transaction:
        db = transaction.connection
        db.row_factory, db.cursor_factory, db.prepare_threshold = dict_row, cursors, 0
        assert db.execute("SELECT 1 AS n").fetchone() == {"n": 1}
        db.execute("SET LOCAL search_path TO pg_temp")
        db.execute("INSERT INTO public.ledger VALUES ('paid')")
        assert transaction.settle(settlement(job, Succeeded())) is Reply.ACCEPTED
    assert ledger() == ["paid"]


# --- A session is used again -----------------------------------------------------------------------------


def paid(store: PostgresStore, job: Job | None = None) -> Any:
    """Run a job's transaction to its end; return the connection that it had."""
    job = job or start(store)
    with store.transaction(job.lease, 5.0) as transaction:
        transaction.connection.execute(PAID)
        assert transaction.settle(settlement(job, Succeeded())) is Reply.ACCEPTED
    return transaction.connection


def alive(server: PostgresServer, pid: int) -> bool:
    return server.execute(f"SELECT count(*) FROM pg_stat_activity WHERE pid = {pid}") == [(1,)]


def test_the_next_transaction_has_the_session_and_nothing_that_the_last_one_left_in_it(
    store: PostgresStore, ledger: Ledger, server: PostgresServer
) -> None:
    left = ("SET search_path TO pg_temp", "CREATE TEMP TABLE ledger (entry text)")
    more = ("PREPARE p AS SELECT 1", "SELECT pg_advisory_lock(7)", "LISTEN x", "SET default_transaction_read_only = on")
    job = start(store)
    with store.transaction(job.lease, 5.0) as transaction:
        pid = transaction.connection.info.backend_pid
        for statement in (*left, *more):
            transaction.connection.execute(statement)
        transaction.connection.row_factory = dict_row
        assert transaction.settle(settlement(job, Succeeded())) is Reply.ACCEPTED
    after = start(store)
    with store.transaction(after.lease, 5.0) as transaction:
        db = transaction.connection
        assert db.info.backend_pid == pid
        assert db.execute(
            "SELECT current_setting('search_path'), current_setting('transaction_read_only')"
        ).fetchone() == (
            '"$user", public',
            "off",
        )
        assert db.execute("SELECT count(*) FROM pg_prepared_statements").fetchone() == (0,)
        assert db.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 7").fetchone() == (0,)
        assert db.execute("SELECT count(*) FROM pg_listening_channels()").fetchone() == (0,)
        db.execute(PAID)
        assert transaction.settle(settlement(after, Succeeded())) is Reply.ACCEPTED
    assert ledger() == ["paid"]


def test_a_connection_that_was_kept_is_of_no_use_for_the_next_ones_session(
    store: PostgresStore, ledger: Ledger
) -> None:
    kept = paid(store)
    cursor, job = psycopg.Cursor(kept), start(store)
    with store.transaction(job.lease, 5.0) as transaction:
        for use in (kept.execute, cursor.execute):
            with pytest.raises(psycopg.Error, match="the attempt is over"):
                use("INSERT INTO ledger VALUES ('late')")
        with pytest.raises(psycopg.Error, match="the attempt is over"):
            kept.cancel()
        kept.cancel_safe()
        kept.close()
        assert kept.closed
        transaction.connection.execute("INSERT INTO ledger VALUES ('next')")
        assert transaction.settle(settlement(job, Succeeded())) is Reply.ACCEPTED
    assert ledger() == ["next", "paid"]


def test_a_session_that_did_not_come_to_its_commit_is_not_used_again(store: PostgresStore, ledger: Ledger) -> None:
    job = start(store)
    with store.transaction(job.lease, 5.0) as transaction:
        first = transaction.connection.info.backend_pid
    with store.transaction(job.lease, 5.0) as transaction:
        assert transaction.connection.info.backend_pid != first


def test_sessions_are_kept_for_a_while_and_not_beyond_the_store(
    store: PostgresStore, stores: Stores, ledger: Ledger, server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = start(store)
    with store.transaction(job.lease, 5.0) as transaction:
        pid = transaction.connection.info.backend_pid
        assert transaction.settle(settlement(job, Succeeded())) is Reply.ACCEPTED
    assert alive(server, pid)
    store.close()
    until(lambda: not alive(server, pid))
    other = stores()
    monkeypatch.setattr("holdfast.stores.postgres.transaction._SPARE_S", 0.0)
    job = start(other)
    with other.transaction(job.lease, 5.0) as transaction:
        pid = transaction.connection.info.backend_pid
        assert transaction.settle(settlement(job, Succeeded())) is Reply.ACCEPTED
    until(lambda: not alive(server, pid))


def test_a_store_that_is_closed_meanwhile_keeps_no_session(
    store: PostgresStore, ledger: Ledger, server: PostgresServer
) -> None:
    job = start(store)
    with store.transaction(job.lease, 5.0) as transaction:
        pid = transaction.connection.info.backend_pid
        store.close()
        assert transaction.settle(settlement(job, Succeeded())) is Reply.ACCEPTED
    until(lambda: not alive(server, pid))


def test_a_forked_child_leaves_the_sessions_to_its_parent(
    store: PostgresStore, ledger: Ledger, server: PostgresServer
) -> None:
    paid(store)
    context = multiprocessing.get_context("fork")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # this process has threads
        child = context.Process(target=paid, args=(store, start(store)))
        child.start()
    child.join(60)
    assert child.exitcode == 0
    paid(store)
    assert ledger() == ["paid"] * 3


def test_a_burst_leaves_no_more_sessions_than_the_pool_may_have(
    stores: Stores, ledger: Ledger, server: PostgresServer
) -> None:
    store = stores(options="&pool_max=2")
    jobs = [start(store) for _ in range(5)]
    with ExitStack() as opened:
        transactions = [opened.enter_context(store.transaction(job.lease, 30.0)) for job in jobs]
        pids = [transaction.connection.info.backend_pid for transaction in transactions]
        for job, transaction in zip(jobs, transactions, strict=True):
            assert transaction.settle(settlement(job, Succeeded())) is Reply.ACCEPTED
    until(lambda: sum(alive(server, pid) for pid in pids) == 2)


def test_kept_sessions_that_a_restart_has_cut_do_no_harm(
    store: PostgresStore, ledger: Ledger, server: PostgresServer
) -> None:
    paid(store)
    server.stop()
    server.start()
    paid(store)
    assert ledger() == ["paid", "paid"]


# --- The server goes away --------------------------------------------------------------------------------


@pytest.mark.parametrize("writes_on", [True, False], ids=["in a statement", "at the settlement"])
def test_a_server_that_is_restarted_in_the_middle(
    store: PostgresStore, ledger: Ledger, server: PostgresServer, writes_on: bool
) -> None:
    job = start(store)
    with store.transaction(job.lease, 60.0) as transaction:
        transaction.connection.execute(PAID)
        server.stop()
        server.start()
        if writes_on:
            with pytest.raises(psycopg.OperationalError):
                transaction.connection.execute(PAID)
        with pytest.raises(StoreUnavailable):
            transaction.settle(settlement(job, Succeeded()))
    assert (row(store, job.id), ledger()) == (job, [])
    assert settle(store, job, Failed("the server was gone")) is Reply.ACCEPTED


def test_a_server_that_has_no_room_for_another_session(stores: Stores, server: PostgresServer, ledger: Ledger) -> None:
    store = stores()
    job = start(store)
    server.execute("DROP ROLE IF EXISTS narrow")
    server.execute("CREATE ROLE narrow LOGIN CONNECTION LIMIT 0")
    narrow = PostgresStore(f"{server.url.replace('holdfast@', 'narrow@')}?schema={store._db.options.schema}")
    with pytest.raises(StoreUnavailable, match="too many connections"), narrow.transaction(job.lease, 5.0):
        pytest.fail("it was opened")
    narrow.close()
    server.execute("DROP ROLE narrow")


# --- In a worker -----------------------------------------------------------------------------------------


def declared(house: House, work: Callable[[Context], Any], is_async: bool, **options: Any) -> Any:
    async def awork(ctx: Context) -> Any:
        return work(ctx)

    return house.app.task(name="work", **options)(awork if is_async else work)


@both_kinds
def test_a_swallowed_error_fails_the_attempt_with_the_reason(
    houses: Houses, server: PostgresServer, ledger: Ledger, is_async: bool
) -> None:
    house = houses(server.url)

    def pay(ctx: Context) -> str:
        with ctx.transaction() as db:
            db.execute(PAID)
            with suppress(psycopg.Error):
                db.execute("SELECT 1 / 0")
        return "paid"

    job = declared(house, pay, is_async, retry=ONCE).enqueue()
    house.start()
    with pytest.raises(JobDead, match=r"a statement in the transaction failed and the task went on"):
        job.result(60)
    assert ledger() == []


@both_kinds
def test_a_commit_in_sql_fails_the_attempt(
    houses: Houses, server: PostgresServer, ledger: Ledger, is_async: bool
) -> None:
    house = houses(server.url)

    def pay(ctx: Context) -> str:
        with ctx.transaction() as db, suppress(UsageError):
            db.execute("ROLLBACK")
            db.execute(PAID)
        return "paid"

    job = declared(house, pay, is_async, retry=ONCE).enqueue()
    house.start()
    with pytest.raises(JobDead, match="committed or rolled back by hand"):
        job.result(60)
    assert ledger() == []


@both_kinds
def test_the_effect_of_a_job_whose_server_was_restarted_comes_once(
    houses: Houses, server: PostgresServer, ledger: Ledger, is_async: bool
) -> None:
    house = houses(server.url)
    inside, go_on = threading.Event(), threading.Event()

    def pay(ctx: Context) -> int:
        with ctx.transaction() as db:
            db.execute("INSERT INTO ledger VALUES (%s)", (f"attempt {ctx.attempt}",))
            if ctx.attempt == 1:
                inside.set()
                go_on.wait(60)
        return ctx.attempt

    job = declared(house, pay, is_async, retry=Retry(base_s=0.01)).enqueue()
    house.start()
    assert inside.wait(60)
    server.stop()
    server.start()
    go_on.set()
    assert job.result(60) == 2
    assert ledger() == ["attempt 2"]


@both_kinds
def test_a_zombie_in_its_transaction_leaves_nothing(
    houses: Houses, server: PostgresServer, ledger: Ledger, is_async: bool
) -> None:
    """The reaper takes its job while it is open; on PostgreSQL nobody waits for anybody."""
    first, second = houses(server.url), houses(server.url)
    inside, go_on = threading.Event(), threading.Event()

    def pay(ctx: Context) -> int:
        with ctx.transaction() as db:
            db.execute("INSERT INTO ledger VALUES (%s)", (f"fence {ctx.fence}",))
            if ctx.fence == 1:
                inside.set()
                go_on.wait(60)
        return ctx.fence

    job = declared(first, pay, is_async).enqueue()
    declared(second, pay, is_async)
    first.start(name="first")
    assert inside.wait(60)
    with first.store.down("claim"):
        assert settle(second.store, second.row(job.id), EXPIRED) is Reply.ACCEPTED  # type: ignore[arg-type]
        second.start(name="second")
        second.until_state(job.id, "done")
    go_on.set()
    until(lambda: "stale_report" in second.kinds(job.id))
    assert job.result(60) == 3
    assert ledger() == ["fence 3"]


def test_a_coroutine_that_is_stopped_while_a_thread_has_its_connection(
    houses: Houses, server: PostgresServer, ledger: Ledger
) -> None:
    house = houses(server.url)

    @house.app.task(retry=ONCE, timeout_s=2)
    async def pay(ctx: Context) -> None:
        with ctx.transaction() as db:
            db.execute(PAID)
            await asyncio.to_thread(db.execute, "SELECT pg_sleep(60)")

    job = pay.enqueue()
    house.start()
    with pytest.raises(JobDead, match="timeout_s"):
        job.result(60)
    until(lambda: not sessions(server, "pg_sleep"))
    assert ledger() == []


@both_kinds
def test_more_transactions_than_the_pool_has_connections(
    houses: Houses, server: PostgresServer, ledger: Ledger, is_async: bool
) -> None:
    house = houses(server.url, "&pool_max=2")

    def pay(ctx: Context) -> None:
        with ctx.transaction() as db:
            db.execute("INSERT INTO ledger VALUES (%s)", (ctx.job.id,))

    task = declared(house, pay, is_async)
    jobs = house.app.enqueue_many([task.job() for _ in range(60)])
    house.start(slots=20)
    for job in jobs:
        job.result(60)
    assert ledger() == sorted(job.id for job in jobs)


@both_kinds
def test_the_next_job_is_stored_exactly_when_this_one_ends(
    houses: Houses, server: PostgresServer, ledger: Ledger, is_async: bool
) -> None:
    house = houses(server.url)
    follow = house.app.task(name="follow", queue="later")(lambda: None)

    def pay(ctx: Context) -> str:
        with ctx.transaction() as db:
            job = follow.using(connection=db).enqueue()
        assert house.store.get(job.id) is None
        return job.id

    job = declared(house, pay, is_async).enqueue()
    house.start(queues=("default",))
    assert house.row(job.result(60)).state is State.READY


# --- An outage costs nothing -----------------------------------------------------------------------------


def costs(house: House, job_id: str) -> tuple[int, int]:
    found = house.row(job_id)
    return found.failures, found.crashes


OUTAGES: dict[str, Callable[[Any, Proxy], object]] = {
    "in a statement": lambda db, proxy: (proxy.cut(), db.execute(PAID)),
    "in a statement, behind an error of the task": lambda db, proxy: _wrapped(db, proxy),
    "at the settlement": lambda db, proxy: (db.execute(PAID), proxy.cut()),
}


def _wrapped(db: Any, proxy: Proxy) -> None:
    proxy.cut()
    try:
        db.execute(PAID)
    except psycopg.Error as error:
        raise ValueError("no payment today") from error


@both_kinds
@pytest.mark.parametrize("meet", OUTAGES.values(), ids=OUTAGES.keys())
def test_an_outage_inside_the_transaction_costs_no_budget(
    houses: Houses, proxy: Proxy, ledger: Ledger, is_async: bool, meet: Callable[[Any, Proxy], object]
) -> None:
    house = houses(proxy.url)

    def pay(ctx: Context) -> int:
        with ctx.transaction() as db:
            if ctx.attempt == 1:
                meet(db, proxy)
            else:
                db.execute(PAID)
        return ctx.attempt

    job = declared(house, pay, is_async, retry=ONCE).enqueue()
    house.start()
    assert job.result(60) == 2
    assert costs(house, job.id) == (0, 0)
    assert ledger() == ["paid"]
    [released] = house.events(job.id, "released")
    assert "the store failed inside ctx.transaction()" in str(released.detail)


def test_a_transaction_that_cannot_be_opened_in_an_outage_costs_no_budget(houses: Houses, proxy: Proxy) -> None:
    house = houses(proxy.url)

    @house.app.task(retry=ONCE)
    def pay(ctx: Context) -> int:
        if ctx.attempt == 1:
            proxy.refuse()
            proxy.cut()
            try:
                with ctx.transaction():
                    pytest.fail("it was opened")
            finally:
                proxy.listen()
        with ctx.transaction() as db:
            db.execute("SELECT 1")
        return ctx.attempt

    job = pay.enqueue()
    house.start()
    assert job.result(60) == 2
    assert costs(house, job.id) == (0, 0)


@pytest.mark.parametrize(
    ("error", "is_one"),
    [
        (psycopg.errors.DiskFull, True),
        (psycopg.errors.TooManyConnections, True),
        (psycopg.errors.IoError, True),
        (psycopg.errors.OutOfMemory, False),
        (psycopg.errors.ConfigurationLimitExceeded, False),
    ],
)
def test_a_statement_that_asks_for_too_much_is_not_an_outage(error: type[psycopg.Error], is_one: bool) -> None:
    assert is_outage(error("refused")) is is_one


@pytest.mark.parametrize(("on_crash", "state"), [("hold", "held"), ("fail", "dead")])
@pytest.mark.parametrize("meet", OUTAGES.values(), ids=OUTAGES.keys())
def test_an_outage_inside_the_transaction_passes_through_on_crash(
    houses: Houses, proxy: Proxy, ledger: Ledger, on_crash: OnCrash, state: str, meet: Callable[[Any, Proxy], object]
) -> None:
    """What the handler did outside the store is not undone with its writes: it must not do that again by itself."""
    house = houses(proxy.url)
    starts: list[int] = []

    @house.app.task(on_crash=on_crash, retry=ONCE)
    def pay(ctx: Context) -> None:
        starts.append(ctx.attempt)
        with ctx.transaction() as db:
            meet(db, proxy)

    job = pay.enqueue()
    house.start()
    house.until_state(job.id, state, 60)
    found = house.row(job.id)
    assert (found.error or "").startswith("the store failed inside ctx.transaction(): ")
    assert found.stop_reason == "on_crash"
    assert costs(house, job.id) == (0, 0)
    assert (starts, ledger()) == ([1], [])


def test_an_outage_is_not_recorded_as_a_step_that_failed(houses: Houses, proxy: Proxy, ledger: Ledger) -> None:
    house = houses(proxy.url)
    tries: list[int] = []

    def charge(db: Any) -> str:
        tries.append(1)
        if len(tries) == 1:
            proxy.cut()
        db.execute(PAID)
        return "charged"

    @house.app.workflow(retry=ONCE)
    def order(flow: Flow) -> str:
        return flow.transaction(charge)

    job = order.enqueue()
    house.start()
    assert job.result(60) == "charged"
    assert costs(house, job.id) == (0, 0)
    assert ledger() == ["paid"]
    [step] = house.store.steps(job.id)
    assert (step.state, step.error) == ("recorded", None)


@both_kinds
@pytest.mark.parametrize("meet", OUTAGES.values(), ids=OUTAGES.keys())
@pytest.mark.parametrize("on_crash", ["retry", "rollback"])
def test_an_outage_in_a_transaction_step_passes_through_on_crash(
    houses: Houses,
    proxy: Proxy,
    ledger: Ledger,
    is_async: bool,
    meet: Callable[[Any, Proxy], object],
    on_crash: OnCrash,
) -> None:
    house = houses(proxy.url)
    done: list[str] = []

    def reserve() -> str:
        done.append("reserve")
        return "reserved"

    def give_back(result: str | None) -> None:
        done.append("give back")

    def charge(db: Any) -> str:
        done.append("charge")
        if done.count("charge") == 1:
            meet(db, proxy)
        else:
            db.execute(PAID)
        return "charged"

    def order(flow: Flow) -> str:
        flow.step(reserve, undo=give_back)
        return flow.transaction(charge)

    async def aorder(flow: AsyncFlow) -> str:
        await flow.step(reserve, undo=give_back)
        return await flow.transaction(charge)

    declare = house.app.workflow(name="order", retry=ONCE, on_crash=on_crash)
    job = (declare(aorder) if is_async else declare(order)).enqueue()
    house.start()
    house.until_state(job.id, "done" if on_crash == "retry" else "rolled_back", 60)
    assert done == ["reserve", "charge", "charge" if on_crash == "retry" else "give back"]
    assert ledger() == (["paid"] if on_crash == "retry" else [])
    assert costs(house, job.id) == (0, 0)
    assert house.kinds(job.id) == ["released", "succeeded", *(["rolled_back"] if on_crash == "rollback" else [])]


def test_an_error_of_the_task_in_its_transaction_counts_as_before(houses: Houses, server: PostgresServer) -> None:
    house = houses(server.url)

    @house.app.task(retry=ONCE)
    def pay(ctx: Context) -> None:
        with ctx.transaction() as db:
            db.execute("SELECT 1 / 0")

    job = pay.enqueue()
    house.start()
    with pytest.raises(JobDead, match="division by zero"):
        job.result(60)


@pytest.mark.parametrize("whose", ["its own", "its parent's"])
def test_a_row_that_is_locked_at_the_commit_is_waited_for(
    houses: Houses,
    server: PostgresServer,
    schema: str,
    ledger: Ledger,
    whose: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its success must not be reported without what it wrote."""
    monkeypatch.setattr("holdfast.stores.postgres.transaction._LOCK_MS", "5000")  # a starved machine is slow to look
    waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%FOR NO KEY UPDATE%'"
    house = houses(server.url)
    locked: Queue[str] = Queue()

    with psycopg.connect(server.url) as psql:

        @house.app.task(retry=ONCE)
        def pay(ctx: Context) -> int:
            with ctx.transaction() as db:
                db.execute(PAID)
            psql.execute(f"SELECT FROM {schema}.job WHERE id = %s FOR UPDATE", (ctx.job.parent or ctx.job.id,))
            locked.put(ctx.job.id)
            return ctx.attempt

        @house.app.workflow
        def order(flow: Flow) -> int:
            return flow.result(flow.start(pay))

        job = pay.enqueue() if whose == "its own" else order.enqueue()
        house.start()
        paying = locked.get(timeout=60)
        until(lambda: server.execute(waits) == [(1,)], "the settlement has met the lock")
        assert (house.row(paying).state, ledger()) == ("running", [])
        psql.rollback()
        assert job.result(60) == 1
    assert ledger() == ["paid"]


def test_a_job_whose_row_stays_locked_at_the_commit_runs_again(
    houses: Houses, server: PostgresServer, schema: str, ledger: Ledger
) -> None:
    house = houses(server.url)
    with psycopg.connect(server.url) as psql:

        @house.app.task(retry=ONCE)
        def pay(ctx: Context) -> int:
            with ctx.transaction() as db:
                db.execute(PAID)
            if ctx.attempt == 1:
                psql.execute(f"SELECT FROM {schema}.job WHERE id = %s FOR UPDATE", (ctx.job.id,))
            return ctx.attempt

        job = pay.enqueue()
        runner = house.start()
        until(lambda: runner._settler._locked, "the settler waits with the release")
        psql.rollback()
        assert job.result(60) == 2
    assert costs(house, job.id) == (0, 0)
    assert ledger() == ["paid"]
