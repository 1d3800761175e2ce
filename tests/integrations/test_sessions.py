"""`ctx.session()` and `ctx.asession()`: a session of the app's ORM inside the transaction that ends the job."""

from __future__ import annotations

from typing import Any

import pytest
import sqlmodel
from sqlalchemy import create_engine, func, select, text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker
from sqlmodel.ext.asyncio.session import AsyncSession as AsyncModelSession

from holdfast import App, Context, JobDead, Retry, UsageError
from holdfast.integrations.sqlalchemy import install_sessions
from tests.integrations.conftest import seen
from tests.integrations.orms import Effect
from tests.worker.house import House

ONCE = Retry(attempts_max=1)
Makers: dict[str, Any] = {
    "makers": (
        sessionmaker(create_engine("sqlite://"), autoflush=False),
        async_sessionmaker(expire_on_commit=False),
    ),
    "sqlmodel": (sqlmodel.Session, AsyncModelSession),
}


@pytest.mark.parametrize("makers", Makers)
@pytest.mark.parametrize("where", ["sync", "async"])
def test_writes_of_a_session_commit_with_the_end_of_the_job(
    shared_house: House, effects: Any, makers: str, where: str
) -> None:
    install_sessions(shared_house.app, *Makers[makers])
    between: list[Any] = []

    def pay(ctx: Context, fails: bool) -> int:
        with ctx.session(Session) as orm:
            orm.add(Effect(job=ctx.job.id, fence=ctx.fence))  # flushed by the end of the block
        between.append(seen(effects))
        if fails:
            raise ValueError("after the session")
        return ctx.fence

    async def apay(ctx: Context, fails: bool) -> int:
        async with ctx.asession(AsyncSession) as orm:
            orm.add(Effect(job=ctx.job.id, fence=ctx.fence))
            assert await orm.scalar(select(func.count()).select_from(Effect)) == 1
        between.append(seen(effects))
        if fails:
            raise ValueError("after the session")
        return ctx.fence

    task: Any = shared_house.app.task(name="pay", retry=ONCE)(pay if where == "sync" else apay)  # type: ignore[type-var]
    shared_house.start()
    with pytest.raises(JobDead, match="after the session"):
        task.enqueue(True).result(60)
    assert seen(effects) == []
    job = task.enqueue(False)
    assert job.result(60) == 1
    assert seen(effects) == [(job.id, 1)]
    assert between == [[], []]  # the block was over, and nothing was committed yet


@pytest.mark.parametrize("where", ["sync", "async"])
def test_a_job_that_is_enqueued_by_the_session_commits_with_its_rows(
    shared_house: House, effects: Any, where: str
) -> None:
    house = shared_house
    install_sessions(house.app)
    follow = house.app.task(name="follow")(lambda: None)

    def pay(ctx: Context, fails: bool) -> str:
        with ctx.session(Session) as orm:
            orm.add(Effect(job=ctx.job.id, fence=ctx.fence))
            job = follow.using(connection=orm).enqueue()
        if fails:
            raise ValueError("after the enqueue")
        return job.id

    async def apay(ctx: Context, fails: bool) -> str:
        async with ctx.asession(AsyncSession) as orm:
            orm.add(Effect(job=ctx.job.id, fence=ctx.fence))
            job = await follow.using(connection=orm).aenqueue()
        if fails:
            raise ValueError("after the enqueue")
        return job.id

    task: Any = house.app.task(name="pay", retry=ONCE)(pay if where == "sync" else apay)  # type: ignore[type-var]
    house.start()
    with pytest.raises(JobDead, match="after the enqueue"):
        task.enqueue(True).result(60)
    house.until_state(task.enqueue(False).result(60), "done")
    assert len(seen(effects)) == 1
    assert house.app.counts()["done"] == 2


@pytest.mark.parametrize("where", ["sync", "async"])
def test_a_session_refuses_to_commit_and_can_roll_back(shared_house: House, effects: Any, where: str) -> None:
    install_sessions(shared_house.app)

    def pay(ctx: Context) -> None:
        with ctx.session(Session) as orm:
            with pytest.raises(UsageError, match=r"Holdfast commits when the attempt ends.*flush"):
                orm.commit()
            orm.add(Effect(job="wrong", fence=0))
            orm.flush()
            orm.rollback()
            orm.add(Effect(job="right", fence=1))

    async def apay(ctx: Context) -> None:
        async with ctx.asession(AsyncSession) as orm:
            with pytest.raises(UsageError, match=r"Holdfast commits when the attempt ends.*flush"):
                await orm.commit()
            orm.add(Effect(job="wrong", fence=0))
            await orm.flush()
            await orm.rollback()
            assert (await orm.execute(text("SELECT 7"))).scalar_one() == 7
            assert [row async for row in await orm.stream(text("SELECT 8"))] == [(8,)]
            orm.add(Effect(job="right", fence=1))

    task: Any = shared_house.app.task(name="pay", retry=ONCE)(pay if where == "sync" else apay)  # type: ignore[type-var]
    shared_house.start()
    task.enqueue().result(60)
    assert seen(effects) == [("right", 1)]


def test_a_session_that_the_app_does_not_have_is_named(shared_house: House) -> None:
    def pay(ctx: Context) -> None:
        with (
            pytest.raises(UsageError, match=r"ctx\.session\(\) needs an ORM: call install_sessions\(app\)"),
            ctx.session(),
        ):
            raise AssertionError
        install_sessions(shared_house.app)
        with ctx.session(sqlmodel.Session):
            raise AssertionError

    task = shared_house.app.task(name="pay", retry=ONCE)(pay)
    shared_house.start()
    with pytest.raises(JobDead, match=r"sessions of this app are sqlalchemy.orm.session.Session; give the class"):
        task.enqueue().result(60)


def test_sessions_are_installed_once_and_by_makers_of_sessions() -> None:
    app = App("memory://")
    with pytest.raises(UsageError, match="must be a sessionmaker or a class of sessions"):
        install_sessions(app, create_engine("sqlite://"))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="one maker of sessions and one of async sessions"):
        install_sessions(app, Session, sqlmodel.Session)
    install_sessions(app)
    with pytest.raises(UsageError, match="has a resource Sessions already"):
        install_sessions(app)
