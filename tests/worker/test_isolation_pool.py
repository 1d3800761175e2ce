"""The pool of cells: it hears everybody who calls, and what keeps it from starting a cell keeps nobody else."""

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast import App, Retry
from holdfast.core.child_exit import EXIT_FENCED
from holdfast.core.lease import TrustWindow
from holdfast.core.verdict import Lost
from holdfast.errors import LeaseLost
from holdfast.runtime.tracebacks import ERROR_MAX
from holdfast.worker.attempt import Attempt
from holdfast.worker.isolated.pool import Moments, Pool, WorkerCallbacks
from holdfast.worker.isolated.process import IsolatedProcess
from holdfast.worker.isolated.task_locator import TaskLocator
from holdfast.worker.options import WorkerOptions
from holdfast.worker.runner import Runner
from tests.factory import a_job, claim, enrol, settle
from tests.worker import bad
from tests.worker.house import House, until

ONCE = Retry(attempts_max=1)


@pytest.fixture
def pool() -> Iterator[Pool]:
    """A pool that has no cells and expects no attempts: only a call can wake it."""
    app = App("memory://")
    hands = WorkerCallbacks(*[lambda *_: None] * 5)
    pool = Pool(app.clock, TaskLocator(app, None, WorkerOptions()), WorkerOptions(), hands, "w")
    yield pool
    pool.close()


