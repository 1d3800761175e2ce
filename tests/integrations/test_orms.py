"""What an ORM writes inside ctx.transaction() commits with the settle of the attempt, or not at all."""

import asyncio
import sqlite3
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy
from django.db import IntegrityError, connection, connections
from django.db import transaction as django_transaction
from django.db.transaction import TransactionManagementError
from sqlalchemy.orm import Session

from holdfast import Context, JobDead, Retry
from holdfast.clock import pause
from holdfast.errors import TransactionExpired, UsageError
from holdfast.integrations import django as holdfast_django
from holdfast.integrations import sqlalchemy as holdfast_sqlalchemy
from holdfast.stores.protocol import Reply
from tests.api.doors import with_django
from tests.integrations.conftest import seen
from tests.integrations.orms import AT, ORMS, Effect, WithDjango, database, django_model
from tests.worker.house import House, until
from tests.worker.test_transaction import reap

ONCE = Retry(attempts_max=1)
every_orm = pytest.mark.parametrize("orm", ORMS)


def run(house: House, handler: Any, **given: Any) -> Any:
    """Run the handler as a task, and return its result."""
    task = house.app.task(name="pay", retry=ONCE, **given)(handler)
    house.start()
    return task.enqueue().result(60)


@every_orm
@pytest.mark.parametrize("where", ["sync", "async", "thread"])
def test_writes_commit_with_the_settle(shared_house: House, effects: Any, orm: str, where: str) -> None:
    way, between = ORMS[orm](shared_house.app.url), []

    def pay(ctx: Context) -> int:
        with ctx.transaction() as db, way.block(db) as door:
            way.write(door, ctx.job.id, ctx.fence)
            found = way.count(door)
        between.append(seen(effects))
        return int(found)

    async def apay(ctx: Context) -> int:
        return pay(ctx) if where == "async" else await asyncio.to_thread(pay, ctx)

    if orm == "django" and where == "async":
        pytest.skip("Django refuses its ORM on an event loop")
    assert run(shared_house, pay if where == "sync" else apay) == 1
    assert between == [[]]  # the block is over, and nothing is committed yet
    [(job, fence)] = seen(effects)
    assert (fence, shared_house.kinds(job)) == (1, ["succeeded"])


@every_orm
@pytest.mark.parametrize("where", ["inside", "between", "after"])
def test_a_handler_that_raises_takes_its_writes_back(shared_house: House, effects: Any, orm: str, where: str) -> None:
    way = ORMS[orm](shared_house.app.url)

    def pay(ctx: Context) -> None:
        with ctx.transaction() as db:
            with way.block(db) as door:
                way.write(door, ctx.job.id, ctx.fence)
                if where == "inside":
                    raise ValueError(where)
            if where == "between":
                raise ValueError(where)
        raise ValueError(where)

    with pytest.raises(JobDead, match=where):
        run(shared_house, pay)
    assert seen(effects) == []


@every_orm
def test_writes_are_taken_back_when_the_settle_is_refused(shared_house: House, effects: Any, orm: str) -> None:
    house, way = shared_house, ORMS[orm](shared_house.app.url)

    def pay(ctx: Context) -> int:
        with ctx.transaction() as db, way.block(db) as door:
            way.write(door, ctx.job.id, ctx.fence)
            if ctx.attempt == 1 and isinstance(db, sqlite3.Connection):  # nobody else can write now
                db.execute("UPDATE holdfast_job SET fence = fence + 1 WHERE id = ?", (ctx.job.id,))
            elif ctx.attempt == 1:
                assert reap(house, ctx.job.id) is Reply.ACCEPTED
        return ctx.fence

    task = house.app.task(name="pay", retry=Retry(attempts_max=3, base_s=0.0, cap_s=0.0))(pay)
    house.start(slots=4)
    job = task.enqueue()
    job.result(60)
    until(lambda: "stale_report" in house.kinds(job.id) or house.app.url.startswith("sqlite"))
    assert (job.id, 1) not in seen(effects)


