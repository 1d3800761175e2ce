"""A handler may be interrupted anywhere, also inside the store, and one bad value or thread disturbs nobody else."""

from __future__ import annotations

import logging
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast import App, Context, Retry, Snooze, interrupts
from holdfast.errors import Cancelled, UsageError
from holdfast.interrupts import clear_interrupt, interrupt, raise_pending, shield_logging, shielded
from holdfast.stores.sqlite.write_lock import WriteLock
from tests.worker.house import House, on_every_store

ONCE = Retry(attempts_max=1)


# ------------------------------------------------------------------------------------------------ shield


def in_thread(work: Any) -> Any:
    """Run `work(ready)` in a thread; return what it returned or raised, after `ready` let us interrupt it."""
    ready, go_on = threading.Event(), threading.Event()
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(work(ready, go_on))
        except BaseException as error:
            found.append(error)
        finally:
            clear_interrupt()

    thread = threading.Thread(target=run)
    thread.start()
    assert ready.wait(60)
    interrupt(thread.ident or 0, Cancelled)
    go_on.set()
    thread.join(60)
    return found[0]


def test_an_interrupt_inside_a_shield_waits_for_its_end() -> None:
    steps: list[str] = []

    def work(ready: threading.Event, go_on: threading.Event) -> None:
        with shielded():
            with shielded():
                ready.set()
                go_on.wait(60)
                steps.append("inner")
            steps.append("outer")
        steps.append("never")

    assert isinstance(in_thread(work), Cancelled)
    assert steps == ["inner", "outer"]


class SlowLock:
    """A lock that says when it was taken, and lets the thread that took it wait."""

    def __init__(self, ready: threading.Event, go_on: threading.Event) -> None:
        self.real, self.ready, self.go_on = threading.RLock(), ready, go_on

    def acquire(self) -> None:
        self.real.acquire()
        self.ready.set()
        self.go_on.wait(60)

    def release(self) -> None:
        self.real.release()

    __enter__ = acquire

    def __exit__(self, *_: object) -> None:
        self.release()


def test_an_interrupt_never_leaves_a_handler_of_logging_locked() -> None:
    """Its lock is taken by a call: an interrupt right after it would keep every thread from logging, for ever."""
    shield_logging()
    shield_logging()  # a second worker in the process
    handler = logging.NullHandler()
    said: list[str] = []

    def work(ready: threading.Event, go_on: threading.Event) -> None:
        handler.lock = SlowLock(ready, go_on)  # type: ignore[assignment]
        handler.acquire()
        try:
            said.append("logged")
        finally:
            handler.release()
        said.append("never")

    end = in_thread(work)
    lock: Any = handler.lock
    handler.lock = threading.RLock()  # whatever became of the other one: at exit every handler is locked once more
    assert isinstance(end, Cancelled)
    assert said == ["logged"]
    assert lock.real.acquire(blocking=False), "it is free"
    lock.real.release()


def test_a_shield_may_say_where_an_interrupt_is_welcome() -> None:
    def work(ready: threading.Event, go_on: threading.Event) -> str:
        with shielded():
            ready.set()
            go_on.wait(60)
            try:
                raise_pending()
            except Cancelled:
                return "breathed"
            return "held its breath"

    assert in_thread(work) == "breathed"


def test_without_a_shield_it_hits_at_once() -> None:
    def work(ready: threading.Event, go_on: threading.Event) -> None:
        ready.set()
        while True:
            time.sleep(0.001)

    assert isinstance(in_thread(work), Cancelled)


