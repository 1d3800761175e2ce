"""ctx.transaction(): the task's own writes commit with its settle, or not at all (P6; DESIGN 15.10)."""

import asyncio
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast import App, Context, Flow, JobDead, Retry
from holdfast.core.policy import OnCrash
from holdfast.core.settlement import settlement
from holdfast.core.verdict import Lost, judge
from holdfast.errors import LeaseLost, StoreUnavailable, StoreUnsupported, TransactionExpired, UsageError
from holdfast.stores.protocol import Reply
from holdfast.stores.sqlite.connection import WriteConnection
from holdfast.stores.sqlite.transaction import SqliteTransaction
from tests.worker.house import House, until

ONCE = Retry(attempts_max=1)


@pytest.fixture
def effects(file_house: House, tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """A table of the user's own in the same file, as somebody else sees it."""
    connection = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None, timeout=60, check_same_thread=False)
    connection.execute("CREATE TABLE effect (job TEXT, fence INTEGER)")
    yield connection
    connection.close()


@pytest.fixture
def shared_effects(shared_house: House, tmp_path: Path) -> Iterator[Any]:
    """The same table in the same database, whichever it is."""
    where = shared_house.app.url
    if where.startswith("sqlite"):
        path = tmp_path / "jobs.db"
        connection: Any = sqlite3.connect(path, isolation_level=None, timeout=60, check_same_thread=False)
    else:
        connection = psycopg.connect(where, autocommit=True)
    connection.execute("CREATE TABLE effect (job TEXT, fence INTEGER)")
    yield connection
    connection.execute("DROP TABLE effect")
    connection.close()


def seen(effects: Any) -> list[Any]:
    return effects.execute("SELECT job, fence FROM effect ORDER BY job, fence").fetchall()


def write(ctx: Context, db: Any) -> None:
    marks = "?, ?" if isinstance(db, sqlite3.Connection) else "%s, %s"
    db.execute(f"INSERT INTO effect VALUES ({marks})", (ctx.job.id, ctx.fence))


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_writes_commit_with_the_settle(shared_house: House, shared_effects: Any, is_async: bool) -> None:
    between: list[Any] = []

    def pay(ctx: Context) -> str:
        with ctx.transaction() as db:
            write(ctx, db)
        between.append(seen(shared_effects))  # the block is over, and nothing is committed yet
        return "paid"

    async def apay(ctx: Context) -> str:
        return pay(ctx)

    task = shared_house.app.task(name="pay")(apay if is_async else pay)
    shared_house.start()
    job = task.enqueue()
    assert job.result(60) == "paid"
    assert between == [[]]
    assert seen(shared_effects) == [(job.id, 1)]
    assert shared_house.kinds(job.id) == ["succeeded"]


def test_a_plain_cursor_and_many_rows_work_too(file_house: House, effects: sqlite3.Connection) -> None:
    @file_house.app.task
    def pay(ctx: Context) -> int:
        with ctx.transaction() as db:
            cursor = db.cursor()
            cursor.executemany("INSERT INTO effect VALUES (?, ?)", [("a", 1), ("b", 2)])
            return int(cursor.execute("SELECT count(*) FROM effect").fetchone()[0])

    file_house.start()
    assert pay.enqueue().result(60) == 2
    assert len(seen(effects)) == 2


@pytest.mark.parametrize("where", ["inside", "after"])
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_handler_that_raises_takes_its_writes_back(
    shared_house: House, shared_effects: Any, where: str, is_async: bool
) -> None:
    def pay(ctx: Context) -> None:
        with ctx.transaction() as db:
            write(ctx, db)
            if where == "inside":
                raise ValueError(where)
        raise ValueError(where)

    async def apay(ctx: Context) -> None:
        pay(ctx)

    task = shared_house.app.task(name="pay", retry=ONCE)(apay if is_async else pay)
    shared_house.start()
    job = task.enqueue()
    with pytest.raises(JobDead, match=where):
        job.result(60)
    assert seen(shared_effects) == []


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_result_that_cannot_be_stored_takes_the_writes_back_and_frees_the_file_at_once(
    file_house: House, effects: sqlite3.Connection, is_async: bool
) -> None:
    def pay(ctx: Context) -> Any:
        with ctx.transaction() as db:
            write(ctx, db)
        return object()

    async def apay(ctx: Context) -> Any:
        return pay(ctx)

    task = file_house.app.task(name="pay", retry=ONCE, lease_s=600)(apay if is_async else pay)
    file_house.start()
    job = task.enqueue()
    with pytest.raises(JobDead, match="the result could not be stored"):
        job.result(60)  # not the hundred seconds after which the transaction would expire
    assert seen(effects) == []


