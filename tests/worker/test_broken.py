"""A worker that has lost a thread which it cannot do without, in a process that is not ours: it stops, and says so."""

import asyncio
import ctypes
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast import Context, Flow, Retry, WorkerBroken
from holdfast.runtime import vital_threads
from holdfast.runtime.hooks import Hooks
from holdfast.worker.options import WorkerOptions
from holdfast.worker.runner import Runner
from tests.worker import bad
from tests.worker.house import House, on_every_store, until
from tests.worker.meddler import once

LOOP_ENDS = (bad.exit_in_a_subtask, bad.exit_in_a_callback, bad.exit_slowly_in_a_callback, bad.stop_the_loop)


class Embedded:
    """A worker on a thread of this process."""

    def __init__(self, house: House) -> None:
        self.told: list[dict[str, Any]] = []
        house.app.on("error", lambda event: self.told.append(dict(event)))
        self.runner = Runner(house.app, WorkerOptions(name="e", slots=2))
        self.raised: list[BaseException] = []
        self.thread = threading.Thread(target=self._run, name="test-embedded", daemon=True)
        self.thread.start()
        until(lambda: self.runner.worker_id, "it enrols")

    def _run(self) -> None:
        try:
            self.runner.run()
        except BaseException as error:
            self.raised.append(error)

    def join(self) -> BaseException:
        self.thread.join(60)
        assert not self.thread.is_alive()
        [error] = self.raised
        return error


@pytest.fixture
def embedded(house: House) -> Iterator[Callable[[], Embedded]]:
    yield from _embedded(house)


@pytest.fixture
def embedded_in_file(file_house: House) -> Iterator[Callable[[], Embedded]]:
    yield from _embedded(file_house)


def _embedded(house: House) -> Iterator[Callable[[], Embedded]]:
    started: list[Embedded] = []

    def start() -> Embedded:
        started.append(Embedded(house))
        return started[-1]

    yield start
    for each in started:
        each.runner.stop_now()
        each.thread.join(60)


def thread_of(runner: Runner, name: str) -> threading.Thread:
    parts = {
        "heartbeat": runner._heartbeat,
        "settler": runner._settler,
        "time-limits": runner._time_limits,
        "reaper": runner._reaper_thread,
    }
    part: Any = parts[name]
    thread: threading.Thread = part._thread
    return thread


def end(thread: threading.Thread) -> None:
    """Raise in it what no worker catches, at its next bytecode."""
    assert thread.ident is not None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit))


@on_every_store
@pytest.mark.parametrize("name", ["heartbeat", "settler", "time-limits", "reaper"])
def test_an_embedded_worker_whose_thread_dies_gives_back_its_jobs_and_raises(
    house: House, embedded: Callable[[], Embedded], name: str
) -> None:
    @house.app.task(name="t")
    def task(ctx: Context) -> None:
        ctx.progress(note="here")
        while ctx.attempt == 1:
            threading.Event().wait(0.01)

    @house.app.task(name="quick")
    def quick() -> None: ...

    worker = embedded()
    job = task.enqueue()
    until(lambda: house.row(job.id).note, "it has begun")
    end(thread_of(worker.runner, name))
    quick.enqueue()  # wakes the settler, which sleeps until there is an ending
    error = worker.join()
    assert isinstance(error, WorkerBroken)
    assert str(error) == f"the thread holdfast-{name} of worker e has died (SystemExit)"
    until(lambda: worker.told, "hooks are told")
    assert (worker.told[0]["error"], worker.told[0]["worker"]) == (str(error), "e")
    row = house.row(job.id)
    assert (row.state, row.failures, row.crashes) == ("ready", 0, 0)
    assert house.store.workers() == []
    house.start()
    house.until_state(job.id, "done")


@on_every_store
def test_a_result_that_was_being_saved_when_its_thread_died_is_saved(
    house: House, embedded: Callable[[], Embedded]
) -> None:
    @house.app.task(name="quick")
    def quick() -> None: ...

    worker = embedded()
    with house.store.before("settle", once(SystemExit())):
        job = quick.enqueue()
        error = worker.join()
    assert str(error) == "the thread holdfast-settler of worker e has died (SystemExit)"
    assert house.kinds(job.id) == ["succeeded"]


@on_every_store
@pytest.mark.parametrize("fn", LOOP_ENDS, ids=lambda fn: fn.__name__)
def test_an_embedded_worker_whose_event_loop_ends_settles_what_ran_there(
    house: House, embedded: Callable[[], Embedded], fn: Callable[[], Any]
) -> None:
    @house.app.task(name="ends", crashes_max=1)
    async def ends() -> None:
        await asyncio.sleep(0.2)
        await fn()

    @house.app.task(name="neighbour")
    async def neighbour(ctx: Context) -> None:
        ctx.progress(note="here")
        if ctx.attempt == 1:
            await asyncio.sleep(60)

    worker = embedded()
    innocent = neighbour.enqueue()
    until(lambda: house.row(innocent.id).note, "it has begun")
    guilty = ends.enqueue()
    error = worker.join()
    assert isinstance(error, WorkerBroken)
    assert "the thread holdfast-loop of worker e has died" in str(error)
    assert house.row(guilty.id).state == "dead"
    assert (house.row(guilty.id).error or "").startswith(str(error))
    row = house.row(innocent.id)
    assert (row.state, row.crashes, row.suspects) == ("ready", 1, 2)
    assert house.store.workers() == []
    house.start()
    assert house.until_state(innocent.id, "done").crashes == 0


