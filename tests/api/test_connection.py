"""using(connection=…): the job is stored by the caller's own transaction, and by nothing else."""

import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

import pytest
import sqlalchemy
from django.db import transaction
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from holdfast import App
from holdfast.errors import StoreLocked, StoreUnavailable, StoreUnsupported, UsageError
from tests.api.doors import with_django


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    with App(f"sqlite:///{tmp_path}/jobs.db?synchronous=normal") as app:
        yield app


@pytest.fixture
def orders(app: App, tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """The caller's own connection to the same file, with a table of its own."""
    app.store.counts()
    connection = sqlite3.connect(tmp_path / "jobs.db")
    connection.execute("CREATE TABLE orders (number INTEGER)")
    connection.commit()
    yield connection
    connection.close()


def test_the_job_appears_with_the_commit_and_not_before(app: App, orders: sqlite3.Connection) -> None:
    ship = app.task(ship_order)
    orders.execute("INSERT INTO orders VALUES (1)")
    job = ship.using(connection=orders).enqueue(1)
    assert app.counts()["ready"] == 0
    orders.commit()
    assert app.get(job.id).state == "ready"


def test_a_rollback_leaves_neither_the_row_nor_the_job(app: App, orders: sqlite3.Connection) -> None:
    ship = app.task(ship_order)
    orders.execute("INSERT INTO orders VALUES (1)")
    ship.using(connection=orders).enqueue(1)
    orders.rollback()
    assert app.counts()["ready"] == 0
    assert orders.execute("SELECT count(*) FROM orders").fetchone() == (0,)


def test_a_transaction_of_the_caller_that_keeps_a_new_file_from_wal_mode_is_named_as_the_cause(tmp_path: Path) -> None:
    with App(f"sqlite:///{tmp_path}/new.db?busy_s=0.2") as app, closing(sqlite3.connect(tmp_path / "new.db")) as db:
        ship = app.task(ship_order)
        db.execute("CREATE TABLE orders (number INTEGER)")
        db.execute("INSERT INTO orders VALUES (1)")
        own = "this program has a transaction open on it; open the store before that transaction: call app.counts"
        with pytest.raises(StoreUnavailable, match=own):
            ship.using(connection=db).enqueue(1)
        db.commit()
        app.counts()
        ship.using(connection=db).enqueue(1)
        db.commit()
        assert app.counts()["ready"] == 1


def test_without_an_open_transaction_one_is_begun_for_the_caller_to_end(app: App, orders: sqlite3.Connection) -> None:
    ship = app.task(ship_order)
    ship.using(connection=orders).enqueue(1)
    assert orders.in_transaction
    assert app.counts()["ready"] == 0
    orders.commit()
    assert app.counts()["ready"] == 1


def test_a_transaction_that_has_read_an_older_state_is_told_to_begin_again(
    app: App, orders: sqlite3.Connection
) -> None:
    ship = app.task(ship_order)
    orders.execute("BEGIN")
    orders.execute("SELECT count(*) FROM holdfast_job").fetchall()
    ship.enqueue(1)
    with pytest.raises(StoreLocked, match="roll it back and repeat it"):
        ship.using(connection=orders).enqueue(2)
    orders.rollback()
    ship.using(connection=orders).enqueue(2)
    orders.commit()
    assert app.counts()["ready"] == 2


def test_in_autocommit_mode_the_job_is_stored_at_once(app: App, orders: sqlite3.Connection) -> None:
    orders.isolation_level = None
    app.task(ship_order).using(connection=orders).enqueue(1)
    assert not orders.in_transaction
    assert app.counts()["ready"] == 1


def test_many_jobs_and_a_taken_key_in_one_transaction(app: App, orders: sqlite3.Connection) -> None:
    ship = app.task(ship_order)
    first = ship.using(key="order-1").enqueue(1)
    sender = ship.using(connection=orders)
    jobs = app.enqueue_many([sender.job(2), sender.using(key="order-1").job(1)])
    orders.commit()
    assert [job.existed for job in jobs] == [False, True]
    assert jobs[1].id == first.id
    assert app.counts()["ready"] == 2


def test_the_callers_row_and_text_factories_do_not_disturb(app: App, orders: sqlite3.Connection) -> None:
    orders.row_factory = lambda cursor, row: {"first": row[0]}
    orders.text_factory = bytes
    ship = app.task(ship_order)
    ship.using(key="k").enqueue(1)
    job = ship.using(connection=orders, key="k").enqueue(1)
    orders.commit()
    assert job.existed


def test_a_connection_to_another_file_is_refused_and_nothing_is_stored(app: App, tmp_path: Path) -> None:
    ship = app.task(ship_order)
    for name in (str(tmp_path / "other.db"), ":memory:"):
        other = sqlite3.connect(name)
        with pytest.raises(UsageError, match="is open on"):
            ship.using(connection=other).enqueue(1)
        assert not other.in_transaction
        other.close()
    with pytest.raises(UsageError, match=r"not a sqlite3\.Connection"):
        ship.using(connection="jobs.db").enqueue(1)
    assert app.counts()["ready"] == 0


def test_a_temporary_table_that_hides_ours_is_refused(app: App, orders: sqlite3.Connection) -> None:
    ship = app.task(ship_order)
    orders.execute("CREATE TEMP TABLE holdfast_job AS SELECT * FROM main.holdfast_job")
    orders.commit()
    with pytest.raises(UsageError, match="temporary table holdfast_job"):
        ship.using(connection=orders).enqueue(1)
    orders.execute("DROP TABLE temp.holdfast_job")
    ship.using(connection=orders).enqueue(1)
    orders.commit()
    assert app.counts()["ready"] == 1


def test_a_connection_that_is_closed_or_another_threads_is_refused(app: App, orders: sqlite3.Connection) -> None:
    ship = app.task(ship_order)
    with (
        ThreadPoolExecutor(1) as elsewhere,
        pytest.raises(UsageError, match=r"cannot be used here .*check_same_thread=False"),
    ):
        elsewhere.submit(ship.using(connection=orders).enqueue, 1).result()
    assert not orders.in_transaction
    orders.close()
    with pytest.raises(UsageError, match="the connection is closed; pass one that is open"):
        ship.using(connection=orders).enqueue(1)
    assert app.counts()["ready"] == 0


def test_a_session_of_sqlalchemy_to_the_same_file(app: App, orders: sqlite3.Connection, tmp_path: Path) -> None:
    ship = app.task(ship_order)
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path}/jobs.db", poolclass=NullPool)
    with Session(engine) as session, engine.connect() as connection:
        session.execute(sqlalchemy.text("INSERT INTO orders VALUES (1)"))
        ship.using(connection=session).enqueue(1)
        session.rollback()
        ship.using(connection=session).enqueue(2)
        assert app.counts()["ready"] == 0
        session.commit()
        assert app.counts()["ready"] == 1
        ship.using(connection=connection).enqueue(3)
        connection.commit()
    assert app.counts()["ready"] == 2
    assert orders.execute("SELECT count(*) FROM orders").fetchone() == (0,)


def test_djangos_connection_to_the_same_file(app: App, orders: sqlite3.Connection, tmp_path: Path) -> None:
    ship = app.task(ship_order)
    django = with_django({"file": {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "jobs.db")}})["file"]
    with suppress(ZeroDivisionError), transaction.atomic("file"):
        ship.using(connection=django).enqueue(1)
        raise ZeroDivisionError
    with transaction.atomic("file"):
        ship.using(connection=django).enqueue(2)
        assert app.counts()["ready"] == 0
    assert app.counts()["ready"] == 1
    ship.using(connection=django).enqueue(3)
    assert app.counts()["ready"] == 2
    django.close()


def test_jobs_for_two_connections_are_refused(app: App, orders: sqlite3.Connection) -> None:
    ship = app.task(ship_order)
    with pytest.raises(UsageError, match="several connections"):
        app.enqueue_many([ship.job(1), ship.using(connection=orders).job(2)])
    assert not orders.in_transaction


def test_memory_has_no_transaction_to_take_part_in(orders: sqlite3.Connection) -> None:
    with App("memory://") as app, pytest.raises(StoreUnsupported):
        app.task(ship_order).using(connection=orders).enqueue(1)


def ship_order(order: int) -> int:
    return order
