"""Resources: opened once in each process, given to tasks by their type, closed when the last worker has stopped."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar
from typing import Any

import pytest

from holdfast import App, Context, Flow, JobDead, PayloadError, Retry, UsageError, current_job, injected
from tests.worker import bad
from tests.worker.house import House, until

ONCE = Retry(attempts_max=1)
tenant: ContextVar[str] = ContextVar("tenant", default="nobody")


class Database:
    """A pool of connections, as a driver has one."""

    def __init__(self) -> None:
        self.is_open = True

    def query(self, what: str) -> str:
        assert self.is_open
        return what.upper()


class Client(Database):
    """One that lives on an event loop."""


def test_a_task_gets_a_resource_by_its_type_and_all_of_a_process_share_one(house: House) -> None:
    opened: list[Database] = []

    def open_database() -> Iterator[Database]:
        opened.append(Database())
        yield opened[-1]
        opened[-1].is_open = False

    house.app.resource(Database, open_database)
    together = threading.Barrier(2)

    @house.app.task(retry=ONCE)
    def ask(what: str, db: Database = injected) -> str:
        together.wait(60)
        return db.query(what)

    @house.app.task(retry=ONCE)
    async def ask_later(ctx: Context, what: str, *, db: Database) -> str:
        assert db is await ctx.aresource(Database)
        return db.query(what)

    with house.app.worker(slots=4):
        jobs = [ask.enqueue("a"), ask.enqueue(what="b")]
        later = ask_later.enqueue("c")  # type: ignore[call-arg]
        assert [job.result(60) for job in jobs] == ["A", "B"]
        assert later.result(60) == "C"
        assert [each.is_open for each in opened] == [True]
    assert [each.is_open for each in opened] == [False]
    with house.app.worker(slots=4):
        assert later.refresh().result(60) == "C"
    assert len(opened) == 1  # nobody asked


def test_two_threads_that_ask_at_once_open_it_once() -> None:
    entered, goes_on = threading.Semaphore(0), threading.Event()

    def open_slowly() -> Database:
        entered.release()
        assert goes_on.wait(60)
        return Database()

    app = App("memory://")
    app.resource(Database, open_slowly)
    found: list[Database] = []
    threads = [threading.Thread(target=lambda: found.append(app.resources.get(Database))) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert entered.acquire(timeout=60)
    assert not entered.acquire(timeout=0.2)  # the other one waits
    goes_on.set()
    for thread in threads:
        thread.join()
    assert found[0] is found[1]


def test_a_resource_that_is_awaited_is_opened_and_closed_on_the_event_loop_by_one_asyncio_task(house: House) -> None:
    seen: list[Any] = []

    async def open_client() -> AsyncIterator[Client]:
        seen.append(asyncio.current_task())
        await asyncio.sleep(0.01)
        client = Client()
        yield client
        client.is_open = False
        seen.append(asyncio.current_task())

    house.app.resource(Client, open_client)

    @house.app.task(retry=ONCE)
    async def ask(what: str, client: Client = injected) -> str:
        return client.query(what)

    with house.app.worker(slots=4):
        assert [job.result(60) for job in [ask.enqueue("a"), ask.enqueue("b")]] == ["A", "B"]
        assert len(seen) == 1
    assert len(seen) == 2
    assert seen[0] is seen[1]


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_resource_that_cannot_be_opened_fails_the_attempt_and_is_opened_by_the_next(
    house: House, is_async: bool
) -> None:
    tries: list[int] = []

    def open_database() -> Database:
        tries.append(1)
        if len(tries) == 1:
            raise OSError("connection refused")
        return Database()

    async def open_later() -> Database:
        return open_database()

    house.app.resource(Database, open_later if is_async else open_database)

    def ask(db: Database = injected) -> str:
        return db.query("x")

    async def ask_later(db: Database = injected) -> str:
        return db.query("x")

    retry = Retry(attempts_max=2, base_s=0.0, cap_s=0.0)
    task = house.app.task(name="ask", retry=retry)(ask_later if is_async else ask)  # type: ignore[arg-type]
    house.start()
    job = task.enqueue()
    assert job.result(60) == "X"
    assert house.row(job.id).error == "OSError: connection refused"


def test_an_exit_while_a_resource_is_opened_ends_the_attempt_and_not_the_event_loop(house: House) -> None:
    async def open_client() -> Client:
        raise SystemExit(3)

    house.app.resource(Client, open_client)

    @house.app.task(retry=ONCE)
    async def ask(client: Client = injected) -> str:
        return client.query("x")

    @house.app.task
    async def other() -> int:
        return 1

    house.start()
    with pytest.raises(JobDead, match="SystemExit"):
        ask.enqueue().result(60)
    assert other.enqueue().result(60) == 1


def test_a_cancelled_task_does_not_take_the_resource_from_the_others(house: House) -> None:
    goes_on = asyncio.Event()
    asked = threading.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def open_client() -> Client:
        loops.append(asyncio.get_running_loop())
        asked.set()
        await goes_on.wait()
        return Client()

    house.app.resource(Client, open_client)

    @house.app.task(retry=ONCE)
    async def ask(client: Client = injected) -> str:
        return client.query("x")

    house.start()
    first = ask.enqueue()
    assert asked.wait(60)
    first.cancel()
    house.until_state(first.id, "cancelled")
    second = ask.enqueue()
    until(lambda: house.row(second.id).state == "running")
    loops[0].call_soon_threadsafe(goes_on.set)
    assert second.result(60) == "X"
    assert len(loops) == 1


def test_a_resource_that_cannot_be_closed_is_logged_and_the_others_are_closed(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    closed: list[str] = []

    def open_database() -> Iterator[Database]:
        yield Database()
        closed.append("database")

    def open_client() -> Iterator[Client]:
        yield Client()
        raise OSError("it has gone")

    async def open_text() -> AsyncIterator[str]:
        yield "text"
        raise OSError("it has gone too")

    house.app.resource(Database, open_database)
    house.app.resource(Client, open_client)
    house.app.resource(str, open_text)

    @house.app.task
    async def ask(db: Database = injected, client: Client = injected, text: str = injected) -> str:
        return db.query(text)

    with house.app.worker():
        assert ask.enqueue().result(60) == "TEXT"
    assert closed == ["database"]
    assert "resource Client could not be closed; the others are: OSError: it has gone" in caplog.text
    assert "resource str could not be closed; the others are: OSError: it has gone too" in caplog.text


@pytest.mark.parametrize("is_async", [False, True])
def test_an_exit_while_a_resource_is_closed_ends_neither_the_worker_nor_the_program(
    house: House, caplog: pytest.LogCaptureFixture, is_async: bool
) -> None:
    closed = []

    def open_first() -> Iterator[Database]:
        yield Database()
        closed.append("first")

    def open_second() -> Iterator[Client]:
        yield Client()
        raise SystemExit(3)

    async def open_second_later() -> AsyncIterator[Client]:
        yield Client()
        raise SystemExit(3)

    house.app.resource(Database, open_first)
    house.app.resource(Client, open_second_later if is_async else open_second)

    @house.app.task(retry=ONCE)
    async def work(db: Database = injected, client: Client = injected) -> str:
        return db.query("a")

    for _ in range(2):
        with house.app.worker(slots=1):
            assert work.enqueue().result(60) == "A"
    assert closed == ["first"] * 2
    assert caplog.text.count("resource Client could not be closed") == 2
    assert "has died" not in caplog.text


def test_the_step_of_a_workflow_asks_for_its_resource(house: House) -> None:
    house.app.resource(Database, Database)

    def reserve() -> str:
        ctx = current_job()
        assert ctx is not None
        return ctx.resource(Database).query("stock")

    @house.app.workflow()
    def order(flow: Flow) -> Any:
        return flow.step(reserve)

    house.start()
    assert order.enqueue().result(60) == "STOCK"


def test_an_isolated_process_opens_and_closes_its_own(file_house: House) -> None:
    house = file_house
    house.app.resource(bad.Shared, bad.open_shared)
    task = house.app.task(name="uses", isolate=True, retry=ONCE)(bad.uses.fn)
    house.start(app_ref="tests.worker.bad:_declares")
    assert task.enqueue().result(60) == "open"


def test_a_resource_is_no_argument_of_an_enqueue(house: House) -> None:
    house.app.resource(Database, Database)

    @house.app.task
    def ask(what: str, db: Database = injected) -> None: ...

    with pytest.raises(PayloadError, match=r"too many positional arguments \(2, at most 1\); it takes \(what\)"):
        ask.enqueue("a", Database())
    with pytest.raises(PayloadError, match="unexpected argument 'db'"):
        ask.enqueue("a", db=Database())


def test_what_cannot_work_is_refused_when_it_is_declared(house: House) -> None:
    app = house.app

    async def open_client() -> Client:
        return Client()

    with pytest.raises(PayloadError, match="this app has no resource of its type Database; declare it before the task"):

        @app.task
        def too_early(db: Database = injected) -> None: ...

    app.resource(Database, Database)
    app.resource(Client, open_client)
    with pytest.raises(UsageError, match="opened with await; make the task async"):

        @app.task
        def awaits(client: Client = injected) -> None: ...

    with pytest.raises(UsageError, match="which only tasks get"):

        @app.workflow()
        def flow_of_one(flow: Flow, db: Database = injected) -> None: ...

    with pytest.raises(PayloadError, match=r"put it after a `\*`"):

        @app.task
        def spread(db: Database, *rest: int) -> None: ...

    with pytest.raises(UsageError, match="has a resource Database already"):
        app.resource(Database, Database)
    with pytest.raises(UsageError, match="must be a class"):
        app.resource("Database", Database)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="must be a function that opens"):
        app.resource(Context, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_resource_belongs_to_no_job(house: House, is_async: bool) -> None:
    seen: list[Any] = []

    def open_database() -> Iterator[Database]:
        seen.append((current_job(), tenant.get()))
        yield Database()
        seen.append((current_job(), tenant.get()))

    async def open_later() -> AsyncIterator[Database]:
        seen.append((current_job(), tenant.get()))
        yield Database()
        seen.append((current_job(), tenant.get()))

    @house.app.middleware
    def as_tenant(ctx: Context) -> Iterator[None]:
        tenant.set("acme")
        yield

    house.app.resource(Database, open_later if is_async else open_database)

    @house.app.task(retry=ONCE)
    async def ask(db: Database = injected) -> str:
        return db.query(tenant.get())

    with house.app.worker():
        assert ask.enqueue().result(60) == "ACME"
    assert seen == [(None, "nobody"), (None, "nobody")]


def test_a_task_that_is_called_without_its_resource_says_what_to_pass(house: House) -> None:
    house.app.resource(Database, Database)

    @house.app.task
    def ask(db: Database = injected) -> str:
        return db.query("x")

    with pytest.raises(UsageError, match=r"only a worker gives a task its resources .*'query'.*pass one by name"):
        ask()
    assert ask(db=Database()) == "X"


def test_asking_for_an_unknown_resource_names_the_known_ones(house: House) -> None:
    house.app.resource(Client, Client)

    @house.app.task(retry=ONCE)
    def ask(ctx: Context) -> None:
        ctx.resource(Database)

    house.start()
    with pytest.raises(JobDead, match="no resource Database; known: Client"):
        ask.enqueue().result(60)