@every_orm
def test_a_block_that_was_taken_back_can_be_followed_by_another(shared_house: House, effects: Any, orm: str) -> None:
    way = ORMS[orm](shared_house.app.url)

    def pay(ctx: Context) -> int:
        with ctx.transaction() as db:
            with suppress(ZeroDivisionError), way.block(db) as door:
                way.write(door, "wrong", 0)
                raise ZeroDivisionError
            with way.block(db) as door:
                way.write(door, ctx.job.id, ctx.fence)
                return int(way.count(door))

    assert run(shared_house, pay) == 1
    assert [fence for _, fence in seen(effects)] == [1]


@every_orm
def test_a_part_that_fails_is_taken_back_alone(shared_house: House, effects: Any, orm: str) -> None:
    way = ORMS[orm](shared_house.app.url)

    def pay(ctx: Context) -> int:
        with ctx.transaction() as db, way.block(db) as door:
            way.write(door, "a", 1)
            with suppress(sqlalchemy.exc.IntegrityError, IntegrityError), way.part(door):
                way.write(door, "b", 2)
                db.execute("INSERT INTO effect (job, fence) VALUES ('x', 1)")
                way.write(door, "x", 3)
            with way.part(door):
                way.write(door, "c", 4)
            return int(way.count(door))

    assert run(shared_house, pay) == 2
    assert seen(effects) == [("a", 1), ("c", 4)]


@every_orm
def test_a_transaction_that_is_open_for_too_long_is_over_for_the_orm_too(
    shared_house: House, effects: Any, orm: str
) -> None:
    way, met = ORMS[orm](shared_house.app.url), []

    def pay(ctx: Context) -> None:
        with ctx.transaction() as db, way.block(db) as door:
            for number in range(600):
                try:
                    way.write(door, f"b{number}", 2)
                    pause(0.1)
                except Exception as error:
                    met.append(error)
                    raise

    with pytest.raises(JobDead, match="was open for more than"):
        run(shared_house, pay, lease_s=12, beat_s=4)
    assert isinstance(met[0], TransactionExpired)
    assert seen(effects) == []


@every_orm
def test_jobs_join_the_transaction_by_the_connection_of_the_orm(shared_house: House, effects: Any, orm: str) -> None:
    house, way = shared_house, ORMS[orm](shared_house.app.url)
    follow = house.app.task(name="follow")(lambda: None)

    def pay(ctx: Context, fails: bool) -> str:
        with ctx.transaction() as db, way.block(db) as door:
            way.write(door, ctx.job.id, ctx.fence)
            job = follow.using(connection=door).enqueue()
        if fails:
            raise ValueError("after the enqueue")
        return job.id

    task = house.app.task(name="pay", retry=ONCE)(pay)
    house.start()
    with pytest.raises(JobDead):
        task.enqueue(True).result(60)
    following = task.enqueue(False).result(60)
    house.until_state(following, "done")
    assert len(seen(effects)) == 1
    assert house.app.counts()["done"] == 2


# ------------------------------------------------------------------------------------------- SQLAlchemy


@pytest.mark.parametrize("act", ["commit", "begin"])
def test_a_commit_of_a_session_is_refused_and_says_what_to_do(shared_house: House, effects: Any, act: str) -> None:
    def pay(ctx: Context) -> int:
        with ctx.transaction() as db, holdfast_sqlalchemy.session(db) as session:
            if act == "commit":
                session.add(Effect(job="a", fence=1))
                with pytest.raises(UsageError, match=r"Holdfast commits when the attempt ends.*flush"):
                    session.commit()
            else:
                with pytest.raises(UsageError, match=r"Holdfast commits when the attempt ends"), session.begin():
                    session.add(Effect(job="a", fence=1))
        return ctx.fence

    assert run(shared_house, pay) == 1
    assert seen(effects) == ([("a", 1)] if act == "commit" else [])


