"""key_scope, on_taken and wait_max: declared on a task, chosen by using, refused where they mean nothing."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast import App, Context, Flow, UsageError
from holdfast.core.machine import State
from holdfast.core.records import Filter, KeyRule
from holdfast.enqueueing.by_name import publish
from holdfast.tasks import Task


@pytest.fixture
def app() -> App:
    return App("memory://")


@pytest.fixture
def index(app: App) -> Task[[int], None]:
    @app.task(name="index")
    def index(n: int = 0) -> None: ...

    return index


def test_an_enqueue_returns_the_job_that_has_the_key(index: Task[[int], None]) -> None:
    once = index.using(key="k", key_scope="queued")
    first, second = once.enqueue(1), once.enqueue(2)
    assert (first.existed, second.existed, second.id) == (False, True, first.id)
    assert second.row.payload == '{"n":1}'
    assert (second.row.key, second.row.key_scope) == ("k", "queued")


def test_replace_debounces_calls(index: Task[[int], None]) -> None:
    latest = index.using(key="k", on_taken="replace", run_after=30, wait_max=timedelta(minutes=5))
    job = latest.enqueue(1)
    assert latest.enqueue(2).id == job.id
    assert job.refresh().row.payload == '{"n":2}'
    assert job.row.key_scope == "queued"


def test_cancel_stores_the_new_job(app: App, index: Task[[int], None]) -> None:
    newest = index.using(key="k", on_taken="cancel")
    first, second = newest.enqueue(1), newest.enqueue(2)
    assert first.refresh().state is State.CANCELLED
    assert (second.existed, second.state) == (False, State.READY)
    app.tick()
    assert second.refresh().state is State.DONE


def test_the_async_api_has_the_same_options(app: App, index: Task[[int], None]) -> None:
    async def main() -> tuple[str, str]:
        once = index.using(key="k", key_scope=60)
        [first] = await app.aio.enqueue_many([once.job(1)])
        return first.id, (await once.aenqueue(2)).id

    first, second = asyncio.run(main())
    assert first == second


def test_a_task_declares_the_rule_and_a_call_changes_it(app: App) -> None:
    @app.task(key=lambda n: f"n-{n % 2}", key_scope="queued")
    def task(n: int) -> None: ...

    assert task.job(1).new.key_rule == KeyRule("queued")
    assert task.using(on_taken="cancel").job(1).new.key_rule == KeyRule("queued", "cancel")
    assert task.using(key_scope="live").job(1).new.key_rule is None
    assert task.enqueue(1).id == task.enqueue(3).id
    assert task.enqueue(2).existed is False


def test_the_rule_of_a_task_goes_with_the_key_of_a_call(app: App) -> None:
    @app.task(on_taken="replace", wait_max=60)
    def task(n: int) -> None: ...

    assert not task.job(1).new.is_keyed
    draft = task.using(key="k").job(1)
    assert draft.new.key_rule == KeyRule("queued", "replace", 60.0)
    assert draft.using(priority=5).new.key_rule == draft.new.key_rule
    assert draft.using(on_taken="keep").new.key_rule == KeyRule("queued", "keep", 60.0)


def test_an_enqueue_by_name_has_the_published_rule(app: App) -> None:
    @app.task(name="t", key="k", key_scope=60)
    def task(n: int = 0) -> None: ...

    publish(app.store, app.tasks)
    other = App("memory://")
    other._store = app.store
    assert other.enqueue_by_name("t").id == other.enqueue_by_name("t", [1]).id
    assert other.enqueue_by_name("t", key="l", key_scope="ever", on_taken="cancel").row.key_scope == "ever"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"key_scope": "soon"}, '"queued", "live", "ever" or a number of seconds'),
        ({"key_scope": 0}, "above 0"),
        ({"key_scope": True}, "above 0"),
        ({"key_scope": float("nan")}, "above 0"),
        ({"on_taken": "explode"}, '"keep", "replace" or "cancel"'),
        ({"wait_max": 5}, 'needs on_taken="replace"'),
        ({"wait_max": -1, "on_taken": "replace"}, "above 0"),
    ],
)
def test_what_can_never_work_is_refused(index: Task[[int], None], options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        index.using(key="k", **options)


def test_a_rule_without_a_key_is_refused(index: Task[[int], None]) -> None:
    with pytest.raises(UsageError, match="give one: key="):
        index.using(key_scope="queued")


def test_schedules_batches_and_children_have_plain_keys(app: App, index: Task[[int], None]) -> None:
    keyed = index.using(key="k", key_scope="queued")

    @app.workflow(name="w")
    def flow(flow: Flow) -> str:
        try:
            flow.start(keyed, 1)
        except UsageError as error:
            return str(error)
        return "started"

    with pytest.raises(UsageError, match="a schedule's job"):
        app.cron("* * * * *", keyed)
    with pytest.raises(UsageError, match="a job of a batch"), app.batch() as batch:
        batch.add(keyed.job(1))
    job = flow.enqueue()
    app.tick()
    assert "a child of a workflow" in job.result(timeout=1)
    with app.batch() as batch:
        batch.add(keyed.using(key_scope="live", on_taken="keep").job(1))
    assert batch.added == 1


def test_a_running_job_that_lost_its_key_hears_of_it(app: App) -> None:
    seen: list[bool] = []

    @app.task(name="slow")
    def slow(ctx: Context, n: int) -> None:
        if n == 1:
            slow.using(key="k", on_taken="cancel").enqueue(2)
            seen.append(app.get(ctx.job.id).row.cancel_requested)

    job = slow.using(key="k", on_taken="cancel").enqueue(1)
    app.tick()
    assert seen == [True]
    assert job.refresh().state is State.DONE  # it succeeded although it was asked to stop


Connect = Callable[[], Any]


@pytest.fixture(params=["sqlite", "postgres"])
def sql(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[App, Connect]:
    if request.param == "sqlite":
        path = tmp_path / "jobs.db"
        return App(f"sqlite:///{path}"), lambda: sqlite3.connect(path, check_same_thread=False)
    url = request.getfixturevalue("postgres")
    return App(url), lambda: psycopg.connect(url)


def test_the_transaction_of_a_caller_takes_the_key_or_does_not(sql: tuple[App, Connect]) -> None:
    app, connect = sql

    @app.task(name="index")
    def index(n: int) -> None: ...

    with app:
        old = index.using(key="k", on_taken="cancel").enqueue(1)
        latest = index.using(key="l", on_taken="replace")
        waiting = latest.enqueue(1)
        connection = connect()
        for ends, n, state in (("rollback", 2, State.READY), ("commit", 3, State.CANCELLED)):
            index.using(key="k", on_taken="cancel", connection=connection).enqueue(n)
            latest.using(connection=connection).enqueue(n)
            getattr(connection, ends)()
            assert old.refresh().state is state
            assert waiting.refresh().row.payload == ('{"n":3}' if ends == "commit" else '{"n":1}')
        connection.close()
        assert len(app.find(key="k")) == 2


@pytest.mark.parametrize("rule", ["queued", "live", "ever", 60.0])
@pytest.mark.parametrize("on_taken", ["keep", "replace", "cancel"])
def test_one_key_is_exact_under_eight_threads(sql: tuple[App, Connect], rule: Any, on_taken: Any) -> None:
    """However many enqueue at once: one job has the key, and every other one was cancelled or never stored."""
    app, _ = sql

    @app.task(name="index")
    def index(n: int) -> None: ...

    wanted = index.using(key="k", key_scope=rule, on_taken=on_taken)
    with app, ThreadPoolExecutor(8) as pool:
        app.store.migrate()
        jobs = list(pool.map(wanted.enqueue, range(24)))
        rows = app.store.find(Filter(key="k"))
        living = [row for row in rows if row.state is State.READY]
        assert len(living) == 1
        new = {job.id for job in jobs if not job.existed}
        assert new == {row.id for row in rows}
        assert len(rows) == (24 if on_taken == "cancel" else 1)
        lines = app.store.journal(kinds=["moved", "cancelled"])
        assert len(lines) == (0 if on_taken == "keep" else 23)