def test_the_effect_of_a_job_that_needed_several_attempts_is_there_once(
    shared_house: House, shared_effects: Any
) -> None:
    @shared_house.app.task(retry=Retry(attempts_max=4, base_s=0.0, cap_s=0.0))
    def pay(ctx: Context) -> None:
        with ctx.transaction() as db:
            write(ctx, db)
        if ctx.attempt < 4:
            raise ValueError("after the write")

    shared_house.start()
    jobs = shared_house.app.enqueue_many([pay.job() for _ in range(10)])
    for job in jobs:
        job.result(60)
    assert seen(shared_effects) == sorted((job.id, 4) for job in jobs)


def test_writes_are_refused_once_the_lease_is_lost(shared_house: House, shared_effects: Any) -> None:
    """The attempt is reaped while it runs: what it writes afterwards is never seen, the successor's is."""
    house = shared_house
    entered, go_on = threading.Event(), threading.Event()
    met: list[BaseException] = []

    @house.app.task
    def pay(ctx: Context) -> int:
        try:
            if ctx.attempt == 1:
                entered.set()
                go_on.wait(60)  # on a slow machine it hears of the loss here
            with ctx.transaction() as db:
                write(ctx, db)
        except BaseException as error:
            met.append(error)
            raise
        return ctx.fence

    house.start(slots=4)
    job = pay.enqueue()
    entered.wait(60)
    assert reap(house, job.id) is Reply.ACCEPTED
    house.until_state(job.id, "done")  # by the successor
    go_on.set()
    until(lambda: met, "the zombie wakes")
    assert isinstance(met[0], LeaseLost)
    assert job.result(60) == 3  # one claim, one reaping, one claim
    assert seen(shared_effects) == [(job.id, 3)]
    until(lambda: "stale_report" in house.kinds(job.id))
    assert house.kinds(job.id).count("stale_report") == 1


def test_writes_are_taken_back_when_the_lease_is_lost_before_the_commit(
    file_house: House, effects: sqlite3.Connection
) -> None:
    """The lease is lost after the transaction began. On SQLite nobody else can write then: the task does it itself."""
    house = file_house

    @house.app.task
    def pay(ctx: Context) -> int:
        with ctx.transaction() as db:
            write(ctx, db)
            if ctx.attempt == 1:
                db.execute("UPDATE holdfast_job SET fence = fence + 1 WHERE id = ?", (ctx.job.id,))
        return ctx.fence

    house.start()
    job = pay.enqueue()
    assert job.result(60) == 1  # the raised fence was rolled back with the rest; the report came through after it
    assert seen(effects) == []


def test_a_transaction_that_is_open_for_too_long_is_rolled_back(file_house: House, effects: sqlite3.Connection) -> None:
    """DESIGN 15.10: it holds the only write lock, so it gets half a beat."""
    house = file_house
    met: list[BaseException] = []

    @house.app.task(lease_s=12, retry=ONCE)  # a beat of 4 s, a transaction of 2 s
    def dawdle(ctx: Context) -> None:
        with ctx.transaction() as db:
            write(ctx, db)
            effects.execute("INSERT INTO effect VALUES ('other', 0)")  # waits until the lock is taken from us
            try:
                write(ctx, db)
            except TransactionExpired as error:
                met.append(error)
                raise

    house.start()
    job = dawdle.enqueue()
    with pytest.raises(JobDead, match=r"was open for more than 2 s and was rolled back; keep it short"):
        job.result(60)
    assert met
    assert seen(effects) == [("other", 0)]
    assert house.row(job.id).crashes == 0