@pytest.mark.parametrize("name", ["recorder", "pool"])
def test_an_embedded_worker_without_its_recorder_or_its_pool_stops_too(
    file_house: House, embedded_in_file: Callable[[], Embedded], name: str
) -> None:
    @file_house.app.workflow(name="w")
    def work(flow: Flow) -> int:
        return flow.step(bad.pid)

    isolated = file_house.app.task(name="pid", isolate=True)(bad.pid)
    worker = embedded_in_file()
    start, part = {
        "recorder": (work.enqueue, worker.runner._flows._recorder),
        "pool": (isolated.enqueue, worker.runner._slots.pool),
    }[name]
    start().result(60)
    thread = part._thread
    assert thread is not None
    end(thread)
    start()  # wakes it
    error = worker.join()
    assert str(error) == f"the thread holdfast-{name} of worker e has died (SystemExit)"
    assert file_house.store.workers() == []


def test_tick_raises_when_its_event_loop_ends(house: House) -> None:
    @house.app.task(name="ends", retry=Retry(attempts_max=1))
    async def ends() -> None:
        await bad.exit_in_a_subtask()

    job = ends.enqueue()
    with pytest.raises(WorkerBroken, match=r"the thread holdfast-loop of worker .* has died \(SystemExit: 5\)"):
        house.app.tick(20)
    assert house.row(job.id).state == "dead"
    assert house.store.workers() == []


def test_a_worker_is_refused_where_threads_are_not_real(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vital_threads._thread, "start_new_thread", lambda *_: 0)
    with pytest.raises(Exception, match="gevent or eventlet has replaced Python's threads"):
        Runner(house.app, WorkerOptions())


def test_ctrl_c_in_an_embedded_worker_gives_its_jobs_back(house: House) -> None:
    @house.app.task(name="t")
    def task(ctx: Context) -> None:
        while ctx.attempt == 1:
            threading.Event().wait(0.01)

    job = task.enqueue()
    runner = Runner(house.app, WorkerOptions(name="e"))

    def interrupt(*_: Any) -> None:
        if house.row(job.id).state == "running":
            raise KeyboardInterrupt

    with house.store.before("due", interrupt), pytest.raises(KeyboardInterrupt):
        runner.run()
    assert (house.row(job.id).state, house.row(job.id).crashes) == ("ready", 0)
    assert house.store.workers() == []


@pytest.mark.parametrize("verb", ["standing", "vanished", "deadline"])
def test_ctrl_c_before_the_first_claim_leaves_no_thread_and_no_worker(house: House, verb: str) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = set(threading.enumerate())
    runner = Runner(house.app, WorkerOptions(name="e"))
    with house.store.before(verb, interrupt), pytest.raises(KeyboardInterrupt):
        runner.run()
    assert runner.worker_id
    assert house.store.workers() == []
    until(lambda: set(threading.enumerate()) <= before, "its threads end")


def test_ctrl_c_just_after_a_worker_has_enrolled_signs_it_off(house: House) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    runner = Runner(house.app, WorkerOptions(name="e"))
    with house.store.after("enroll", interrupt), pytest.raises(KeyboardInterrupt):
        runner.run()
    assert runner.worker_id
    assert house.store.workers() == []


def test_an_embedded_worker_whose_thread_dies_gives_back_what_it_has_not_started(
    house: House, embedded: Callable[[], Embedded], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.worker.claimer.BUFFERED_MAX_S", 600.0)

    @house.app.task(name="long")
    def long(ctx: Context) -> None:
        while ctx.attempt == 1:
            threading.Event().wait(0.01)

    @house.app.task(name="quick")
    def quick() -> None: ...

    worker = embedded()
    for job in house.app.enqueue_many([quick.job() for _ in range(200)]):
        house.until_state(job.id, "done")  # from now on the worker claims ahead
    both = [long.using(priority=1).enqueue() for _ in range(2)]
    others = house.app.enqueue_many([quick.job() for _ in range(200)])
    until(lambda: all(house.row(job.id).state == "running" for job in both), "the slots are taken")
    until(lambda: worker.runner._slots._buffer, "jobs are claimed ahead")
    end(thread_of(worker.runner, "heartbeat"))
    assert isinstance(worker.join(), WorkerBroken)
    given_back = [event for job in others for event in house.events(job.id, "released")]
    assert given_back
    assert not any(event.detail["started"] for event in given_back)
    assert all(house.row(event.job_id).state == "ready" for event in given_back)
    house.start()
    for job in (*both, *others):
        house.until_state(job.id, "done")


ENDS = """
import sys, threading, time
from holdfast.runtime.vital_threads import end_process

def no_thread(_): raise RuntimeError("can't start new thread")
def fails(): raise ValueError
def hangs(): time.sleep(60)

if "no_thread" in sys.argv:
    threading.Timer.start = no_thread
end_process(78, {"fails": fails, "hangs": hangs}[sys.argv[1]])
"""


@pytest.mark.parametrize("how", [("fails",), ("hangs",), ("fails", "no_thread"), ("hangs", "no_thread")], ids="-".join)
def test_a_process_that_must_end_ends_whatever_its_report_does(how: tuple[str, ...]) -> None:
    assert subprocess.run([sys.executable, "-c", ENDS, *how], timeout=50, check=False).returncode == 78


def test_an_event_for_hooks_waits_for_a_thread_if_none_can_be_had(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_thread(_: object) -> None:
        raise RuntimeError("can't start new thread")

    hooks, heard = Hooks(), []
    hooks.on("error", lambda event: heard.append(event["n"]))
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", no_thread)
        hooks.emit("error", {"n": 1})
    assert "hooks are not called for now (can't start new thread)" in caplog.text
    hooks.emit("error", {"n": 2})
    assert hooks.flush(30)
    assert heard == [1, 2]