def test_a_pool_that_many_threads_call_hears_every_one(pool: Pool) -> None:
    unheard: list[int] = []

    def call(times: int) -> None:
        for turn in range(times):
            heard = threading.Event()
            pool._do(heard.set)
            if not heard.wait(60):
                unheard.append(turn)
                return

    threads = [threading.Thread(target=call, args=(1000,)) for _ in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert unheard == []


# --- Words ------------------------------------------------------------------------------------------------


LEAKY = """raise OSError(20 * ("no answer from postgresql://me:hunter2@db/shop\\0 " + 900 * "x"))\n"""


@pytest.mark.parametrize("app_ref", [None, "leaky:app"])
def test_a_module_that_cannot_be_imported_gives_no_secret_away(
    file_house: House,
    app_ref: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def late() -> None: ...

    (tmp_path / "leaky.py").write_text(LEAKY)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(Pool, "prepare", lambda _: None)  # the job is there before the first cell
    late.__module__, late.__qualname__ = "leaky", "late"
    task = file_house.app.task(isolate=True, retry=ONCE)(late)
    file_house.start(app_ref=app_ref)
    job = task.enqueue()
    [event, *_] = until(lambda: file_house.events(job.id, "failed", "released"), "it is said")
    said = event.detail.get("error") or event.detail["cause"]
    assert "postgresql://me:***@db/shop" in said
    assert len(said) <= ERROR_MAX
    for text in (said, caplog.text):
        assert "hunter2" not in text
        assert "\0" not in text


# --- Cells that cannot be started -------------------------------------------------------------------------


UNUSABLE = "isolated jobs cannot be run: there is no module 'no_such_module'"


def test_a_cell_that_cannot_be_started_does_not_keep_jobs_in_process(
    file_house: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("holdfast.worker.isolated.pool.FIRST_RESTART_S", 30.0)
    apart, near = file_house.app.task(name="apart", isolate=True)(bad.pid), file_house.app.task(name="near")(bad.pid)
    waiting = [apart.enqueue() for _ in range(4)]
    file_house.start(slots=2, app_ref="no_such_module:app")
    until(lambda: UNUSABLE in caplog.text, "it is said")
    assert [near.enqueue().result(60) for _ in range(5)] == [os.getpid()] * 5
    assert {file_house.row(job.id).failures for job in waiting} == {0}


def test_cells_that_cannot_be_started_do_not_fill_the_journal(
    file_house: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("holdfast.worker.isolated.pool.FIRST_RESTART_S", 0.02)
    monkeypatch.setattr(Pool, "prepare", lambda _: None)  # the job is there before the first cell
    job = file_house.app.task(name="apart", isolate=True)(bad.pid).enqueue()
    file_house.start(app_ref="no_such_module:app")
    until(lambda: caplog.text.count(UNUSABLE) >= 5, "it is tried again")
    assert file_house.kinds(job.id) == ["released"]


def test_a_suspect_that_gets_no_process_fails_the_second_time(
    file_house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its task is not isolated, so it is claimed each time: its budget must end that."""
    monkeypatch.setattr("holdfast.worker.isolated.pool.FIRST_RESTART_S", 0.02)
    job = file_house.app.task(name="pid")(bad.pid).enqueue()
    worker = enrol(file_house.store)  # type: ignore[arg-type]
    [row] = claim(file_house.store, worker, tasks=["pid"])  # type: ignore[arg-type]
    settle(file_house.store, row, Lost("exit", "its process died", suspects=2))  # type: ignore[arg-type]
    file_house.start(app_ref="no_such_module:app")
    [failed] = until(lambda: file_house.events(job.id, "failed"), "its attempt fails")
    assert failed.detail["error"].startswith("no process of its own could be started: there is no module")
    assert file_house.kinds(job.id) == ["zombie", "released", "failed"]


# --- A pool that does nothing -----------------------------------------------------------------------------


class Left(Exception):
    """Stands for the end of this process."""


def no_thread() -> None:
    raise RuntimeError("can't start new thread")


@pytest.mark.parametrize("start", [lambda: None, no_thread], ids=["", "no-thread-left"])
def test_a_worker_whose_pool_ends_no_process_ends_itself(
    house: House, monkeypatch: pytest.MonkeyPatch, start: Callable[[], None]
) -> None:
    def leave(code: int) -> None:
        raise Left(code)

    now = [1000.0]
    monkeypatch.setattr(house.app.clock, "lease", lambda: now[0])
    runner = Runner(house.app, WorkerOptions(), may_exit=True)
    attempt = Attempt(a_job(), SimpleNamespace(), 0.0)  # type: ignore[arg-type]
    killed: list[float] = []
    attempt.handler.enter_process(SimpleNamespace(interrupt=None, kill=lambda _: killed.append(now[0])))  # type: ignore[arg-type]
    monkeypatch.setattr("holdfast.worker.runner.os._exit", leave)
    monkeypatch.setattr("holdfast.worker.runner.threading.Timer", lambda *_: SimpleNamespace(start=start))
    for now[0] in (1000.0, 1000.9):
        runner._overran(attempt)
    now[0] = 1001.0
    with pytest.raises(Left, match=str(EXIT_FENCED)):
        runner._overran(attempt)
    assert killed == [1000.0, 1000.9, 1001.0]


# --- What is said of the dead -----------------------------------------------------------------------------


def test_the_stack_of_an_earlier_attempt_is_in_nobody_elses_autopsy(file_house: House) -> None:
    first = file_house.app.task(name="first", isolate=True)(bad.pid)
    second = file_house.app.task(name="second", isolate=True, crashes_max=1)(bad.leave_at_once)
    runner = file_house.start(slots=1)
    pid = first.enqueue().result(60)
    [cell] = [cell for cell in runner._slots.pool._processes if cell.pid == pid]
    os.write(cell._dump, b"Thread 0x1 in the_first_one")  # it was asked, and stopped by itself after all
    job = second.enqueue()
    file_house.until_state(job.id, "dead")
    [event] = file_house.events(job.id, "zombie")
    assert event.detail["pid"] == pid
    assert "stack" not in event.detail


def test_a_kill_for_want_of_memory_before_it_began_is_not_its_own(
    file_house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    kills = [0]
    monkeypatch.setattr("holdfast.worker.isolated.memory.kills_here", lambda: kills[0])
    fine = file_house.app.task(name="fine", isolate=True)(bad.pid)
    task = file_house.app.task(name="killed", isolate=True, crashes_max=1)(bad.kill_itself)
    file_house.start(slots=1)
    fine.enqueue().result(60)
    kills[0] = 1  # a process that the worker started otherwise
    job = task.enqueue()
    file_house.until_state(job.id, "dead")
    [event] = file_house.events(job.id, "zombie")
    assert event.detail["cause"] == "its process was killed by SIGKILL"


def test_a_stack_that_is_written_late_is_waited_for(file_house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine so busy that the signal takes its time."""
    monkeypatch.setattr("holdfast.worker.isolated.pool.moments", lambda *_: Moments(0.1, 0.1))
    ask = IsolatedProcess.ask_for_stack
    monkeypatch.setattr(IsolatedProcess, "ask_for_stack", lambda cell: threading.Timer(0.4, ask, [cell]).start())
    task = file_house.app.task(name="deaf", isolate=True, timeout_s=0.1, retry=ONCE)(bad.hold_the_lock_for_long)
    file_house.start()
    job = task.enqueue()
    file_house.until_state(job.id, "dead")
    [event] = file_house.events(job.id, "timed_out")
    assert "in hold_the_lock" in event.detail["stack"]


def test_a_stack_that_is_never_written_is_not_waited_for_long(
    file_house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.worker.isolated.pool.moments", lambda *_: Moments(0.1, 0.1))
    monkeypatch.setattr("holdfast.worker.isolated.pool.DUMP_S", 0.01)
    monkeypatch.setattr(IsolatedProcess, "ask_for_stack", lambda _: None)
    task = file_house.app.task(name="deaf", isolate=True, timeout_s=0.1, retry=ONCE)(bad.hold_the_lock_for_long)
    file_house.start()
    job = task.enqueue()
    assert file_house.until_state(job.id, "dead").error is not None


# --- A lease that is about to end -------------------------------------------------------------------------


@pytest.mark.parametrize(("left_s", "done"), [(2.0, ["ask"]), (0.5, ["kill"]), (-9.0, ["kill"])])
def test_a_handler_that_has_no_time_to_be_asked_is_ended_at_once(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, left_s: float, done: list[str]
) -> None:
    now = pool._clock.lease()
    attempt = Attempt(a_job(lease_s=30.0), SimpleNamespace(), now)  # type: ignore[arg-type]
    attempt.window = TrustWindow(now, now, now, now + left_s)
    attempt.handler.interrupt = LeaseLost("no beat got through")
    seen: list[str] = []
    cell: Any = SimpleNamespace(
        attempt=attempt, send=lambda _: seen.append("ask"), kill=lambda: seen.append("kill"), plan=deque(), forced=False
    )
    monkeypatch.setattr(pool, "_mind_output", lambda _: None)
    pool._processes = [cell]
    pool._stop(attempt.handler)
    pool._processes = []
    assert seen == done
    assert cell.forced == ("kill" in done)