def test_an_interrupt_that_was_taken_back_does_not_hit(monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[object] = []
    monkeypatch.setattr(interrupts, "_raise_in", lambda thread, signal: raised.append((thread, signal)))
    me = threading.get_ident()
    interrupt(me, Cancelled)
    assert raised == [(me, Cancelled)]
    monkeypatch.undo()
    clear_interrupt()  # replaces what is pending by an exception of its own, and catches that
    for _ in range(1000):
        interrupts._let_it_hit()


def test_a_job_that_nobody_interrupts_leaves_the_interpreter_alone(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CPython never forgets that it was asked to raise or to take back an exception in a thread: calls stay slow."""
    asked: list[object] = []
    monkeypatch.setattr(interrupts, "_raise_in", lambda thread, signal: asked.append(signal))

    @house.app.task
    def quiet() -> str:
        return "done"

    house.start()
    house.until_state(quiet.enqueue().id, "done")
    assert asked == []


TICKS = """
import time
from holdfast import App, Retry

app = App("memory://")

@app.task
def quick():
    return "done"

@app.task(timeout_s=0.2, retry=Retry(attempts_max=1))
def slow():
    while True:
        time.sleep(0.01)

jobs = [quick.enqueue(), slow.enqueue()]
while app.counts().get("ready", 0) + app.counts().get("running", 0):
    app.tick(budget_s=5)
later = quick.enqueue()
app.tick(budget_s=5)
print(*[job.refresh().state for job in (*jobs, later)])
app.close()
"""


@pytest.mark.slow  # a whole interpreter under a tracer
def test_jobs_run_and_time_out_under_coverage(tmp_path: Path) -> None:
    """On Python 3.11 a process that takes back an exception the wrong way never gets past its next traced call."""
    (tmp_path / "ticks.py").write_text(TICKS)
    command = [sys.executable, "-m", "coverage", "run", "--timid", "ticks.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert done.stdout.split() == ["done", "dead", "done"], done.stderr


def test_a_writers_place_belongs_to_its_token_and_may_be_given_back_twice() -> None:
    writers = WriteLock()
    assert writers.take("a", 0.0)
    assert not writers.take("b", 0.06)
    writers.give("b")
    assert not writers.take("b", 0.0)
    writers.give("a")
    writers.give("a")
    assert writers.take("b", 0.0)


@on_every_store
@pytest.mark.slow  # many cancels, each of which needs half a second to arrive
def test_cancelling_handlers_that_are_inside_the_store_leaves_the_store_usable(house: House) -> None:
    @house.app.task
    def leaf() -> None: ...

    @house.app.task(retry=ONCE)
    def busy(ctx: Context) -> None:
        while True:
            leaf.using(run_after=3600, key="one").enqueue()  # a write each time, and never more than one job

    house.start(slots=8)
    for _ in range(3):
        jobs = [busy.enqueue() for _ in range(4)]
        for job in jobs:
            house.until_state(job.id, "running")
        for job in jobs:
            house.app.cancel(job.id)
        for job in jobs:
            house.until_state(job.id, "cancelled")
    last = leaf.enqueue()  # raises if it waited in vain for a lock that nobody holds
    house.until_state(last.id, "done")


# --------------------------------------------------------------------------------- one among neighbours


class OddFloat(float):
    """As numpy has them: a float that is none to a strict encoder."""


@pytest.mark.slow  # the time of a lease, which is long enough for a busy machine to renew in time
def test_odd_numbers_are_fine_and_wrong_ones_fail_only_the_task_that_gave_them(house: House) -> None:
    values: dict[str, Any] = {"odd": OddFloat(0.5), "text": "50%", "nan": float("nan"), "big": 2, "list": [1]}

    @house.app.task(retry=ONCE)
    def report(ctx: Context, name: str) -> str:
        ctx.progress(values[name])
        return "told"

    @house.app.task(retry=ONCE, lease_s=6)
    def neighbour() -> str:
        time.sleep(7)
        return "undisturbed"

    house.start()
    beside = neighbour.enqueue()
    jobs = {name: report.enqueue(name) for name in values}
    assert jobs.pop("odd").result(60) == "told"
    for name, job in jobs.items():
        row = house.until_state(job.id, "dead")
        assert "from 0 to 1" in (row.error or ""), name
    assert beside.result(60) == "undisturbed"
    assert house.row(beside.id).attempt == 1


def test_a_note_that_is_no_text_is_refused(house: House) -> None:
    @house.app.task(retry=ONCE)
    def report(ctx: Context) -> None:
        ctx.progress(0.5, note=b"bytes")  # type: ignore[arg-type]

    house.start()
    assert "must be text" in (house.until_state(report.enqueue().id, "dead").error or "")


def test_jobs_for_which_no_thread_can_be_started_are_given_back_and_run_later(
    house: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real, refused = threading.Thread.start, []

    def start(thread: threading.Thread) -> None:
        if thread.name.startswith("holdfast-job") and len(refused) < 3:
            refused.append(thread)
            raise RuntimeError("can't start new thread")
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)

    @house.app.task
    def echo(n: int) -> int:
        return n

    jobs = [echo.enqueue(n) for n in range(5)]
    house.start()
    assert [job.result(60) for job in jobs] == [0, 1, 2, 3, 4]
    assert len(refused) == 3
    assert caplog.text.count("no more threads (can't start new thread)") == 1, "one line for all of them"
    assert all(house.row(job.id).crashes == 0 for job in jobs)


def test_a_hold_job_that_finished_but_cannot_be_stored_is_held_and_not_repeated(house: House) -> None:
    starts: list[int] = []

    @house.app.task(on_crash="hold")
    def charge(ctx: Context) -> Any:
        starts.append(ctx.attempt)
        return b"a receipt that is no JSON"

    house.start()
    row = house.until_state(charge.enqueue().id, "held")
    assert starts == [1]
    assert "could not be stored" in (row.error or "")


# ------------------------------------------------------------------------------------------ transactions


@pytest.fixture
def app(tmp_path: Path) -> App:
    return App(f"sqlite:///{tmp_path}/jobs.db?synchronous=normal")


def test_a_transaction_that_sqlite_rolled_back_takes_no_more_writes(app: App, tmp_path: Path) -> None:
    house = House(app)
    app.store.counts()
    mine = sqlite3.connect(tmp_path / "jobs.db")
    mine.execute("CREATE TABLE ledger (n INTEGER UNIQUE)")
    mine.commit()
    seen: list[BaseException] = []

    @app.task(retry=ONCE)
    def write(ctx: Context) -> None:
        with ctx.transaction() as db:
            db.execute("INSERT INTO ledger VALUES (1)")
            try:
                db.execute("INSERT OR ROLLBACK INTO ledger VALUES (1)")
            except sqlite3.IntegrityError as error:
                seen.append(error)
            db.execute("INSERT INTO ledger VALUES (3)")

    try:
        house.start()
        row = house.until_state(write.enqueue().id, "dead")
        assert len(seen) == 1
        assert "rolled the transaction back" in (row.error or "")
        assert mine.execute("SELECT count(*) FROM ledger").fetchone() == (0,)
    finally:
        house.close()
        mine.close()


class Autocommitting(sqlite3.Connection):
    """As `sqlite3.connect(…, autocommit=True)` gives them from Python 3.12 on."""

    autocommit = True


def test_a_connection_that_commits_by_itself_stores_the_job_at_once(app: App, tmp_path: Path) -> None:
    @app.task
    def ship() -> None: ...

    app.store.counts()
    connection = sqlite3.connect(tmp_path / "jobs.db", factory=Autocommitting, isolation_level="")
    try:
        ship.using(connection=connection).enqueue()
        assert app.counts()["ready"] == 1
        assert not connection.in_transaction
    finally:
        connection.close()
        app.close()


def test_a_snooze_without_end_is_refused() -> None:
    for delay_s in (float("inf"), float("nan"), -1):
        with pytest.raises(UsageError, match="Snooze"):
            Snooze(delay_s)
