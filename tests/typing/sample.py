"""Read by mypy --strict and pyright, never run. `# is: T` is what mypy reveals, `# error: code` what both refuse."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from sqlite3 import Connection
from typing import Any, reveal_type

from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from holdfast import App, AsyncFlow, Context, Flow, Job, Retry, Task

app = App("memory://")


@app.task
def bare(x: int, y: str = "a") -> float:
    return float(x)


@app.task()
async def awaited(x: int) -> list[str]:
    return [str(x)]


@app.task(queue="media", retry=Retry(attempts_max=2), on_crash="hold", timeout_s=60, key=lambda path: path)
def with_context(ctx: Context, path: str, *, width: int = 720) -> bytes | None:
    ctx.progress(0.5)
    return None


@app.task
async def with_context_awaited(ctx: Context, n: int) -> dict[str, int]:
    return {"n": n}


@app.task
def nothing() -> None: ...


@app.task
def anything(data: Any) -> Any: ...


@app.task(lease_s="x")  # error: call-overload
def wrong_type() -> None: ...


@app.workflow(versoin=2)  # error: call-overload
def wrong_name(flow: Flow) -> None: ...


@app.task(key=lambda n: f"n-{n}", key_scope="queued", on_taken="replace", wait_max=timedelta(minutes=5))
def keyed(n: int) -> None: ...


@app.task(key_scope="soon")  # error: call-overload
def wrong_scope() -> None: ...


@app.task(on_crash="explode")  # error: call-overload
def wrong_option() -> None: ...


# The signature is the task's own.

reveal_type(bare)  # is: holdfast.tasks.SyncTask[[x: int, y: str =], float]
reveal_type(awaited)  # is: holdfast.tasks.AsyncTask[[x: int], list[str]]
reveal_type(with_context)  # is: holdfast.tasks.ContextTask[[path: str, *, width: int =], bytes | None]
reveal_type(with_context_awaited)  # is: holdfast.tasks.AsyncContextTask[[n: int], dict[str, int]]

reveal_type(bare.enqueue(1))  # is: holdfast.jobs.Job[float]
reveal_type(with_context.enqueue("a", width=1))  # is: holdfast.jobs.Job[bytes | None]
reveal_type(nothing.enqueue().result())  # is: None
anything.enqueue([1])  # pyright: ignore[reportCallIssue]  # takes Any for a Context

bare.enqueue()  # error: call-arg
bare.enqueue("1")  # error: arg-type
bare.enqueue(1, z=2)  # error: call-arg
bare.enqueue(1, "a", 3)  # error: call-arg
awaited.enqueue(x="1")  # error: arg-type
with_context.enqueue("a", 5)  # error: call-arg
with_context.enqueue(path=5)  # error: arg-type

# Called directly, it is its function: a task with a context takes one, and an async one is awaited.

reveal_type(bare(1, y="b"))  # is: float
reveal_type(nothing())  # is: None
bare("1")  # error: arg-type
bare()  # error: call-arg
bare(1, z=2)  # error: call-arg
every: list[Task[..., Any]] = [bare, awaited, with_context, with_context_awaited]


async def call(ctx: Context) -> None:
    reveal_type(await awaited(1))  # is: list[str]
    reveal_type(with_context(ctx, "a", width=1))  # is: bytes | None
    reveal_type(await with_context_awaited(ctx, 1))  # is: dict[str, int]
    await awaited("1")  # error: arg-type
    with_context("a")  # error: call-arg
    with_context(ctx, 5)  # error: arg-type
    await with_context_awaited(ctx, "1")  # error: arg-type


# Options keep it, and do not mix with arguments.

later = with_context.using(run_after=timedelta(minutes=5), key="k", priority=5)
reveal_type(later.enqueue("a"))  # is: holdfast.jobs.Job[bytes | None]
reveal_type(later.using(lease_s=5).job("a"))  # is: holdfast.tasks.Draft[bytes | None]
later.enqueue(1)  # error: arg-type
with_context.using(run_at="tomorrow")  # error: arg-type
with_context.using(path="a")  # error: call-arg


async def use() -> None:
    job = await awaited.aenqueue(1)
    reveal_type(job)  # is: holdfast.jobs.Job[list[str]]
    reveal_type(await job.aresult(timeout=5))  # is: list[str]
    reveal_type(await app.aio.get("id"))  # is: holdfast.jobs.Job[Any]
    reveal_type(await app.aio.enqueue_many([bare.job(1)]))  # is: list[holdfast.jobs.Job[float]]
    reveal_type(await app.aio.revive("id", by="ann"))  # is: holdfast.jobs.Job[Any]
    await app.aio.revive("id", nice=True)  # error: call-arg


# Many jobs, of one task or of several.

reveal_type(app.enqueue_many([bare.job(1), bare.job(2)]))  # is: list[holdfast.jobs.Job[float]]
mixed: list[Job[object]] = app.enqueue_many([bare.job(1), awaited.job(2)])
app.enqueue_many([bare])  # error: arg-type

reveal_type(app.get("id").result())  # is: Any
reveal_type(app.counts())  # is: dict[str, int]
app.resolve("id", "maybe")  # error: arg-type
app.on("zombie", print)
app.on("party", print)  # error: call-overload

app.alert(log=True, on=["held"], zombies_max=50)
app.alert(log=True, on=["party"])  # error: list-item
app.alert(log=True, zombies="many")  # error: call-arg


@app.on("dead")
def told(event: Any) -> None: ...


# Workflows, and the arguments of their steps and undos.


def charge(order_id: int, cents: int = 999) -> str: ...  # type: ignore[empty-body]  # pyright: ignore
def refund(result: str | None, order_id: int, cents: int = 999) -> None: ...
def refund_a_name(result: str | None, name: str) -> None: ...
def refund_what_is_known(result: str, order_id: int) -> None: ...
async def ship(order_id: int) -> bytes: ...  # type: ignore[empty-body]  # pyright: ignore
async def fetch_back(result: bytes | None, order_id: int) -> None: ...
def book(db: Connection, order_id: int, cents: int = 999) -> str: ...  # type: ignore[empty-body]  # pyright: ignore


@app.workflow
def sync_flow(flow: Flow, n: int) -> int:
    reveal_type(flow.step(charge, 1, 2, undo=refund, repeatable=False))  # is: str
    reveal_type(flow.step(charge, 1, undo=refund))  # is: str
    reveal_type(flow.step(charge, order_id=1))  # is: str
    reveal_type(flow.step(lambda: 5, name="five"))  # is: int
    reveal_type(flow.step(int, "7"))  # is: int
    flow.step(charge, "1", undo=refund)  # error: arg-type
    flow.step(charge, 1, undo=refund_a_name)  # error: arg-type
    flow.step(charge, 1, undo=refund_what_is_known)  # error: arg-type
    flow.step(charge)  # error: call-arg
    flow.step(charge, order="1")  # error: call-overload
    reveal_type(flow.transaction(book, 1, 2, name="book"))  # is: str
    reveal_type(flow.transaction(book, order_id=1))  # is: str
    flow.transaction(book, "1")  # error: arg-type
    flow.transaction(book, order="1")  # error: call-overload
    flow.transaction(book)  # error: call-arg
    reveal_type(flow.start(bare, 1))  # is: holdfast.jobs.Job[float]
    flow.start(bare, "1")  # error: arg-type
    return n


@app.workflow(version=2)
async def async_flow(flow: AsyncFlow, n: int) -> str:
    reveal_type(await flow.step(charge, 1, 2, undo=refund))  # is: str
    reveal_type(await flow.step(ship, 1, undo=fetch_back))  # is: bytes
    reveal_type(await flow.step(ship, order_id=1))  # is: bytes
    reveal_type(await flow.transaction(book, 1, name="book"))  # is: str
    await flow.transaction(book, "1")  # error: arg-type
    await flow.step(ship, "1", undo=fetch_back)  # error: arg-type
    await flow.step(ship, 1, undo=refund_a_name)  # error: arg-type
    flow.step(charge, 1, 2)  # error: unused-coroutine
    flow.sleep(60)  # error: unused-coroutine
    await flow.sleep(timedelta(hours=1), minutes=30)
    reveal_type(await flow.step(ship, 1, timeout_s=timedelta(minutes=5)))  # is: bytes
    return await flow.step(charge, n)


reveal_type(sync_flow.enqueue(1))  # is: holdfast.jobs.Job[int]
reveal_type(async_flow.enqueue(1))  # is: holdfast.jobs.Job[str]
async_flow.enqueue("1")  # error: arg-type


async def call_the_functions_themselves(flow: Flow, on_the_loop: AsyncFlow) -> None:
    reveal_type(sync_flow(flow, 1))  # is: int
    reveal_type(await async_flow(on_the_loop, 1))  # is: str
    sync_flow(flow, "1")  # error: arg-type
    sync_flow(1)  # error: call-arg
    await async_flow(flow, 1)  # error: arg-type


@app.workflow
async def bare_async_flow(flow: AsyncFlow) -> None: ...


@app.task
async def writes(ctx: Context) -> None:
    with ctx.session(Session) as orm:
        reveal_type(orm)  # is: sqlalchemy.orm.session.Session
    async with ctx.asession(AsyncSession) as aorm:
        reveal_type(aorm)  # is: sqlalchemy.ext.asyncio.session.AsyncSession
    with ctx.session() as anything_else:
        reveal_type(anything_else)  # is: Any


@app.task
def says(ctx: Context, path: str) -> None:
    ctx.heartbeat()
    ctx.heartbeat(path=path, line=7)
    ctx.heartbeat("a.csv")  # error: call-arg


def reapers() -> None:
    with app.reaper(ttl_s=30, renewal_s=10, retry_s=5) as reaper:
        reveal_type(reaper.is_active)  # is: bool
        reveal_type(reaper.settled)  # is: int
    app.reaper(ttl_s="30s")  # error: arg-type
    app.reaper(lease_s=30)  # error: call-arg


async def ticks() -> None:
    reveal_type(app.tick(25).pruned)  # is: int
    reveal_type((await app.aio.tick(25)).finished)  # is: bool
    async with app.reaper() as reaper:
        reveal_type(reaper.name)  # is: str


# Options of one enqueue, batches, schedules, middleware, resources, and the reads and acts of people.

chosen = bare.using(tags=["nightly"], meta={"shop": "7"}, group="acme", expires_s=60)
reveal_type(chosen.enqueue(1))  # is: holdfast.jobs.Job[float]
reveal_type(awaited.using(key="k", key_scope=3600.0, on_taken="keep").job(1))  # is: holdfast.tasks.Draft[list[str]]
reveal_type(sync_flow.using(after=["id"]).enqueue(1))  # is: holdfast.jobs.Job[int]
bare.using(meta=["shop"])  # error: arg-type
bare.using(on_taken="drop")  # error: arg-type
bare.using(priority="high")  # error: arg-type
chosen.enqueue("1")  # error: arg-type

app.every(seconds=30, task=bare.job(1), missed="skip")
app.every(30, bare)  # error: call-arg
app.schedule("tenant-7", "0 3 * * *", bare, args=[1], tz="Europe/Vienna")
app.schedule("tenant-7", "0 3 * * *", charge)  # error: arg-type
app.cron("@hourly", bare.job("1"))  # error: arg-type
app.queue("mail", limit=20, group_limit=2, rate="100/60s", burst=5)
app.queue("mail", group_rate="5/s")  # error: call-arg

with app.batch(then=nothing) as batch:
    batch.add(bare.job(1), awaited.job(2))
    batch.add(bare)  # error: arg-type


@app.middleware
def around(ctx: Context) -> Iterator[None]:
    yield


@app.middleware  # error: type-var
def no_layer(ctx: Context) -> int: ...  # type: ignore[empty-body]  # pyright: ignore


class Database: ...


def open_database() -> Iterator[Database]:
    yield Database()


app.resource(Database, open_database)
app.resource(Database, 5)  # error: arg-type


async def people() -> None:
    reveal_type(app.admin.queues()[0].ready)  # is: int
    [record] = app.admin.export(state="dead", since=datetime.now(UTC))
    reveal_type(record.events[0].at.year)  # is: int
    reveal_type(app.admin.report(3600).errors[0].attempts)  # is: int
    reveal_type(await app.aio.admin.export(limit=5))  # is: list[holdfast.acts.views.JobRecord]
    app.admin.export(state=5)  # error: arg-type
    app.admin.export(colour="red")  # error: call-arg
    await app.aio.admin.report("2h")  # error: arg-type
