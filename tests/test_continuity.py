"""Programs that do not beat notice a store that was replaced, rewound or emptied: producers, supervisors, reapers."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast import App
from holdfast.continuity import LOOK_S, REAPER, Continuity, Watcher
from holdfast.core.continuity import Doubt, Standing
from holdfast.core.machine import State
from holdfast.errors import StoreUnavailable
from holdfast.stores.protocol import Store
from holdfast.testing import FakeClock
from tests.factory import enrol
from tests.worker.house import until
from tests.worker.meddler import Meddler


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def app(file: Path, clock: FakeClock) -> Iterator[App]:
    with App(f"sqlite:///{file}", clock=clock) as app:
        yield app


@pytest.fixture
def task(app: App) -> Any:
    @app.task(name="t")
    def task() -> None: ...

    return task


def copy(source: Path, target: Path) -> None:
    with closing(sqlite3.connect(source)) as old, closing(sqlite3.connect(target, timeout=30)) as new:
        old.backup(new)


def kinds(store: Store) -> list[tuple[str, str]]:
    return [(doubt.kind, doubt.evidence) for doubt in store.doubts()]


# ------------------------------------------------------------------------------------------- producers


def test_a_producer_notices_that_jobs_are_gone_which_it_has_stored(
    app: App, task: Any, clock: FakeClock, file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    task.enqueue()
    copy(file, tmp_path / "backup.db")
    clock.advance(1)
    task.enqueue()
    clock.advance(LOOK_S)
    task.enqueue()
    copy(tmp_path / "backup.db", file)
    assert kinds(app.store) == []
    clock.advance(LOOK_S)
    late = task.enqueue()
    assert kinds(app.store) == [("emptied", "known job")]
    assert "This process still stores jobs, but no worker claims them." in caplog.text
    assert app.get(late.id).state is State.READY


def test_a_producer_misses_jobs_that_it_stored_after_its_last_look(
    app: App, task: Any, clock: FakeClock, file: Path, tmp_path: Path
) -> None:
    task.enqueue()
    copy(file, tmp_path / "backup.db")
    clock.advance(LOOK_S)
    app.reap()  # a look, at which nothing is new
    lost = [task.enqueue().id, task.enqueue().id]
    copy(tmp_path / "backup.db", file)
    task.enqueue()  # after the restore, and before the next look
    clock.advance(LOOK_S)
    task.enqueue()
    [doubt] = app.store.doubts()
    assert (doubt.evidence, doubt.seen) == ("known job", min(lost))


def test_a_producer_says_so_every_minute_until_the_store_is_accepted(
    app: App, task: Any, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    task.enqueue()
    app.store.doubt(1, Doubt("emptied", "truncate", "job", "ann"))
    for _ in range(int(120 / LOOK_S)):
        clock.advance(LOOK_S)
        task.enqueue()
    assert caplog.text.count("another program has found this store changed") == 2
    app.store.accept(1, "ann", "looked")
    caplog.clear()
    for _ in range(int(120 / LOOK_S)):
        clock.advance(LOOK_S)
        task.enqueue()
    assert "found this store changed" not in caplog.text


def test_a_producer_asks_at_most_every_few_seconds(app: App, task: Any, clock: FakeClock) -> None:
    store = Meddler(app.store)
    watched = Continuity(store, clock, "p", "")  # type: ignore[arg-type]
    for _ in range(1000):
        watched.added("job")
    assert store.calls["standing"] == 0
    clock.advance(LOOK_S)
    for _ in range(1000):
        watched.added("job")
    assert store.calls["standing"] == 1


def test_a_job_is_stored_when_the_store_does_not_say_what_it_is(app: App, task: Any, clock: FakeClock) -> None:
    job = task.enqueue()
    store = Meddler(app.store)
    watched = Continuity(store, clock, "p", "")  # type: ignore[arg-type]
    watched.try_to_look()
    watched.added("lost")
    watched.added("also lost")
    clock.advance(LOOK_S)

    def unavailable(*_: object) -> None:
        raise StoreUnavailable("on purpose")

    with store.before("standing", unavailable):
        watched.added(job.id)
    assert not watched.in_doubt
    clock.advance(LOOK_S)
    watched.added(job.id)
    assert watched.in_doubt, "what was stored before the store failed is asked for again"


def test_a_look_that_nobody_could_hear_is_repeated_with_the_same_jobs(app: App, clock: FakeClock) -> None:
    def stumble(_: Standing) -> None:
        raise StoreUnavailable("on purpose")

    watched = Continuity(app.store, clock, "p", "")
    watched.look("")
    watched.added("lost")
    watched.added("also lost")
    watched._heard = stumble
    assert not watched.try_to_look()
    watched._heard = lambda _: None
    assert watched.try_to_look()
    assert watched.in_doubt


def test_an_app_that_ticks_runs_nothing_from_a_store_that_was_rewound(file: Path, tmp_path: Path) -> None:
    with App(f"sqlite:///{file}") as app:

        @app.task(name="t")
        def task() -> None: ...

        job = task.enqueue()
        copy(file, tmp_path / "backup.db")
        task.enqueue()
        assert app.tick().settled == 2
        copy(tmp_path / "backup.db", file)
        assert app.tick().settled == 0
        assert app.get(job.id).state is State.READY
        app.store.accept(1, "ann", "looked")
        assert app.tick().settled == 1


# --------------------------------------------------------------------------------- supervisors, reapers


class SteppedClock(FakeClock):
    """Lets whoever waits go on when the test says so; then the time that it asked for has passed."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = 0
        self.go = threading.Semaphore(0)

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        self.waits += 1
        while not self.go.acquire(timeout=0.01):
            if event.is_set():
                return True
        self.advance(timeout_s)
        return event.is_set()


def test_a_program_that_does_not_beat_notices_within_five_seconds(app: App, file: Path, tmp_path: Path) -> None:
    worker = enrol(app.store)
    copy(file, tmp_path / "backup.db")
    app.store.beat(worker, [])
    clock = SteppedClock()
    with Watcher(app.store, clock, "r", REAPER):
        until(lambda: clock.waits == 1, "it has looked")
        assert kinds(app.store) == []
        copy(tmp_path / "backup.db", file)
        began = clock.lease()
        clock.go.release()
        until(lambda: clock.waits == 2, "it has looked again")
        assert (kinds(app.store), clock.lease() - began) == ([("rewound", "beats")], 5.0)