def test_a_commit_of_a_connection_is_refused(shared_house: House, effects: Any) -> None:
    def pay(ctx: Context) -> None:
        with ctx.transaction() as db, holdfast_sqlalchemy.connection(db) as opened:
            opened.execute(sqlalchemy.insert(Effect).values(job="a", fence=1))
            opened.commit()

    with pytest.raises(JobDead, match="Holdfast commits when the attempt ends"):
        run(shared_house, pay)
    assert seen(effects) == []


def test_a_rollback_of_a_session_takes_the_block_back_and_it_goes_on(shared_house: House, effects: Any) -> None:
    def pay(ctx: Context) -> bool:
        with ctx.transaction() as db:
            with holdfast_sqlalchemy.session(db) as session:
                session.add(Effect(job="a", fence=1))
                session.add(Effect(job="a", fence=2))
                with pytest.raises(sqlalchemy.exc.IntegrityError):
                    session.flush()
                session.rollback()
                session.add(Effect(job="b", fence=3))
                session.flush()
                session.rollback()
                session.add(Effect(job="c", fence=4, at=AT))
                session.expunge_all()
                session.add(Effect(job="d", fence=5, at=AT))
            with holdfast_sqlalchemy.session(db) as session:
                found = session.scalars(sqlalchemy.select(Effect)).all()
                return [each.job for each in found] == ["d"]
        return False

    assert run(shared_house, pay) is True
    assert seen(effects) == [("d", 5)]


def test_what_was_flushed_stays_when_user_code_closes_the_session(shared_house: House, effects: Any) -> None:
    def pay(ctx: Context) -> None:
        with ctx.transaction() as db, holdfast_sqlalchemy.session(db) as session:
            session.add(Effect(job="a", fence=1))
            session.flush()
            session.close()

    run(shared_house, pay)
    assert seen(effects) == [("a", 1)]


def test_a_session_that_outlives_its_transaction_writes_nothing(shared_house: House, effects: Any) -> None:
    kept: list[Session] = []

    def pay(ctx: Context) -> None:
        with ctx.transaction() as db, holdfast_sqlalchemy.session(db) as session:
            session.add(Effect(job="a", fence=1))
            kept.append(session)

    run(shared_house, pay)
    kept[0].add(Effect(job="b", fence=2))
    with pytest.raises((UsageError, sqlalchemy.exc.SQLAlchemyError)):
        kept[0].flush()
    kept[0].close()
    assert seen(effects) == [("a", 1)]


def test_one_session_at_a_time(shared_house: House, effects: Any) -> None:
    def pay(ctx: Context) -> None:
        with ctx.transaction() as db, holdfast_sqlalchemy.session(db), holdfast_sqlalchemy.connection(db):
            pass

    with pytest.raises(JobDead, match="one session or connection at a time"):
        run(shared_house, pay)


def test_sqlalchemy_keeps_what_it_has_compiled(shared_house: House, effects: Any) -> None:
    engines = set()

    def pay(ctx: Context) -> None:
        with ctx.transaction() as db, holdfast_sqlalchemy.connection(db) as opened:
            engines.add(id(opened.engine))

    task = shared_house.app.task(name="pay")(pay)
    shared_house.start()
    for _ in range(3):
        task.enqueue().result(60)
    assert len(engines) == 1


# ----------------------------------------------------------------------------------------------- Django