def test_a_transaction_that_expired_after_its_block_fails_the_attempt(
    file_house: House, effects: sqlite3.Connection
) -> None:
    house = file_house

    @house.app.task(lease_s=12, retry=ONCE)
    def dawdle(ctx: Context) -> None:
        with ctx.transaction() as db:
            write(ctx, db)
        effects.execute("INSERT INTO effect VALUES ('other', 0)")

    house.start()
    job = dawdle.enqueue()
    with pytest.raises(JobDead, match="was rolled back"):
        job.result(60)
    assert seen(effects) == [("other", 0)]


def test_a_long_statement_does_not_keep_the_lock(file_house: House, effects: sqlite3.Connection) -> None:
    house = file_house

    @house.app.task(lease_s=1.2, retry=ONCE)
    def grind(ctx: Context) -> None:
        with ctx.transaction() as db:
            db.execute(
                "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) "
                "INSERT INTO effect SELECT 'x', count(*) FROM n"
            )

    house.start()
    job = grind.enqueue()
    with pytest.raises(JobDead):
        job.result(60)
    assert seen(effects) == []


BY_HAND = {
    "commit()": lambda db: db.commit(),
    "rollback()": lambda db: db.rollback(),
    "COMMIT": lambda db: db.execute("COMMIT"),
    "ROLLBACK": lambda db: db.execute("ROLLBACK"),
    "BEGIN": lambda db: db.execute("BEGIN"),
    "end, through a cursor": lambda db: db.cursor().execute("END"),
    "close": lambda db: db.close(),
    "executescript": lambda db: db.executescript("SELECT 1"),
    "executescript of a cursor": lambda db: db.cursor().executescript("SELECT 1"),
}


@pytest.mark.parametrize("act", BY_HAND.values(), ids=BY_HAND.keys())
def test_no_commit_by_hand_can_part_the_writes_from_the_settle(
    file_house: House, effects: sqlite3.Connection, act: Any
) -> None:
    refused: list[str] = []

    @file_house.app.task(retry=ONCE)
    def pay(ctx: Context) -> None:
        with ctx.transaction() as db:
            write(ctx, db)
            try:
                act(db)
            except sqlite3.Error as error:
                refused.append(str(error))
        raise ValueError("after all")

    file_house.start()
    with pytest.raises(JobDead, match="after all"):
        pay.enqueue().result(60)
    assert refused
    assert seen(effects) == []


def test_a_with_block_of_the_driver_commits_nothing(file_house: House, effects: sqlite3.Connection) -> None:
    """`with connection:` is how people commit in sqlite3."""

    @file_house.app.task(retry=ONCE)
    def pay(ctx: Context) -> None:
        with ctx.transaction() as db:
            with db:
                write(ctx, db)
            raise ValueError("after all")

    file_house.start()
    with pytest.raises(JobDead):
        pay.enqueue().result(60)
    assert seen(effects) == []


@pytest.mark.parametrize(
    ("close", "waits", "why"),
    [
        (lambda db: db.close(), False, "do not close it by hand"),
        (lambda db: db.close(), True, "do not close it by hand"),
        (lambda db: sqlite3.Connection.close(db), False, "was closed by hand"),
        (lambda db: sqlite3.Connection.close(db), True, "was open for more than 2 s and was rolled back"),
    ],
    ids=["close", "close and wait", "close past our own", "close past our own and wait"],
)
def test_a_task_that_closes_the_connection_fails_alone_and_others_go_on_writing(
    file_house: House, effects: sqlite3.Connection, close: Any, waits: bool, why: str
) -> None:
    @file_house.app.task(retry=ONCE, lease_s=12 if waits else 60)
    def pay(ctx: Context) -> None:
        with ctx.transaction() as db:
            write(ctx, db)
            try:
                close(db)
            finally:
                if waits:
                    time.sleep(2.5)  # it has half a beat, and real time has to pass

    @file_house.app.task
    def innocent() -> str:
        return "done"

    file_house.start()
    first = pay.enqueue()
    with pytest.raises(JobDead):
        first.result(60)
    assert innocent.enqueue().result(60) == "done"
    assert why in str(file_house.row(first.id).error)
    assert seen(effects) == []


