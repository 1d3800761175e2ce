"""app.enqueue_stream: jobs from any iterable, in short transactions, without keeping them."""

import asyncio
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import App, Task
from holdfast.enqueueing.many import StreamProgress
from holdfast.errors import StoreUnavailable, UsageError
from holdfast.stores.sqlite import store as sqlite_store
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.tasks import Draft
from holdfast.testing import FakeClock
from tests.factory import make_job


@pytest.fixture(params=["sqlite", "postgres", "memory"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[App]:
    urls = {"sqlite": lambda: f"sqlite:///{tmp_path}/jobs.db", "memory": lambda: "memory://"}
    url = urls.get(request.param, lambda: request.getfixturevalue("postgres"))()
    with App(url) as app:
        yield app


@pytest.fixture
def send(app: App) -> Task[[int], None]:
    @app.task(name="send")
    def send(n: int) -> None: ...

    return send


def drafts(send: Task[[int], None], first: int, last: int) -> Iterator[Draft[None]]:
    return (send.using(id=f"job-{n}").job(n) for n in range(first, last))


def test_a_stream_is_stored_in_chunks_and_counts_them(app: App, send: Task[[int], None]) -> None:
    app.store.add_at_once = 1_000
    heard: list[StreamProgress] = []
    seen = list(app.enqueue_stream(drafts(send, 0, 250), chunk=100, on_progress=heard.append))
    assert seen == heard == [(100, 0, 100), (100, 0, 200), (50, 0, 250)]
    assert app.counts()["ready"] == 250
    assert [job.id for job in app.find(limit=2)] == ["job-249", "job-248"]
    assert list(app.enqueue_stream([])) == []


def test_a_stream_that_is_repeated_stores_nothing_twice(app: App, send: Task[[int], None]) -> None:
    app.store.add_at_once = 1_000
    list(app.enqueue_stream(drafts(send, 0, 150)))
    assert list(app.enqueue_stream(drafts(send, 100, 300))) == [(150, 50, 200)]
    assert app.counts()["ready"] == 300


def test_each_chunk_is_committed_before_the_next_one_is_made(app: App, send: Task[[int], None]) -> None:
    app.store.add_at_once = 1_000
    counted: list[int] = []

    def made() -> Iterator[Draft[None]]:
        for n in range(30):
            if n % 10 == 0:
                counted.append(app.counts()["ready"])
            yield send.job(n)

    list(app.enqueue_stream(made(), chunk=10))
    assert counted == [0, 10, 20]


def test_an_error_of_the_store_says_how_many_are_stored_and_can_be_passed(
    app: App, send: Task[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    app.store.add_at_once = 1_000
    stream = app.enqueue_stream(drafts(send, 0, 30), chunk=10)
    assert next(stream).total == 10

    def fails(*_: Any) -> Any:
        raise StoreUnavailable("gone")

    with monkeypatch.context() as broken:
        broken.setattr(app.store, "add", fails)
        with pytest.raises(
            StoreUnavailable, match=r"^10 jobs of the stream are stored. The next 10 failed.*gone"
        ) as met:
            next(stream)
    assert met.value.stored_count == 10
    assert [progress.total for progress in stream] == [20, 30]
    assert app.counts()["ready"] == 30


@pytest.mark.parametrize("is_async", [False, True])
def test_an_async_stream_goes_on_after_an_error_of_the_store(
    app: App, send: Task[[int], None], monkeypatch: pytest.MonkeyPatch, is_async: bool
) -> None:
    app.store.add_at_once = 1_000

    async def made() -> AsyncIterator[Draft[None]]:
        for draft in drafts(send, 0, 30):
            yield draft

    def fails(*_: Any) -> Any:
        raise StoreUnavailable("gone")

    async def story() -> list[int]:
        stream = app.aio.enqueue_stream(made() if is_async else drafts(send, 0, 30), chunk=10)
        first = await anext(stream)
        with monkeypatch.context() as broken:
            broken.setattr(app.store, "add", fails)
            for _ in range(2):
                with pytest.raises(StoreUnavailable, match=r"^10 jobs of the stream are stored. The next 10 failed"):
                    await anext(stream)
        return [first.total] + [progress.total async for progress in stream]

    assert asyncio.run(story()) == [10, 20, 30]
    assert app.counts()["ready"] == 30


def test_an_async_stream_goes_on_after_a_step_ran_out_of_time(
    app: App, send: Task[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    app.store.add_at_once = 1_000
    add, begun, may_store = app.store.add, threading.Event(), threading.Event()

    def slow(*given: Any) -> Any:
        begun.set()
        assert may_store.wait(30)
        return add(*given)

    monkeypatch.setattr(app.store, "add", slow)

    async def story() -> list[StreamProgress]:
        stream = app.aio.enqueue_stream(drafts(send, 0, 30), chunk=10)
        step = asyncio.create_task(anext(stream))  # type: ignore[arg-type]
        await asyncio.to_thread(begun.wait, 30)
        with pytest.raises(UsageError, match="iterated over already"):
            await anext(stream)
        step.cancel()  # as asyncio.wait_for and asyncio.timeout do
        with pytest.raises(asyncio.CancelledError):
            await step
        may_store.set()
        return [progress async for progress in stream]

    assert asyncio.run(story()) == [(10, 0, 10), (10, 0, 20), (10, 0, 30)]


def test_an_async_generator_that_a_timeout_has_finished_is_no_end_of_the_stream(
    app: App, send: Task[[int], None]
) -> None:
    async def made() -> AsyncIterator[Draft[None]]:
        yield send.job(1)
        await asyncio.Event().wait()

    async def story() -> None:
        stream = app.aio.enqueue_stream(made(), chunk=10)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(stream), 0.01)
        for _ in range(2):
            with pytest.raises(UsageError, match=r"perhaps there was more. 0 jobs of the stream are stored"):
                await anext(stream)

    asyncio.run(story())


def test_a_draft_that_is_none_is_no_end_of_the_stream(app: App, send: Task[[int], None]) -> None:
    made = [send.job(1), None, send.job(2)]
    with pytest.raises(UsageError, match="None is not a job of this app"):
        list(app.enqueue_stream(iter(made)))  # type: ignore[arg-type]

    async def story() -> None:
        with pytest.raises(UsageError, match="None is not a job of this app"):
            await anext(app.aio.enqueue_stream(made))  # type: ignore[arg-type]

    asyncio.run(story())


def test_a_second_thread_cannot_iterate_over_a_stream(app: App, send: Task[[int], None]) -> None:
    refused: list[str] = []

    def made() -> Iterator[Draft[None]]:
        yield send.job(1)
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        yield send.job(2)

    def other() -> None:
        try:
            next(stream)
        except Exception as error:
            refused.append(f"{type(error).__name__}: {error}")

    stream = app.enqueue_stream(made())
    assert [each.total for each in stream] == [2]
    [words] = refused
    assert words.startswith("UsageError: this enqueue_stream is being iterated over already")


def test_an_error_of_the_iterable_says_how_many_are_stored(app: App, send: Task[[int], None]) -> None:
    app.store.add_at_once = 1_000

    def made() -> Iterator[Draft[None]]:
        yield from (send.job(n) for n in range(15))
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more") as met:
        list(app.enqueue_stream(made(), chunk=10))
    assert met.value.__notes__ == ["10 jobs of the stream are stored; those of this chunk are not"]
    assert app.counts()["ready"] == 10


def test_an_async_stream_takes_both_kinds_of_iterables(app: App, send: Task[[int], None]) -> None:
    app.store.add_at_once = 1_000

    async def made() -> AsyncIterator[Draft[None]]:
        for draft in drafts(send, 50, 75):
            yield draft

    async def story() -> list[StreamProgress]:
        plain = [each async for each in app.aio.enqueue_stream(drafts(send, 0, 50), chunk=20)]
        return plain + [each async for each in app.aio.enqueue_stream(made(), chunk=20)]

    seen = asyncio.run(story())
    assert seen == [(20, 0, 20), (20, 0, 40), (10, 0, 50), (20, 0, 20), (5, 0, 25)]
    assert app.counts()["ready"] == 75


def test_large_jobs_share_fewer_transactions(
    app: App, send: Task[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    app.store.add_at_once = 1_000
    monkeypatch.setattr("holdfast.enqueueing.many.ADD_CHARACTERS", 3 * len('{"n":1}'))
    assert [each.stored for each in app.enqueue_stream(drafts(send, 0, 7))] == [3, 3, 1]


@pytest.mark.parametrize("chunk", [0, -1, 1.5, True, "all"])
def test_a_chunk_is_a_whole_number(app: App, chunk: Any) -> None:
    with pytest.raises(UsageError, match="chunk="):
        app.enqueue_stream([], chunk=chunk)


def test_drafts_of_others_and_of_a_callers_transaction_are_refused(app: App, send: Task[[int], None]) -> None:
    with pytest.raises(UsageError, match="not a job of this app"):
        list(app.enqueue_stream([send]))  # type: ignore[list-item]
    with pytest.raises(UsageError, match="enqueue_stream commits chunk by chunk"):
        list(app.enqueue_stream([send.using(connection=object()).job(1)]))


def test_a_stream_that_nobody_iterates_over_warns(app: App, send: Task[[int], None]) -> None:
    with pytest.warns(RuntimeWarning, match="never iterated over"):
        app.enqueue_stream(drafts(send, 0, 3))
    assert app.counts()["ready"] == 0


@pytest.mark.parametrize("app", ["sqlite", "postgres"], indirect=True)
def test_a_long_stream_keeps_nothing(app: App, send: Task[[int], None]) -> None:
    """2,000 jobs and 10,000 need the same memory: the rest of a million is more of the same."""
    list(app.enqueue_stream(send.job(n) for n in range(2_000)))
    peaks = []
    for many in (2_000, 10_000):
        tracemalloc.start()
        list(app.enqueue_stream((send.job(n) for n in range(many)), chunk=500))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + 1_000_000


# ------------------------------------------------------------------------------------ the write lock of SQLite


def test_sqlite_takes_as_many_at_once_as_fit_into_half_of_20_ms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    store = SqliteStore(f"sqlite:///{tmp_path}/jobs.db", clock=clock)
    store.migrate()
    costs_s = [0.001, 0.004, 0.04, 0.0, 100.0, 100.0]
    real = sqlite_store.statements.NewRows.add

    def slow(rows: Any, *rest: Any, **named: Any) -> Any:
        clock.advance(costs_s.pop(0))
        return real(rows, *rest, **named)

    monkeypatch.setattr(sqlite_store.statements.NewRows, "add", slow)
    chosen = []
    for many in (200, 400, 800, 200, 1, 400):  # one job says nothing about many
        store.add([make_job() for _ in range(many)])
        chosen.append(store.add_at_once)
    assert chosen == [400, 800, 200, 400, 400, 20]
    store.close()


@pytest.mark.slow(reason="stores a hundred thousand jobs in a process of its own")
def test_a_hundred_thousand_jobs_of_a_generator_need_little_memory(tmp_path: Path) -> None:
    program = f"""
from pathlib import Path
from holdfast import App
with App("sqlite:///{tmp_path}/jobs.db?synchronous=normal") as app:
    send = app.task(name="send")(lambda n: None)
    for progress in app.enqueue_stream(send.job(n) for n in range(100_000)):
        pass
    assert progress.total == 100_000
[peak] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
print(int(peak.split()[1]) // 1024)  # of this program alone; getrusage counts the one that has started it
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 100
