"""What works in a cell as it does in-process, and what becomes of the cells."""

import logging
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast import App, JobDead, Retry
from holdfast.errors import UsageError
from holdfast.worker.isolated import pool
from holdfast.worker.options import WorkerOptions
from holdfast.worker.runner import Runner
from tests.worker import bad
from tests.worker.house import House, until

ONCE = Retry(attempts_max=1)
WAYS = pytest.mark.parametrize("way", ["sync", "async"])


def handler(name: str, way: str) -> Any:
    return bad.ASYNC[name] if way == "async" else getattr(bad, name)


def alive(pid: int) -> bool:
    """Whether the process is there and not merely waiting to be buried."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# --- The context ------------------------------------------------------------------------------------------


@WAYS
def test_the_context_says_what_it_says_in_process(house: House, way: str, caplog: pytest.LogCaptureFixture) -> None:
    task = house.app.task(name="tell", isolate=True, timeout_s=60)(handler("tell", way))
    house.start()
    job = task.enqueue()
    said = job.result(60)
    assert said.pop("pid") != os.getpid()
    assert said == {"id": job.id, "attempt": 1, "fence": 1, "cancelled": False, "time_left": True}
    [record] = [record for record in caplog.records if record.name == "holdfast.job"]
    assert (record.getMessage(), record.levelno) == ("from inside", logging.WARNING)
    assert (record.job_id, record.task) == (job.id, "tell")  # type: ignore[attr-defined]
    assert house.kinds(job.id) == ["succeeded"]


def test_progress_reaches_the_store_while_the_handler_runs(shared_house: House) -> None:
    task = shared_house.app.task(name="waits", isolate=True)(bad.wait_to_be_stopped)
    shared_house.start()
    job = task.enqueue()
    until(lambda: shared_house.row(job.id).note, "its note is on the row")
    shared_house.app.cancel(job.id)
    assert shared_house.until_state(job.id, "cancelled").note not in (None, str(os.getpid()))


def test_what_a_handler_left_behind_does_not_speak_for_the_next_job(file_house: House, tmp_path: Path) -> None:
    first = file_house.app.task(name="leaves", isolate=True)(bad.leave_a_thread)
    second = file_house.app.task(name="hears", isolate=True, timeout_s=60)(bad.hear_a_thread)
    file_house.start(slots=1)
    left = first.enqueue(str(tmp_path))
    left.result(60)
    job = second.enqueue(str(tmp_path))
    assert job.result(60) == f"this attempt of job {left.id} has ended"
    assert (file_house.row(job.id).note, file_house.row(job.id).progress) == (None, None)


@WAYS
def test_snooze_works(file_house: House, way: str) -> None:
    task = file_house.app.task(name="snoozes", isolate=True)(handler("snooze_once", way))
    file_house.start()
    assert task.enqueue().result(60) == 2


def test_a_stall_ends_it_with_its_stack(shared_house: House) -> None:
    task = shared_house.app.task(name="stalls", isolate=True, stall_s=2, retry=ONCE)(bad.stall)
    shared_house.start()
    job = task.enqueue()
    shared_house.until_state(job.id, "dead")
    [event] = shared_house.events(job.id, "stalled")
    assert event.detail["error"] == "no progress for stall_s=2"
    assert "in stall" in event.detail["stack"]
    assert "process" not in event.detail  # it stopped when it was asked


# --- Transactions -----------------------------------------------------------------------------------------


@pytest.fixture
def effects(shared_house: House, tmp_path: Path) -> Iterator[Any]:
    """A table of the user's own in the same database, as somebody else sees it."""
    where = shared_house.app.url
    if where.startswith("sqlite"):
        connection: Any = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None, timeout=60)
    else:
        connection = psycopg.connect(where, autocommit=True)
    connection.execute("CREATE TABLE effect (job TEXT, fence INTEGER)")
    yield connection
    connection.execute("DROP TABLE effect")
    connection.close()