def test_the_turn_to_write_is_freed_whatever_the_cleanup_does(
    file_house: House, effects: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    @file_house.app.task(retry=ONCE)
    def pay(ctx: Context) -> None:
        with monkeypatch.context() as patch, ctx.transaction() as db:
            write(ctx, db)
            patch.setattr(file_house.store.real._db, "undo", fail)
            raise ValueError("after all")

    file_house.start()
    with pytest.raises(JobDead):
        pay.enqueue().result(60)
    assert seen(effects) == []


def test_a_savepoint_is_the_users_own_business(file_house: House, effects: sqlite3.Connection) -> None:
    @file_house.app.task(retry=ONCE)
    def pay(ctx: Context) -> None:
        with ctx.transaction() as db:
            db.execute("SAVEPOINT a")
            write(ctx, db)
            db.execute("ROLLBACK TO a")
            db.execute("RELEASE a")
            db.execute("INSERT INTO effect VALUES ('kept', 1)")

    file_house.start()
    pay.enqueue().result(60)
    assert seen(effects) == [("kept", 1)]


def test_the_connection_is_of_no_use_after_the_attempt(file_house: House, effects: sqlite3.Connection) -> None:
    """Not even in the moment between the commit and the clean-up."""
    kept: list[Any] = []

    @file_house.app.task
    def pay(ctx: Context) -> None:
        with ctx.transaction() as db:
            kept.append(db)

    file_house.start()
    pay.enqueue().result(60)
    with pytest.raises(sqlite3.Error):
        kept[0].execute("INSERT INTO effect VALUES ('late', 1)")
    assert seen(effects) == []


def test_a_second_transaction_in_one_attempt_is_refused(file_house: House, effects: sqlite3.Connection) -> None:
    @file_house.app.task(retry=ONCE)
    def pay(ctx: Context) -> None:
        with ctx.transaction() as db:
            write(ctx, db)
        with ctx.transaction():
            pass

    file_house.start()
    with pytest.raises(JobDead, match=UsageError.__name__):
        pay.enqueue().result(60)
    assert seen(effects) == []


def test_a_transaction_that_gets_no_turn_fails_the_attempt_and_leaves_nothing_behind(tmp_path: Path) -> None:
    house = House(App(f"sqlite:///{tmp_path}/jobs.db?busy_s=0.3"))
    holder = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None, check_same_thread=False)

    @house.app.task(retry=ONCE)
    def pay(ctx: Context) -> None:
        holder.execute("BEGIN IMMEDIATE")
        try:
            with ctx.transaction():
                pass
        finally:
            holder.execute("ROLLBACK")

    @house.app.task
    def fine(ctx: Context) -> str:
        with ctx.transaction() as db:
            db.execute("CREATE TABLE effect (job)")
        return "fine"

    house.start()
    with pytest.raises(JobDead, match="stayed locked by another transaction of this process"):
        pay.enqueue().result(60)
    assert fine.enqueue().result(60) == "fine"
    spare = house.store.real._db._spare  # type: ignore[attr-defined]
    assert {type(each) for stock in spare.values() for each in stock} <= {sqlite3.Connection, WriteConnection}
    assert spare.keys() == {sqlite3.Connection, WriteConnection}
    holder.close()
    house.close()


def test_a_store_without_sql_says_so() -> None:
    house = House(App("memory://"))

    @house.app.task(retry=ONCE)
    def pay(ctx: Context) -> None:
        with ctx.transaction():
            pass

    house.start()
    with pytest.raises(JobDead, match=StoreUnsupported.__name__):
        pay.enqueue().result(60)
    house.close()