@pytest.mark.parametrize(
    ("act", "kind", "words"),
    [
        (lambda: django_transaction.commit(), TransactionManagementError, "atomic"),
        (lambda: django_transaction.rollback(), TransactionManagementError, "atomic"),
        (lambda: django_transaction.set_autocommit(True), TransactionManagementError, "atomic"),
        (lambda: connection.close(), UsageError, "Holdfast closes the connection"),
        (lambda: django_transaction.on_commit(lambda: None), UsageError, "enqueue a job"),
        (lambda: connections["default"].connection.commit(), Exception, "Holdfast commits"),
    ],
)  # fmt: skip
def test_django_cannot_end_the_transaction(
    shared_house: House, effects: Any, act: Any, kind: type[Exception], words: str
) -> None:
    way = WithDjango(shared_house.app.url)

    def pay(ctx: Context) -> int:
        with ctx.transaction() as db, way.block(db) as door:
            way.write(door, "a", 1)
            with pytest.raises(kind, match=words):
                act()
            way.write(door, "b", 2)
            return way.count(door)

    assert run(shared_house, pay) == 2
    assert seen(effects) == [("a", 1), ("b", 2)]


def test_a_block_marked_for_rollback_is_taken_back_as_django_does_it(shared_house: House, effects: Any) -> None:
    way = WithDjango(shared_house.app.url)

    def pay(ctx: Context) -> None:
        with ctx.transaction() as db:
            with way.block(db) as door:
                way.write(door, "a", 1)
                django_transaction.set_rollback(True)
            with way.block(db) as door:
                way.write(door, "b", 2)

    run(shared_house, pay)
    assert seen(effects) == [("b", 2)]


def test_a_block_that_went_on_after_a_failed_statement_does_not_succeed(shared_house: House, effects: Any) -> None:
    way = WithDjango(shared_house.app.url)

    def pay(ctx: Context) -> None:
        with ctx.transaction() as db, way.block(db) as door:
            way.write(door, "a", 1)
            with suppress(IntegrityError):
                way.model.objects.create(job="a", fence=2, at=AT)  # the key is taken

    with pytest.raises(JobDead, match="a statement failed and the task went on"):
        run(shared_house, pay)
    assert seen(effects) == []


def test_django_reads_its_types_and_the_threads_own_connection_is_back_afterwards(
    shared_house: House, effects: Any
) -> None:
    way = WithDjango(shared_house.app.url)

    def pay(ctx: Context) -> bool:
        own = connections["default"]
        with ctx.transaction() as db:
            with way.block(db) as door:
                way.write(door, "a", 1)
                lent = connections["default"]
                row = django_model().objects.filter(at__year=2030, job__icontains="A").get()
            if isinstance(db, psycopg.Connection):
                db.execute("SELECT 1")
        return row.at == AT and lent is not own and connections["default"] is own and own.connection is None

    assert run(shared_house, pay) is True


def test_an_alias_of_another_database_is_refused(shared_house: House, effects: Any, tmp_path: Path) -> None:
    other = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "other.db")}
    WithDjango(shared_house.app.url)
    with_django({"elsewhere": other, "twin": database(shared_house.app.url)})

    def pay(ctx: Context) -> None:
        with ctx.transaction() as db:
            with pytest.raises(UsageError, match="'elsewhere' of Django is not the store's"):
                holdfast_django.transaction(db, using="elsewhere").__enter__()
            with holdfast_django.transaction(db, using="twin"):
                django_model().objects.using("twin").create(job="a", fence=1)
                with pytest.raises(UsageError, match="is open on 'twin'"):
                    holdfast_django.transaction(db, using="twin").__enter__()

    run(shared_house, pay)
    assert seen(effects) == [("a", 1)]


# ------------------------------------------------------------------------------------------------ both


@pytest.mark.parametrize("given", [None, "db", 5])
def test_only_a_lent_connection_is_taken(given: object) -> None:
    for block in (holdfast_sqlalchemy.session, holdfast_sqlalchemy.connection, holdfast_django.transaction):
        with pytest.raises(UsageError, match=r"must be the connection that ctx\.transaction"), block(given):
            pass


def test_holdfast_imports_neither_of_them_by_itself() -> None:
    code = (
        "import sys, holdfast.cli.main, holdfast.worker.runner, holdfast.stores.postgres.store\n"
        "print([each for each in ('sqlalchemy', 'django') if each in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
