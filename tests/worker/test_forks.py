"""A process that a handler forks: it may enqueue, and is no worker."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from holdfast import App, Context, Flow
from holdfast.errors import LeaseLost, StoreUnsupported
from holdfast.forks import ForkGuard, end_if_forked
from holdfast.worker.executors import Loop
from tests.servers import CLOCK
from tests.worker.house import House, until

RAISED, PASSED, OTHERWISE = 0, 3, 4

pytestmark = pytest.mark.filterwarnings(
    "ignore:This process .* is multi-threaded:DeprecationWarning"
)  # that is the point


def in_a_fork(act: Callable[[], object]) -> int:
    """Do it in a forked child; return how that went."""
    child = os.fork()
    if child == 0:
        code = OTHERWISE
        try:
            act()
            code = PASSED
        except LeaseLost:
            code = RAISED
        finally:
            os._exit(code)
    ended: list[tuple[int, int]] = []
    try:
        until(lambda: (found := os.waitpid(child, os.WNOHANG)) != (0, 0) and ended.append(found) is None, "it ends")
    finally:
        if not ended:
            os.kill(child, signal.SIGKILL)
            ended.append(os.waitpid(child, 0))
    return os.waitstatus_to_exitcode(ended[0][1])


def test_the_door_is_open_only_to_the_process_that_made_it(file_house: House) -> None:
    door = ForkGuard(lambda: file_house.app.store)
    assert door.workers() == []
    assert in_a_fork(lambda: door.workers) == RAISED
    assert in_a_fork(lambda: ForkGuard(lambda: file_house.app.store).workers) == PASSED


def test_a_forked_process_is_told_that_it_cannot_enqueue_into_memory() -> None:
    app = App("memory://")
    task = app.task(name="t")(lambda: None)
    task.enqueue()

    def enqueue() -> None:
        with pytest.raises(StoreUnsupported, match="belongs to the process that made it"):
            task.enqueue()
        with pytest.raises(StoreUnsupported):
            app.counts()
        app.close()

    for held in (False, True):  # a thread of the parent may be at work in the store
        with app.store.lock if held else contextlib.nullcontext():  # type: ignore[attr-defined]
            assert in_a_fork(enqueue) == PASSED
    assert app.counts()["ready"] == 1
    app.close()


def test_a_forked_process_may_enqueue_and_opens_no_transaction(shared_house: House) -> None:
    @shared_house.app.task(name="later", queue="other")
    def later() -> None: ...

    @shared_house.app.task(name="t", queue="here")
    def task(ctx: Context) -> list[int]:
        def transact() -> None:
            with ctx.transaction():
                pass

        return [in_a_fork(transact), in_a_fork(later.enqueue)]

    shared_house.start(queues=("here",))
    assert task.enqueue().result(60) == [RAISED, PASSED]
    assert len(shared_house.app.find(task="later")) == 1


def test_a_step_is_not_even_begun_in_a_forked_process(shared_house: House) -> None:
    ran = os.pipe()

    @shared_house.app.workflow(name="w")
    def work(flow: Flow) -> int:
        def step() -> None:
            os.write(ran[1], b"x")

        return in_a_fork(lambda: flow.step(step))

    shared_house.start()
    try:
        assert work.enqueue().result(60) == RAISED
        os.set_blocking(ran[0], False)
        with pytest.raises(BlockingIOError):
            os.read(ran[0], 1)
    finally:
        os.close(ran[0])
        os.close(ran[1])


def test_a_loop_that_has_ended_does_not_hide_the_one_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program may start a worker after another one: the thread of the new loop can have the number of the old one."""
    loop, later = (Loop(CLOCK, *(None,) * 3, died=lambda *_: None) for _ in range(2))  # type: ignore[arg-type]
    try:
        loop.close()
        number = loop._thread.ident
        later._thread._ident = number  # type: ignore[attr-defined]
        monkeypatch.setattr(threading, "get_ident", lambda: number)
        heard: list[object] = []
        monkeypatch.setattr(later._loop, "call_soon", lambda *what: heard.append(what))
        for each in (loop, later):  # the first one raised, and the loops after it did not hear of the fork
            each.after_fork_in_child()
        assert heard == [(end_if_forked, os.getpid())]
    finally:
        monkeypatch.undo()
        later.close()


FORKS = """
import os, signal, sys, threading, time
from holdfast import App
from holdfast.errors import UsageError

class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            entered.set()
            time.sleep(0.5)  # in the middle of the import

entered = threading.Event()
sys.meta_path.insert(0, Slow())
app = App("memory://")
def refused():
    try:
        app.tick(-1)  # it imports all that it needs, and does nothing
    except UsageError:
        pass

ticks = threading.Thread(target=refused)
ticks.start()
entered.wait()
child = os.fork()
if child == 0:
    signal.alarm(60)
    App("memory://").tick()
    os._exit(0)
print(os.waitpid(child, 0)[1])
ticks.join()
app.close()
"""


@pytest.mark.parametrize("module", ["holdfast.worker.tick", "holdfast.worker.runner", "holdfast.stores.memory"])
def test_a_process_that_is_forked_during_the_first_tick_of_another_thread_can_tick(module: str) -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORKS, module]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert (done.stdout, done.returncode) == ("0\n", 0), done.stderr