def test_a_commit_that_fails_is_a_failure_and_the_slot_comes_back(
    file_house: House, effects: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worst place for an error is the commit itself; a deferred constraint is checked there. The attempt still
    gets its one ending."""
    house = file_house

    @house.app.task(retry=ONCE)
    def orphan(ctx: Context) -> None:
        with ctx.transaction() as db:
            db.execute("INSERT INTO child VALUES (404)")

    @house.app.task
    def fine() -> str:
        return "fine"

    effects.execute("CREATE TABLE parent (id INTEGER PRIMARY KEY)")
    effects.execute("CREATE TABLE child (id REFERENCES parent DEFERRABLE INITIALLY DEFERRED)")
    connections = house.store.real._db  # type: ignore[attr-defined]
    lax = connections.open

    def strict(*arguments: Any) -> Any:
        connection = lax(*arguments)
        connection.execute("PRAGMA foreign_keys = ON")
        return connection

    monkeypatch.setattr(connections, "open", strict)
    house.start(slots=1)
    with pytest.raises(JobDead, match="FOREIGN KEY constraint failed"):
        orphan.enqueue().result(60)
    assert fine.enqueue().result(60) == "fine"


def test_a_cancellation_that_comes_during_the_commit_changes_nothing(
    file_house: House, effects: sqlite3.Connection
) -> None:
    @file_house.app.task
    async def pay(ctx: Context) -> str:
        with ctx.transaction() as db:
            write(ctx, db)
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().call_soon(task.cancel)  # as a stop does that was sent just before the return
        return "paid"

    file_house.start(slots=1)
    job = pay.enqueue()
    assert job.result(60) == "paid"
    assert seen(effects) == [(job.id, 1)]
    assert pay.enqueue().result(60) == "paid"


def reap(house: House, job_id: str) -> Reply:
    """Settle a running attempt as lost, as a reaper does that believes its worker dead."""
    row = house.row(job_id)
    verdict = judge(Lost("expired", "by the test"), row, time.time(), chance=0.0)
    answer: Reply = house.store.settle([settlement(row, verdict)])[0]
    return answer


@pytest.mark.parametrize("on_crash", ["retry", "hold"])
def test_a_full_disk_inside_the_transaction_costs_no_budget(
    file_house: House, effects: sqlite3.Connection, on_crash: OnCrash
) -> None:
    @file_house.app.task(retry=ONCE, on_crash=on_crash)
    def pay(ctx: Context) -> int:
        with ctx.transaction() as db:
            if ctx.attempt == 1:
                db.execute("PRAGMA max_page_count = 1")  # as many as there are: it never gets smaller
                db.execute("INSERT INTO effect VALUES (?, 1)", ("x" * 1_000_000,))
            write(ctx, db)
        return ctx.attempt

    job = pay.enqueue()
    file_house.start()
    if on_crash == "retry":
        assert job.result(60) == 2
    else:
        file_house.until_state(job.id, "held", 60)
        assert "the store failed inside ctx.transaction(): " in (file_house.row(job.id).error or "")
    assert (file_house.row(job.id).failures, file_house.row(job.id).crashes) == (0, 0)
    assert len(seen(effects)) == (1 if on_crash == "retry" else 0)


@pytest.mark.usefixtures("effects")
def test_an_outage_inside_a_transaction_of_a_workflow_is_reported_by_its_name(file_house: House) -> None:
    def pay(db: sqlite3.Connection, attempt: int) -> int:
        if attempt == 1:
            db.execute("PRAGMA max_page_count = 1")
            db.execute("INSERT INTO effect VALUES (?, 1)", ("x" * 1_000_000,))
        return attempt

    @file_house.app.workflow
    def order(flow: Flow) -> int:
        return flow.transaction(pay, flow.ctx.attempt)

    job = order.enqueue()
    file_house.start()
    assert job.result(60) == 2
    [released] = file_house.events(job.id, "released")
    assert "the store failed inside flow.transaction: " in str(released.detail)


def test_a_careful_job_whose_commit_meets_an_outage_is_held_after_one_start(
    file_house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The card was charged: whether the store took the ending or not, nobody may charge it again unasked."""
    starts: list[int] = []

    def unavailable(*_: object) -> Reply:
        raise StoreUnavailable("the answer to the commit was lost")

    monkeypatch.setattr(SqliteTransaction, "settle", unavailable)

    @file_house.app.task(on_crash="hold", retry=ONCE)
    def charge(ctx: Context) -> None:
        starts.append(ctx.attempt)
        with ctx.transaction() as db:
            db.execute("SELECT 1")

    job = charge.enqueue()
    file_house.start()
    file_house.until_state(job.id, "held", 60)
    found = file_house.row(job.id)
    assert found.error == "the store failed inside ctx.transaction(): the answer to the commit was lost"
    assert found.stop_reason == "on_crash"
    assert (starts, found.failures, found.crashes) == ([1], 0, 0)


def book_all(house: House, effects: Any, jobs: int, *, awaits: bool) -> None:
    """Run that many async jobs at once, each with a transaction of its own."""

    @house.app.task
    async def book(ctx: Context) -> None:
        with ctx.transaction() as db:
            write(ctx, db)
            if awaits:
                await asyncio.sleep(0.01)

    booked = sorted(house.app.enqueue_many([book.job() for _ in range(jobs)]), key=lambda job: job.id)
    house.start(slots=jobs)
    for job in booked:
        row = house.until_state(job.id, "done")
        assert row.failures == 0
        assert row.attempt == 1 or awaits  # nobody was sent away who could have waited
    assert [job for job, _ in seen(effects)] == [job.id for job in booked]


def test_transactions_of_async_jobs_commit_while_the_next_one_waits_for_the_loop(
    shared_house: House, shared_effects: Any
) -> None:
    began_at = time.monotonic()
    book_all(shared_house, shared_effects, 12, awaits=False)
    assert time.monotonic() - began_at < 30  # each one waited 5 s for its predecessor to expire


def test_async_jobs_that_await_inside_a_transaction_do_not_wait_for_each_other_for_ever(
    shared_house: House, shared_effects: Any
) -> None:
    book_all(shared_house, shared_effects, 4, awaits=True)


def test_a_thread_that_has_a_transaction_open_is_not_kept_waiting_for_itself(file_house: House, effects: Any) -> None:
    @file_house.app.task(name="other")
    def other() -> None: ...

    @file_house.app.task(retry=ONCE)
    def careless(ctx: Context) -> None:
        with ctx.transaction():
            other.enqueue()

    began_at = time.monotonic()
    job = careless.enqueue()
    file_house.start()
    row = until(lambda: file_house.row(job.id) if file_house.events(job.id) else None, "it is refused")
    assert time.monotonic() - began_at < 8.0  # it was after 10 s
    assert "a transaction of yours is open" in str(file_house.events(job.id)[-1].detail), row


def test_the_commit_of_an_async_job_needs_no_thread_that_handlers_have_blocked(
    shared_house: House, shared_effects: Any
) -> None:
    release = threading.Event()

    @shared_house.app.task
    async def blocked() -> None:
        loop = asyncio.get_running_loop()
        for _ in range(64):
            loop.run_in_executor(None, release.wait, 60)

    @shared_house.app.task
    async def pay(ctx: Context) -> None:
        with ctx.transaction() as db:
            write(ctx, db)

    try:
        shared_house.start()
        first = blocked.enqueue()
        shared_house.until_state(first.id, "done")
        job = pay.enqueue()
        shared_house.until_state(job.id, "done")
    finally:
        release.set()
    assert seen(shared_effects) == [(job.id, 1)]


def test_an_async_job_that_enqueues_while_another_awaits_inside_its_transaction_is_charged_nothing(
    file_house: House, effects: Any
) -> None:
    inside, refused = threading.Event(), threading.Event()

    @file_house.app.task(name="other")
    def other() -> None: ...

    @file_house.app.task(name="awaits", retry=ONCE)
    async def awaits(ctx: Context) -> None:
        with ctx.transaction() as db:
            write(ctx, db)
            inside.set()
            while not refused.is_set():
                await asyncio.sleep(0.01)

    @file_house.app.task(name="enqueues", retry=ONCE)
    async def enqueues() -> None:
        while not inside.is_set():
            await asyncio.sleep(0.01)
        try:
            other.enqueue()
        finally:
            refused.set()

    second, first = enqueues.enqueue(), awaits.enqueue()
    file_house.start(slots=2)
    assert file_house.until_state(first.id, "done").attempt == 1
    row = file_house.until_state(second.id, "done")
    assert (row.attempt, row.failures) == (2, 0)
    assert "another async job of this worker" in str(file_house.events(second.id, "released"))
    assert seen(effects) == [(first.id, 1)]
