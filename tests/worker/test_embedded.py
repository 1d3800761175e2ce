"""A worker inside a program, hooks at its start and stop, middleware, and the job that code deep below belongs to."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from holdfast import App, Context, Flow, JobDead, Retry, UsageError, current_job
from holdfast.worker.isolated.task_locator import TaskLocator
from holdfast.worker.options import WorkerOptions
from tests.worker import bad
from tests.worker.house import House, on_every_store, until

ONCE = Retry(attempts_max=1)


# --- app.worker() -------------------------------------------------------------------------------------


def test_a_worker_in_a_program_runs_jobs_until_the_block_ends(house: House) -> None:
    @house.app.task
    def add(a: int, b: int) -> int:
        return a + b

    with house.app.worker(slots=2, name="inside") as worker:
        assert add.enqueue(1, 2).result(60) == 3
        assert (worker.name, worker.is_running) == ("inside", True)
    assert not worker.is_running
    assert house.store.workers() == []
    assert add.enqueue(1, 2).state == "ready"


def test_a_worker_is_awaited_in_async_programs(house: House) -> None:
    @house.app.task
    async def add(a: int, b: int) -> int:
        return a + b

    async def program() -> int:
        async with house.app.worker(slots=2):
            return await (await add.aenqueue(1, 2)).aresult(60)

    assert asyncio.run(program()) == 3


@pytest.mark.parametrize("again", [False, True])
def test_a_worker_that_is_cancelled_while_it_starts_does_not_stay_behind(house: House, again: bool) -> None:
    starts, goes_on = threading.Event(), threading.Event()
    workers = [house.app.worker(slots=1, name="w")]

    @house.app.on_worker_start
    def hold_up() -> None:
        starts.set()
        assert goes_on.wait(60)

    @house.app.task
    def work() -> None: ...

    async def serve() -> None:
        async with workers[0]:
            raise AssertionError("the block must not begin")

    async def program() -> None:
        serving = asyncio.create_task(serve())
        await asyncio.to_thread(starts.wait, 60)
        serving.cancel()
        if again:
            await asyncio.sleep(0)
            serving.cancel()
            await asyncio.wait([serving])
        goes_on.set()
        with pytest.raises(asyncio.CancelledError):
            await serving

    asyncio.run(program())
    until(lambda: not workers[0].is_running)
    assert work.enqueue().row.state == "ready"
    assert [each for each in house.store.workers() if each.gone_at is None] == []


def test_a_worker_publishes_its_release_and_its_failures_carry_it(house: House) -> None:
    @house.app.task(retry=ONCE)
    def fail() -> None:
        raise ValueError("no luck")

    with house.app.worker(slots=1, release="2.4.1"):
        assert [worker.release for worker in house.store.workers()] == ["2.4.1"]
        job = fail.enqueue()
        with pytest.raises(JobDead):
            job.result(60)
    assert [event.detail.get("release") for event in house.store.journal(job.id, kinds=["failed"])] == ["2.4.1"]


def test_the_environment_names_the_release(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_RELEASE", "from the environment")
    with house.app.worker(slots=1):
        assert [worker.release for worker in house.store.workers()] == ["from the environment"]
    with house.app.worker(slots=1, release="given"):
        assert [worker.release for worker in house.store.workers()] == ["given"]


def test_a_release_that_no_store_can_hold_is_refused(house: House) -> None:
    for release in ("x" * 101, "nul\0"):
        with pytest.raises(UsageError, match="release="):
            house.app.worker(release=release)


def test_draining_waits_for_what_runs_and_claims_nothing_more(house: House) -> None:
    began, goes_on = threading.Event(), threading.Event()

    @house.app.task
    def wait() -> str:
        began.set()
        assert goes_on.wait(60)
        return "done"

    worker = house.app.worker(slots=1, grace_period_s=0.0).start()
    running = wait.enqueue()
    assert began.wait(60)
    assert not worker.drain(0.05)
    waiting = wait.enqueue()
    goes_on.set()
    assert worker.drain()
    assert (running.refresh().state, waiting.refresh().state) == ("done", "ready")
    worker.stop()  # a second time: nothing is left to do


def test_stopping_gives_back_what_outlasts_the_grace_period(house: House) -> None:
    began = threading.Event()

    @house.app.task
    def endless(ctx: Context) -> None:
        began.set()
        while True:
            ctx.progress()

    worker = house.app.worker(slots=1, grace_period_s=0.1).start()
    job = endless.enqueue()
    assert began.wait(60)
    worker.stop()
    assert (job.refresh().state, job.row.failures, job.row.crashes) == ("ready", 0, 0)


@on_every_store
def test_a_handler_that_outlasts_the_stop_keeps_its_lease_and_is_given_back_when_it_ends(house: House) -> None:
    began, goes_on = threading.Event(), threading.Event()

    @house.app.task(lease_s=3)
    def deaf() -> None:
        began.set()
        goes_on.wait(60)  # in one call: the request to stop arrives after it

    worker = house.app.worker(slots=1, name="deaf", grace_period_s=0.0).start()
    job = deaf.enqueue()
    assert began.wait(60)
    worker.stop()
    assert not worker.is_running
    first = job.refresh().row.lease_until
    assert first is not None
    until(lambda: (job.refresh().row.lease_until or 0.0) > first + 1.0, "the lease is renewed")
    goes_on.set()
    until(lambda: job.refresh().state == "ready", "the job is given back")
    assert (job.row.attempt, job.row.crashes, job.row.zombies) == (1, 0, 0)
    until(lambda: house.store.workers() == [], "it signs off")


def test_what_keeps_a_worker_from_starting_is_raised_where_it_is_started() -> None:
    app = App("memory://")
    app.close()
    with pytest.raises(UsageError, match="closed"):
        app.worker().start()


def test_a_worker_is_started_once_and_not_stopped_before(house: House) -> None:
    worker = house.app.worker()
    with pytest.raises(UsageError, match="was not started"):
        worker.stop()
    with worker, pytest.raises(UsageError, match="make another one"):
        worker.start()
    with pytest.raises(UsageError, match="slots=0"):
        house.app.worker(slots=0)


def test_a_job_that_stops_the_worker_that_runs_it_is_refused(house: House) -> None:
    workers: list[Any] = []

    @house.app.task(retry=ONCE)
    def stop_it() -> None:
        workers[0].stop()

    with house.app.worker() as worker:
        workers.append(worker)
        with pytest.raises(JobDead, match="a job cannot stop the worker that runs it"):
            stop_it.enqueue().result(60)


def test_an_error_of_the_block_is_not_hidden_by_the_end_of_the_worker(house: House) -> None:
    with pytest.raises(ZeroDivisionError), house.app.worker():
        raise ZeroDivisionError


def test_a_worker_in_a_program_fires_schedules(house: House) -> None:
    ran = threading.Event()

    @house.app.task
    def poll() -> None:
        ran.set()

    house.app.every(seconds=1, task=poll, key="poll")
    with house.app.worker():
        assert ran.wait(60)
    assert [each.key for each in house.store.schedules()] == ["poll"]


def test_closing_the_app_waits_for_a_worker_in_the_program() -> None:
    app = App("memory://")
    worker = app.worker(name="w").start()
    app.close()
    assert worker.drain(60), "it has stopped, and there is nothing to wait for"


def test_queues_as_one_text_are_refused(house: House) -> None:
    with pytest.raises(UsageError, match=r"write a list: queues=\['mail'\]"):
        house.app.worker(queues="mail")


# --- Hooks at start and stop --------------------------------------------------------------------------


def test_hooks_run_before_the_first_job_and_after_the_last(house: House) -> None:
    seen: list[str] = []

    @house.app.on_worker_start
    def warm() -> None:
        seen.append("start")

    @house.app.on_worker_start
    async def warm_later() -> None:
        await asyncio.sleep(0)
        seen.append("async start")

    @house.app.on_worker_stop
    async def cool_later() -> None:
        seen.append("async stop")

    @house.app.on_worker_stop
    def cool() -> None:
        seen.append("stop")

    @house.app.task
    def work() -> None:
        seen.append("job")

    job = work.enqueue()
    with house.app.worker():
        job.result(60)
    assert seen == ["start", "async start", "job", "async stop", "stop"]


def test_a_start_hook_that_raises_keeps_the_worker_from_claiming(house: House) -> None:
    @house.app.on_worker_start
    def broken() -> None:
        raise OSError("no database")

    @house.app.task
    def work() -> None: ...

    job = work.enqueue()
    with pytest.raises(OSError, match="no database"):
        house.app.worker().start()
    assert (job.refresh().state, job.row.attempt, house.store.workers()) == ("ready", 0, [])


def test_a_stop_hook_that_raises_is_logged_and_the_others_are_called(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str] = []

    @house.app.on_worker_stop
    def broken() -> None:
        raise OSError("is closed")

    @house.app.on_worker_stop
    def fine() -> None:
        seen.append("fine")

    with house.app.worker(name="w"):
        pass
    assert seen == ["fine"]
    assert "a hook for the stop of worker w raised; the others continue: OSError: is closed" in caplog.text


# --- Middleware -----------------------------------------------------------------------------------------


def layered(house: House, is_async: bool, fn: Any) -> Any:
    async def later() -> Any:
        return fn()

    return house.app.task(name="work", retry=ONCE)(later if is_async else lambda: fn())


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_middleware_runs_around_each_attempt_the_first_one_outermost(house: House, is_async: bool) -> None:
    seen: list[str] = []

    @house.app.middleware
    def outer(ctx: Context) -> Iterator[None]:
        seen.append(f"outer {ctx.job.task} {ctx.attempt}")
        yield
        seen.append("outer ends")

    @house.app.middleware
    async def inner(ctx: Context) -> AsyncIterator[None]:
        seen.append("inner")
        yield
        seen.append("inner ends")

    task = layered(house, is_async, lambda: seen.append("task"))
    house.start()
    task.enqueue().result(60)
    awaited = ["inner", "task", "inner ends"] if is_async else ["task"]
    assert seen == ["outer work 1", *awaited, "outer ends"]


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_middleware_sees_an_exception_and_may_turn_it_into_another(house: House, is_async: bool) -> None:
    @house.app.middleware
    def translate(ctx: Context) -> Iterator[None]:
        try:
            yield
        except ZeroDivisionError as error:
            raise ValueError("a number was zero") from error

    task = layered(house, is_async, lambda: 1 / 0)
    house.start()
    with pytest.raises(JobDead, match="ValueError: a number was zero"):
        task.enqueue().result(60)


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_middleware_that_swallows_an_exception_does_not_make_a_failed_job_done(house: House, is_async: bool) -> None:
    @house.app.middleware
    def swallow(ctx: Context) -> Iterator[None]:
        try:
            yield
        except BaseException:
            return

    task = layered(house, is_async, lambda: 1 / 0)
    house.start()
    with pytest.raises(JobDead, match="ZeroDivisionError"):
        task.enqueue().result(60)


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_middleware_that_raises_before_the_task_fails_the_attempt_without_running_it(
    house: House, is_async: bool
) -> None:
    seen: list[str] = []

    @house.app.middleware
    def broken(ctx: Context) -> Iterator[None]:
        raise OSError("no tracing")
        yield

    task = layered(house, is_async, lambda: seen.append("task"))
    house.start()
    with pytest.raises(JobDead, match="OSError: no tracing"):
        task.enqueue().result(60)
    assert seen == []


def test_middleware_cannot_stop_a_workflow_from_parking(house: House) -> None:
    entered: list[int] = []

    @house.app.middleware
    def swallow(ctx: Context) -> Iterator[None]:
        entered.append(ctx.attempt)
        try:
            yield
        except BaseException:
            return

    @house.app.workflow()
    def waits(flow: Flow) -> Any:
        return flow.wait("go")

    house.start()
    job = waits.enqueue()
    house.until_state(job.id, "waiting")
    house.app.signal(job.id, "go", 7)
    assert job.result(60) == 7
    assert entered == [1, 2]


def test_only_generator_functions_are_middleware(house: House) -> None:
    with pytest.raises(UsageError, match="must be a generator function"):
        house.app.middleware(lambda ctx: None)  # type: ignore[arg-type,return-value]


def test_middleware_and_start_hooks_run_in_an_isolated_process_too(file_house: House) -> None:
    house = file_house
    task = house.app.task(name="layered", isolate=True)(bad.layered.fn)
    house.start(app_ref="tests.worker.bad:_declares")
    job = task.enqueue()
    assert job.result(60) == ["started", "middleware", "layered"]
    assert task.enqueue().result(60)[0] == "started"


def test_a_start_hook_that_raises_in_an_isolated_process_fails_the_attempt(
    file_house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BAD_START", "1")
    house = file_house
    task = house.app.task(name="layered", isolate=True, retry=ONCE)(bad.layered.fn)
    house.start(app_ref="tests.worker.bad:_declares")
    with pytest.raises(JobDead, match="a hook for the start of its process raised: OSError: no database"):
        task.enqueue().result(60)


def test_a_task_is_not_isolated_without_the_middleware_of_another_module(file_house: House) -> None:
    """A process of its own would import the module of its function, and nothing else."""
    house = file_house

    @house.app.middleware
    def layer(ctx: Context) -> Iterator[None]:
        yield

    plain = house.app.task(name="plain")(bad.pid)
    locator = TaskLocator(house.app, None, WorkerOptions())
    assert not locator.knows(plain), "after a crash it runs here, inside its layers"
    assert TaskLocator(house.app, "tests.worker.bad:_declares", WorkerOptions()).knows(plain)
    house.app.task(name="alone", isolate=True)(bad.pid)
    with pytest.raises(UsageError, match=r"or worker hooks are declared in tests\.worker\.test_embedded"):
        house.app.worker().start()


# --- current_job() ---------------------------------------------------------------------------------------


def deep_below() -> tuple[str, int]:
    ctx = current_job()
    assert ctx is not None
    ctx.progress(0.5, note="from below")
    return ctx.job.id, ctx.attempt


def test_code_deep_below_finds_its_job(house: House) -> None:
    @house.app.task(name="sync")
    def sync() -> tuple[str, int]:
        return deep_below()

    @house.app.task(name="async")
    async def loop() -> tuple[str, int]:
        mine, theirs = deep_below(), await asyncio.to_thread(deep_below)
        assert mine == theirs
        return mine

    @house.app.workflow(name="flow")
    def flow_of_one(flow: Flow) -> Any:
        return flow.step(deep_below)

    house.start()
    for task in (sync, loop, flow_of_one):
        job = task.enqueue()
        assert list(job.result(60)) == [job.id, 1]
        assert house.row(job.id).note == "from below"
    assert current_job() is None


def test_jobs_side_by_side_on_the_event_loop_find_each_their_own(house: House) -> None:
    both = asyncio.Event()
    inside: list[int] = []

    @house.app.task
    async def meet() -> str:
        inside.append(1)
        if len(inside) == 2:
            both.set()
        await both.wait()
        return deep_below()[0]

    house.start()
    jobs = [meet.enqueue(), meet.enqueue()]
    assert [job.result(60) for job in jobs] == [job.id for job in jobs]
    until(lambda: current_job() is None)