@WAYS
@pytest.mark.parametrize("ending", ["return", "raise", "crash"])
def test_a_transaction_commits_with_the_ending_or_not_at_all(
    shared_house: House, effects: Any, way: str, ending: str
) -> None:
    house = shared_house
    task = house.app.task(name="pay", isolate=True, retry=ONCE, crashes_max=1)(handler("pay", way))
    runner = house.start()
    job = task.enqueue(ending)
    house.until_state(job.id, "done" if ending == "return" else "dead")
    seen = effects.execute("SELECT job, fence FROM effect").fetchall()
    assert seen == ([(job.id, 1)] if ending == "return" else [])
    kinds = {"return": ["succeeded"], "raise": ["failed", "dead"], "crash": ["zombie", "dead"]}
    assert house.kinds(job.id) == kinds[ending]
    until(lambda: runner.settled == 1, "the worker knows")
    assert runner._heartbeat.all() == []


# --- Stopping ---------------------------------------------------------------------------------------------


def test_a_cancelled_handler_that_listens_stops_at_once(shared_house: House) -> None:
    house = shared_house
    task = house.app.task(name="listens", isolate=True)(bad.wait_to_be_stopped)
    runner = house.start()
    job = task.enqueue()
    cell = until(lambda: [each.activity.note for each in runner._heartbeat.all() if each.activity.note], "it runs")[0]
    house.app.cancel(job.id)
    assert house.until_state(job.id, "cancelled").error == "cancelled while running"
    assert alive(int(cell)), "its process may be used again"


def test_a_handler_that_ignores_its_cancellation_is_ended(shared_house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "moments", lambda why, lease_s: pool.Moments(0.1, 0.1))
    house = shared_house
    task = house.app.task(name="ignores", isolate=True)(bad.ignore_everything)
    near = house.app.task(name="near")(bad.pid)
    house.start()
    job = task.enqueue()
    until(lambda: house.row(job.id).state == "running")
    house.app.cancel(job.id)
    assert house.until_state(job.id, "cancelled").error == "cancelled while running"
    assert house.kinds(job.id)[-1] == "cancelled"
    assert near.enqueue().result(60) == os.getpid()


def test_a_worker_that_stops_gives_back_what_will_not_stop(shared_house: House) -> None:
    house = shared_house
    task = house.app.task(name="ignores", isolate=True)(bad.ignore_everything)
    runner = house.start(grace_period_s=0.0)
    job = task.enqueue()
    until(lambda: any(attempt.activity.started_at for attempt in runner._heartbeat.all()), "it runs")
    assert house.stop(runner) == 0
    assert house.row(job.id).state == "ready"
    assert house.kinds(job.id) == ["released"]


def test_a_worker_out_of_touch_ends_the_process_before_its_lease_ends(file_house: House) -> None:
    """Self-fencing: nobody else may run it while our handler does; the worker itself goes on.

    It takes a lease, which is long so that a busy machine has a moment between the asking and the end.
    """
    task = file_house.app.task(name="ignores", isolate=True, lease_s=6.0)(bad.ignore_everything)
    near = file_house.app.task(name="near")(bad.pid)
    runner = file_house.start()
    job = task.enqueue()
    [attempt] = until(lambda: [each for each in runner._heartbeat.all() if each.activity.started_at], "it runs")
    cell, _ = until(lambda: runner._slots.pool._running(attempt.handler))
    with file_house.store.down():
        until(lambda: not alive(cell.pid), "its process ends")
        assert file_house.app.clock.lease() < attempt.window.end_at
    until(lambda: "released" in file_house.kinds(job.id) or "zombie" in file_house.kinds(job.id))
    assert near.enqueue().result(60) == os.getpid()


# --- Processes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ending", "own_session"),
    [("return", False), ("crash", False), ("hang", False), ("return", True), ("hang", True)],
)
def test_nothing_that_it_started_outlives_the_attempt(
    file_house: House, tmp_path: Path, ending: str, own_session: bool
) -> None:
    task = file_house.app.task(
        name="starts", isolate=True, timeout_s=3 if ending == "hang" else None, retry=ONCE, crashes_max=1
    )(bad.start_a_grandchild)
    file_house.start()
    job = task.enqueue(str(tmp_path / "pid"), ending, own_session)
    file_house.until_state(job.id, "done" if ending == "return" else "dead")
    grandchild = int((tmp_path / "pid").read_text())
    until(lambda: not alive(grandchild), "the grandchild ends")


