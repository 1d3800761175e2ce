"""`app.close()` while a tick or a worker of the app runs in another thread: what has ended is saved first."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import App, Context
from holdfast.core.machine import State
from holdfast.core.records import Job as Row
from holdfast.errors import HoldfastError, UsageError
from holdfast.stores.protocol import Store
from holdfast.worker.options import WorkerOptions
from holdfast.worker.runner import Runner
from tests.conftest import SERVERS
from tests.worker.conftest import sqlite_url
from tests.worker.house import PATIENCE_S, until


class Closing:
    """An app, and a second way to its store that is there when the app is closed."""

    def __init__(self, url: str) -> None:
        self.app = App(url)
        self.again = self.app if url == "memory://" else App(url)
        self.store: Store = self.again.store
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.starts: list[int] = []

        @self.app.task(name="wait", lease_s=30)
        def wait(ctx: Context, number: int) -> int:
            self.starts.append(number)
            self.begun.set()
            while not self.go_on.is_set():
                time.sleep(0.005)
            return number

        self.wait = wait

    def row(self, id: str) -> Row:
        row = self.store.get(id)
        assert row is not None
        return row

    def close_aside(self) -> threading.Thread:
        """Close the app in another thread, and return that."""
        thread = threading.Thread(target=self.app.close, name="test-close", daemon=True)
        thread.start()
        return thread


@pytest.fixture(params=["memory", "sqlite", "postgres", "redis"])
def closing(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Closing]:
    if request.param in SERVERS:
        url = str(request.getfixturevalue(request.param))
    else:
        url = "memory://" if request.param == "memory" else sqlite_url(tmp_path)
    closing = Closing(url)
    yield closing
    closing.go_on.set()
    closing.app.close()
    closing.again.close()


def run_aside(call: Any) -> tuple[threading.Thread, list[Any]]:
    """Call it in another thread; return that, and a list for what it returns or raises."""
    came: list[Any] = []

    def run() -> None:
        try:
            came.append(call())
        except HoldfastError as error:
            came.append(error)

    thread = threading.Thread(target=run, name="test-aside", daemon=True)
    thread.start()
    return thread, came


def joined(thread: threading.Thread) -> None:
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_closing_an_app_waits_for_the_jobs_of_a_tick_and_saves_their_endings(closing: Closing) -> None:
    jobs = [closing.wait.enqueue(number) for number in range(3)]
    ticking, came = run_aside(lambda: closing.app.tick(budget_s=60, slots=3))
    until(lambda: len(closing.starts) == 3)
    later = closing.wait.enqueue(99)
    close = closing.close_aside()
    close.join(0.3)
    assert close.is_alive()
    with pytest.raises(UsageError, match="closed"):
        closing.app.tick(budget_s=30, queues=("other",))
    closing.go_on.set()
    joined(close)
    joined(ticking)
    assert (came[0].settled, came[0].finished) == (3, False)
    assert [(closing.row(job.id).state, closing.row(job.id).attempt) for job in jobs] == [(State.DONE, 1)] * 3
    assert closing.row(later.id).state is State.READY
    assert closing.store.workers() == []
    with pytest.raises(UsageError, match="closed"):
        closing.app.tick(budget_s=1)


def test_closing_an_app_stops_its_worker_and_saves_what_has_ended(closing: Closing) -> None:
    runner = Runner(closing.app, WorkerOptions(name="embedded", slots=1, reaper=False))
    job = closing.wait.enqueue(1)
    running, came = run_aside(runner.run)
    assert closing.begun.wait(PATIENCE_S)
    close = closing.close_aside()
    close.join(0.3)
    assert close.is_alive()
    closing.go_on.set()
    joined(close)
    joined(running)
    assert came == [0]
    assert (closing.row(job.id).state, closing.row(job.id).attempt) == (State.DONE, 1)
    assert closing.store.workers() == []


def test_a_handler_that_never_stops_does_not_keep_an_app_from_closing(
    closing: Closing, caplog: pytest.LogCaptureFixture
) -> None:
    stuck = threading.Event()

    @closing.app.task(name="never")
    def never() -> None:
        closing.begun.set()
        stuck.wait()

    options = WorkerOptions(name="embedded", slots=1, reaper=False, grace_period_s=PATIENCE_S)
    runner = Runner(closing.app, options)
    runner._work.within_s = 0.2
    never.enqueue()
    running, _ = run_aside(runner.run)
    assert closing.begun.wait(PATIENCE_S)
    joined(closing.close_aside())
    assert "closing the store although a worker has not stopped" in caplog.text
    stuck.set()
    joined(running)


def test_a_handler_that_outlived_its_tick_delays_closing_by_a_second_only(closing: Closing) -> None:
    stuck = threading.Event()

    @closing.app.task(name="never")
    def never() -> None:
        closing.begun.set()
        stuck.wait()

    never.enqueue()
    assert not closing.app.tick(budget_s=1).finished
    try:
        joined(closing.close_aside())
    finally:
        stuck.set()


def test_a_job_cannot_close_the_app_that_runs_it(closing: Closing) -> None:
    @closing.app.task(name="closes")
    def closes() -> str:
        with pytest.raises(UsageError, match="cannot close the app that runs it"), closing.app:
            pass
        return "refused"

    @closing.app.task(name="aclose")
    async def aclose() -> str:
        with pytest.raises(UsageError, match="cannot close the app that runs it"):
            closing.app.close()
        return "refused"

    jobs = [closes.enqueue(), aclose.enqueue()]
    assert closing.app.tick(budget_s=30).settled == 2
    assert [job.result(timeout=0) for job in jobs] == ["refused"] * 2


def test_a_signal_handler_that_closes_the_app_inside_a_tick_is_refused(closing: Closing) -> None:
    @closing.app.task(name="signals")
    def signals() -> str:
        os.kill(os.getpid(), signal.SIGUSR1)
        closing.begun.wait(PATIENCE_S)
        return "signalled"

    def handler(*_: object) -> None:
        closing.begun.set()
        closing.app.close()

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        signals.enqueue()
        with pytest.raises(UsageError, match="cannot close the app that runs it"):
            closing.app.tick(budget_s=60)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert closing.app.counts()["running"] == 0


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_closes_its_app_without_waiting_for_the_tick_of_its_parent(closing: Closing) -> None:
    closing.wait.enqueue(1)
    ticking, _ = run_aside(lambda: closing.app.tick(budget_s=60))
    assert closing.begun.wait(PATIENCE_S)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            closing.app.close()
            code = 0
        finally:
            os._exit(code)
    ended = until(lambda: [each for each in [os.waitpid(child, os.WNOHANG)] if each[0]], "the child ends")
    assert ended == [(child, 0)]
    closing.go_on.set()
    joined(ticking)


def test_an_enqueue_while_the_app_closes_is_stored_or_refused(closing: Closing) -> None:
    stored: list[str] = []
    refused: list[str] = []

    def enqueue(thread: int) -> None:
        for number in range(100_000):
            id = f"job-{thread}-{number}"
            try:
                closing.wait.using(id=id).enqueue(number)
                stored.append(id)
            except HoldfastError:
                refused.append(id)
                return

    with closing.app:
        threads = [run_aside(lambda each=each: enqueue(each))[0] for each in range(4)]
        until(lambda: len(stored) > 100)
    for thread in threads:
        joined(thread)
    assert len(refused) == 4
    assert [id for id in stored if closing.store.get(id) is None] == []
    assert [id for id in refused if closing.store.get(id) is not None] == []