def test_a_forked_child_that_comes_back_is_nobodys_attempt(file_house: House, tmp_path: Path) -> None:
    task = file_house.app.task(name="forks", isolate=True)(bad.fork_and_return)
    file_house.start()
    assert [task.enqueue(str(tmp_path / "pid")).result(60) for _ in range(2)] == ["parent", "parent"]


def test_a_cell_is_used_again_and_recycled_after_so_many_jobs(file_house: House) -> None:
    task = file_house.app.task(name="pid", isolate=True)(bad.pid)
    file_house.start(slots=1, recycle_jobs=3)
    pids = [task.enqueue().result(60) for _ in range(9)]
    assert sorted(pids.count(pid) for pid in set(pids)) == [3, 3, 3]
    until(lambda: sum(map(alive, set(pids))) <= 1, "the old ones have ended")


def test_a_cell_that_keeps_too_much_memory_is_recycled(file_house: House) -> None:
    task = file_house.app.task(name="keeps", isolate=True)(bad.keep_memory)
    file_house.start(slots=1, recycle_mb=150)
    first, second, third = (task.enqueue(mb).result(60) for mb in (1, 200, 1))
    assert first == second != third


def test_idle_cells_end_but_for_a_spare(file_house: House, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pool, "IDLE_S", 0.2)
    task = file_house.app.task(name="neighbour", isolate=True)(bad.neighbour)
    runner = file_house.start(slots=3)
    jobs = [task.enqueue(str(tmp_path / "over")) for _ in range(3)]
    until(lambda: all(file_house.row(job.id).note for job in jobs))
    (tmp_path / "over").touch()
    pids = {job.result(60) for job in jobs}
    assert len(pids) == 3
    until(lambda: len(runner._slots.pool._processes) == 1, "all but one end")


def test_an_idle_cell_that_is_killed_is_no_loss(file_house: House) -> None:
    task = file_house.app.task(name="pid", isolate=True)(bad.pid)
    runner = file_house.start(slots=1)
    first = task.enqueue().result(60)
    os.kill(first, signal.SIGKILL)
    until(lambda: all(cell.pid != first for cell in runner._slots.pool._processes), "it is buried")
    assert task.enqueue().result(60) != first


def test_when_the_worker_stops_its_cells_have_ended(file_house: House) -> None:
    task = file_house.app.task(name="pid", isolate=True)(bad.pid)
    runner = file_house.start()
    pid = task.enqueue().result(60)
    cells = [cell.pid for cell in runner._slots.pool._processes]
    assert pid in cells
    assert file_house.stop(runner) == 0
    assert not any(map(alive, cells))


def test_cells_that_cannot_start_give_back_and_try_again(
    file_house: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("holdfast.worker.isolated.process.PROGRAM", "holdfast.no_such_program")
    monkeypatch.setattr(pool, "FIRST_RESTART_S", 0.05)
    task = file_house.app.task(name="pid", isolate=True)(bad.pid)
    monkeypatch.setattr(pool.Pool, "prepare", lambda _: None)  # the job is there before the first cell
    file_house.start()
    job = task.enqueue()
    until(lambda: "released" in file_house.kinds(job.id), "it is given back")
    assert "isolated jobs cannot be run: a process ended before it was ready" in caplog.text
    monkeypatch.undo()
    assert job.result(60) != os.getpid()
    row = file_house.row(job.id)
    assert (row.failures, row.crashes) == (0, 0)


# --- Who is isolated --------------------------------------------------------------------------------------


def test_a_worker_may_isolate_every_task(file_house: House) -> None:
    plain, awaited = file_house.app.task(name="pid")(bad.pid), file_house.app.task(name="apid")(bad.ASYNC["pid"])
    file_house.start(isolate=True)
    assert os.getpid() not in {plain.enqueue().result(60), awaited.enqueue().result(60)}


def test_without_isolation_no_process_is_started(file_house: House) -> None:
    task = file_house.app.task(name="pid")(bad.pid)
    runner = file_house.start()
    assert task.enqueue().result(60) == os.getpid()
    assert runner._slots.pool._thread is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"memory_max_mb": 512}, "add isolate=True"),
        ({"isolate": True, "memory_max_mb": 8}, "at least 64"),
        ({"isolate": True, "memory_max_mb": "512"}, "whole number"),
        ({"isolate": "yes"}, "True or False"),
    ],
)
def test_what_a_declaration_refuses(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        App("memory://").task(**options)(bad.pid)


# --- Finding the task -------------------------------------------------------------------------------------


def test_a_task_inside_a_function_is_refused_at_the_start(file_house: House) -> None:
    @file_house.app.task(isolate=True)
    def hidden() -> None: ...

    with pytest.raises(UsageError, match=r"hidden is to be isolated.*declare it at the top of a module"):
        Runner(file_house.app, WorkerOptions())


def test_a_task_that_the_cell_does_not_have_fails_with_advice(
    file_house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late() -> None: ...

    late.__qualname__ = "late"
    monkeypatch.setattr(bad, "late", late, raising=False)
    late.__module__ = bad.__name__
    task = file_house.app.task(isolate=True, retry=ONCE)(late)
    file_house.start()
    row = file_house.until_state(task.enqueue().id, "dead")
    assert row.error is not None
    assert "cannot be found in a process of its own: module 'tests.worker.bad' has no late" in row.error


def test_an_isolated_task_cannot_reach_a_store_in_the_workers_memory() -> None:
    house = House(App("memory://"))
    task = house.app.task(name="pay", isolate=True, retry=ONCE)(bad.pay)
    house.start()
    job = task.enqueue("return")
    row = house.until_state(job.id, "dead")
    house.close()
    assert row.error is not None
    assert row.error.startswith("StoreUnsupported: memory:// lives in the memory of the worker")


PROGRAM = """
    import os
    from holdfast import App, Context

    app = App("sqlite:///jobs.db")

    @app.task(isolate=True)
    def double(ctx: Context, number: int) -> int:
        if number < 4:
            return double.enqueue(2 * number).id and os.getpid()
        return os.getpid()

    if __name__ == "__main__":
        job = double.enqueue(2)
        assert app.tick(20).finished
        assert job.result(0) != os.getpid()
        assert app.counts()["done"] == 2
        print(job.refresh().row.task)
"""


@pytest.mark.parametrize("how", [["program.py"], ["-m", "program"]], ids=["script", "module"])
def test_a_task_of_the_main_program_is_found_by_loading_it_again(tmp_path: Path, how: list[str]) -> None:
    (tmp_path / "program.py").write_text(textwrap.dedent(PROGRAM))
    run = subprocess.run([sys.executable, *how], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr


UNGUARDED = """
    import sys

    from holdfast import App

    app = App("sqlite:///jobs.db")

    @app.task(isolate=True)
    def lonely() -> None: ...

    lonely.using(id="only").enqueue()
    print("finished:", app.tick(float(sys.argv[1])).finished)
"""


def test_a_program_that_starts_a_worker_wherever_it_is_loaded_does_not_multiply(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(textwrap.dedent(UNGUARDED))
    for budget_s in ("2", "40"):  # the second for a machine on which no process starts within two seconds
        command = [sys.executable, "program.py", budget_s]
        run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert run.stdout == "finished: False\n"
        if 'put that under if __name__ == "__main__"' in run.stderr:
            return
    raise AssertionError(run.stderr)


def test_a_context_that_nobody_asked_for_opens_no_store(file_house: House, tmp_path: Path) -> None:
    """A cell has a handle of its own only when the handler wants a transaction or enqueues."""
    task = file_house.app.task(name="tell", isolate=True)(bad.tell)
    runner = file_house.start()
    task.enqueue().result(60)
    [files] = [
        [os.readlink(f"/proc/{cell.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{cell.pid}/fd")]
        for cell in runner._slots.pool._processes
        if cell.jobs
    ]
    assert not [file for file in files if file.startswith(str(tmp_path))]


@pytest.mark.parametrize("isolate", [False, True])
def test_an_error_is_known_by_its_type_and_the_function_that_raised_it(file_house: House, *, isolate: bool) -> None:
    fail = file_house.app.task(name="fails", isolate=isolate, retry=Retry(attempts_max=1))(bad.fails_below)
    file_house.start(slots=1)
    with pytest.raises(JobDead):
        fail.enqueue(7).result(60)
    [group] = file_house.store.errors(0.0)
    assert (group.kind, group.origin) == ("ValueError", "tests.worker.bad.below")
    assert group.message == "ValueError: no luck with #"
