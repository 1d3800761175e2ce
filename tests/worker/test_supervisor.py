"""The parent: what it does for a child that ended, and that nothing ends the parent itself (DESIGN 4.1, 15.2)."""

import errno
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast import App
from holdfast.core.child_exit import EXIT_FENCED, EXIT_STUCK, YOUNG_S
from holdfast.core.machine import State
from holdfast.core.records import Job
from holdfast.errors import FileLocked, StoreLocked, StoreUnavailable
from holdfast.testing import FakeClock
from holdfast.upkeep.reaper import Reaper
from holdfast.worker import supervisor as module
from holdfast.worker.launch import Launch
from holdfast.worker.options import WorkerOptions
from holdfast.worker.supervisor import (
    SILENT_LEAST_S,
    Silence,
    Supervisor,
)
from tests.factory import enrol, row, start
from tests.worker.house import until
from tests.worker.meddler import DURABLE_PING, Meddler, once

PID = 4711


class Parent:
    """A supervisor over a store that a test may take away, and one child that it never started."""

    def __init__(self, app: App) -> None:
        self.store = Meddler(app.store)
        app._store = self.store  # type: ignore[assignment]
        self.supervisor = Supervisor("none:app", app, WorkerOptions(name="w"), Launch.now())
        self.child = enrol(app.store, pid=PID, supervisor=self.supervisor._id, boot_id=app.clock.boot_id)

    def runs(self) -> Job:
        return start(self.store, self.child, lease_s=600.0)  # type: ignore[arg-type]

    def watch(self) -> threading.Thread:
        thread = threading.Thread(target=self.supervisor._monitor, args=(1,), daemon=True)
        thread.start()
        return thread


@pytest.fixture
def parent(tmp_path: Path) -> Iterator[Parent]:
    with App(f"sqlite:///{tmp_path}/jobs.db?synchronous=normal") as app:
        parent = Parent(app)
        yield parent
        parent.supervisor._stopping.set()
        parent.store.real.retire(parent.child, "the test is over")


def lost() -> Any:
    return once(StoreUnavailable("the test took it away"))


@pytest.mark.parametrize(
    ("code", "crashes", "kind", "facts"),
    [
        (EXIT_FENCED, 0, "zombie", {"exit_code": EXIT_FENCED}),
        (EXIT_STUCK, 0, "released", {}),
        (3, 1, "zombie", {"exit_code": 3}),
        (-9, 1, "zombie", {"signal": "SIGKILL"}),
    ],
)
def test_a_store_that_fails_between_the_mark_and_the_settling(
    parent: Parent, code: int, crashes: int, kind: str, facts: dict[str, Any]
) -> None:
    job = parent.runs()
    with parent.store.before("settle", lost()):
        assert parent.supervisor._settle_child(1, PID, code) is True
    assert parent.store.calls["settle"] == 2
    after = row(parent.store.real, job.id)
    assert (after.state, after.crashes) == (State.READY, crashes)
    [event] = parent.store.journal(job.id)
    assert event.kind == kind
    assert {name: event.detail[name] for name in ("exit_code", "signal") if name in event.detail} == facts


@pytest.mark.parametrize(("code", "kind"), [(-9, "zombie"), (EXIT_STUCK, "released")])
def test_a_child_whose_row_is_locked_does_not_delay_the_next_one(parent: Parent, code: int, kind: str) -> None:
    job, store = parent.runs(), parent.store.real
    second = enrol(store, pid=PID, supervisor=parent.supervisor._id, boot_id=parent.supervisor._clock.boot_id)
    other = start(store, second, lease_s=600.0)

    def lock(worker_id: str, *_: Any) -> None:
        if worker_id == parent.child:
            raise StoreLocked("another transaction holds a lock")

    settling = threading.Thread(target=parent.supervisor._settle_child, args=(1, PID, code), daemon=True)
    with parent.store.before("retire", lock):
        settling.start()
        settling.join(30)
        assert not settling.is_alive()
        assert row(store, other.id).state is State.READY, "an earlier incarnation is settled at once"
        until(lambda: parent.store.calls["retire"] > 3, "it is tried again")
        assert row(store, job.id).state is State.RUNNING
    until(lambda: row(store, job.id).state is State.READY, "it is settled when the lock is gone")
    assert [event.kind for event in store.journal(job.id)] == [kind]


def test_codes_of_our_own_have_words(parent: Parent, caplog: pytest.LogCaptureFixture) -> None:
    job = parent.runs()
    parent.supervisor._settle_child(1, PID, EXIT_FENCED)
    [event] = parent.store.journal(job.id)
    words = "exited with code 76: no beat had reached the store in time"
    assert event.detail["cause"].endswith(f"its process {words}")
    assert f"{words}; 1 of its jobs was settled" in caplog.text


@pytest.mark.parametrize(("code", "kind"), [(EXIT_FENCED, "zombie"), (EXIT_STUCK, "released")])
def test_a_peer_that_comes_in_between_settles_in_the_same_manner(parent: Parent, code: int, kind: str) -> None:
    job = parent.runs()
    store = parent.store.real
    with parent.store.before("settle", lambda *_: Reaper(store, parent.supervisor._clock).once()):
        parent.supervisor._settle_child(1, PID, code)
    after = row(store, job.id)
    assert (after.state, after.crashes) == (State.READY, 0)
    assert [event.kind for event in store.journal(job.id)] == [kind]


def test_the_workers_of_others_and_those_that_left_are_let_be(parent: Parent) -> None:
    store = parent.store.real
    other = start(store, enrol(store, pid=PID, supervisor="another", boot_id=parent.supervisor._clock.boot_id))
    store.retire(parent.child, "left")
    assert parent.supervisor._settle_child(1, PID, -9) is True
    assert row(store, other.id) == other
    assert parent.supervisor._settle_child(1, PID + 1, -9) is False


def test_a_stop_ends_the_trying(parent: Parent, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGTERM comes while the store is away: it is tried a little longer, and the parent leaves."""
    monkeypatch.setattr(module, "STOP_MARGIN_S", 0.3)
    parent.runs()
    settling = threading.Thread(target=parent.supervisor._settle_child, args=(1, PID, -9), daemon=True)
    with parent.store.down():
        settling.start()
        until(lambda: parent.store.calls["workers"] >= 3, "it keeps trying")
        assert settling.is_alive()
        parent.supervisor._stopping.set()
        settling.join(60)
        assert not settling.is_alive()


def child_program(code: int = 0) -> list[str]:
    return [sys.executable, "-c", f"import os; os._exit({code})"]


def test_a_child_that_cannot_be_started_is_tried_again(
    parent: Parent, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real, tries = subprocess.Popen, []

    def popen(*_: Any, **options: Any) -> Any:
        tries.append(len(os.listdir("/dev/fd")))
        if len(tries) < 3:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        return real(child_program(), stdin=subprocess.DEVNULL)

    monkeypatch.setattr(module.subprocess, "Popen", popen)
    watch = parent.watch()
    until(lambda: len(tries) >= 3, "it is tried a third time")
    parent.supervisor._stopping.set()
    watch.join(60)
    assert not watch.is_alive()
    assert tries[0] == tries[1], "no pipe is left open"
    assert "could not be started ([Errno 11] Resource temporarily unavailable)" in caplog.text


def test_a_child_that_ends_before_it_has_its_orders_is_started_again(
    parent: Parent, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real, tries = subprocess.Popen, []

    def popen(*_: Any, **options: Any) -> Any:
        tries.append(options)
        child = real(child_program(3), stdin=subprocess.DEVNULL)
        child.wait()
        return child

    monkeypatch.setattr(module.subprocess, "Popen", popen)
    watch = parent.watch()
    until(lambda: len(tries) >= 2, "it is started again")
    parent.supervisor._stopping.set()
    watch.join(60)
    assert not watch.is_alive()
    assert "ended before it got its settings (Broken pipe)" in caplog.text
    assert "exited with code 3; starting it again" in caplog.text


def test_a_child_that_dies_again_and_again_is_started_more_and_more_slowly(
    parent: Parent, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Until it has lived for a while."""
    lives = [0.0, YOUNG_S, 1.0, 1.0, YOUNG_S + 0.1, 1.0]
    clock, pauses = FakeClock(), []

    def live_and_die(_: int) -> str:
        clock.advance(lives[len(pauses)])
        return "exited with code 3"

    def wait(stopping: threading.Event, pause_s: float) -> bool:
        pauses.append(pause_s)
        if len(pauses) == len(lives):
            stopping.set()
        return stopping.is_set()

    monkeypatch.setattr(parent.supervisor, "_clock", clock)
    monkeypatch.setattr(clock, "wait", wait)
    monkeypatch.setattr(parent.supervisor, "_live_and_die", live_and_die)
    parent.supervisor._monitor(1)
    assert pauses == [0.2, 0.4, 0.8, 1.6, 0.1, 0.2]
    said = [record.message for record in caplog.records]
    assert said[0] == "child w/1 exited with code 3; starting it again in 0.2 s"
    assert said[2].endswith("starting it again in 0.8 s (a crash loop: it died young 3 times in a row)")
    assert ["crash loop" in line for line in said] == [False, False, True, True, False, False]


def test_a_mistake_of_ours_does_not_end_the_watch(parent: Parent, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = []

    def stumble(_: int) -> str:
        tries.append(1)
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(parent.supervisor, "_live_and_die", stumble)
    parent.watch()
    until(lambda: len(tries) >= 2, "it goes on")


@pytest.mark.parametrize(("told_to_stop", "code"), [(True, 0), (False, 1)])
def test_a_parent_without_children_that_nobody_stopped_has_failed(
    parent: Parent, monkeypatch: pytest.MonkeyPatch, told_to_stop: bool, code: int
) -> None:
    silent, end = os.pipe()
    monkeypatch.setattr(module, "catch_signals", lambda: silent)
    monkeypatch.setattr(parent.supervisor, "_monitor", lambda _: None)
    if told_to_stop:
        parent.supervisor._stopping.set()
    assert parent.supervisor.run() == code
    os.close(silent)
    os.close(end)


@pytest.mark.parametrize("enrolled", [True, False])
def test_a_child_that_cannot_load_the_app_is_named_so(
    parent: Parent, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, enrolled: bool
) -> None:
    """A handler may end its process with the same code; that child had enrolled."""
    monkeypatch.setattr(parent.supervisor, "_settle_child", lambda *_: enrolled)
    real = subprocess.Popen
    monkeypatch.setattr(module.subprocess, "Popen", lambda _, **options: real(child_program(2), **options))
    watch = parent.watch()
    until(lambda: "starting it again" in caplog.text, "it has ended")
    parent.supervisor._stopping.set()
    watch.join(60)
    assert ("could not load the app" in caplog.text) is not enrolled
    assert caplog.records[0].levelno >= logging.WARNING


# ------------------------------------------------------------------------------- a child that does not beat


def silent(beat_s: float) -> Silence:
    """How a child counts that has said once how often it means to beat."""
    heard, line = os.pipe()
    silence = Silence()
    try:
        os.write(line, f"{beat_s}\n".encode())
        assert silence.read_from(heard)
    finally:
        os.close(line)
        os.close(heard)
    return silence


def test_a_child_that_has_never_beaten_may_take_its_time(parent: Parent) -> None:
    silence = Silence()
    for _ in range(299):
        silence.add(1.0)
    assert not parent.supervisor._is_too_long(silence, PID)
    silence.add(1.0)
    assert parent.supervisor._is_too_long(silence, PID)


HANGS = "import time; time.sleep(600)"  # as an import that never returns


def test_a_child_that_hangs_before_its_first_beat_is_replaced(
    parent: Parent, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real, started = subprocess.Popen, []

    def popen(_: Any, **options: Any) -> Any:
        started.append(real([sys.executable, "-c", HANGS], **options))
        return started[-1]

    monkeypatch.setattr(module, "START_S", 0.5)
    monkeypatch.setattr(module.subprocess, "Popen", popen)
    watch = parent.watch()
    try:
        until(lambda: len(started) >= 2, "another is started in its place")
    finally:
        parent.supervisor._stopping.set()
        for child in started:
            child.kill()
        watch.join(60)
    assert not watch.is_alive()
    assert "child w/1 is alive but is not ready after " in caplog.text
    assert "was killed by SIGKILL: it was alive but did not beat, so its supervisor ended it" in caplog.text


def test_words_that_no_child_of_ours_says_do_not_end_the_watch_over_it() -> None:
    heard, line = os.pipe()
    silence = Silence()
    try:
        for words in (b"\n", b"hello\n", b"\xff\n"):
            os.write(line, words)
            assert silence.read_from(heard)
        assert not silence.has_beaten
    finally:
        os.close(line)
        os.close(heard)


def test_a_child_is_silent_for_too_long_after_three_intervals(parent: Parent) -> None:
    silence = silent(10.0)
    for _ in range(29):
        silence.add(1.0)
    assert not parent.supervisor._is_too_long(silence, PID)
    silence.add(1.0)
    assert parent.supervisor._is_too_long(silence, PID)
    assert silent(0.1).limit_s == SILENT_LEAST_S


def test_the_store_is_asked_only_about_a_child_that_is_late(parent: Parent) -> None:
    silence = silent(10.0)
    for _ in range(14):
        silence.add(1.0)
        parent.supervisor._is_too_long(silence, PID)
    assert parent.store.calls[DURABLE_PING] == 0


def test_time_in_which_the_parent_was_asleep_does_not_count(parent: Parent) -> None:
    silence = silent(10.0)
    silence.add(86_400.0)
    assert not parent.supervisor._is_too_long(silence, PID)


def test_a_child_is_not_blamed_for_a_store_that_is_away(parent: Parent) -> None:
    silence = silent(10.0)
    with parent.store.down():
        for _ in range(1000):
            silence.add(1.0)
            assert not parent.supervisor._is_too_long(silence, PID)
    silence.add(1.0)
    assert not parent.supervisor._is_too_long(silence, PID), "it has another chance when the store is back"


def test_a_child_is_replaced_only_if_a_write_of_the_parents_own_was_committed(
    parent: Parent, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Commits may hang, and files may not grow, while locks and reads work as always."""
    asked: list[bool] = []

    def ping(*, durably: bool = False) -> None:
        asked.append(durably)
        if durably:
            raise StoreUnavailable("no commit ends")

    monkeypatch.setattr(parent.store.real, "ping", ping)
    silence = silent(10.0)
    for _ in range(100):
        silence.add(1.0)
        assert not parent.supervisor._is_too_long(silence, PID)
    assert asked == [True] * 86, "once for each look at a child that is late"
    assert caplog.text.count("not replaced: the store takes no writes (no commit ends)") == 1
    monkeypatch.undo()
    for _ in range(14):
        silence.add(1.0)
        assert not parent.supervisor._is_too_long(silence, PID), "it has time to beat when the store is back"
    silence.add(1.0)
    assert parent.supervisor._is_too_long(silence, PID)


@pytest.mark.parametrize(("holder", "is_replaced"), [(PID, True), (PID + 1, False), (None, False)])
def test_a_child_that_stopped_inside_its_transaction_is_silent_too(
    parent: Parent, holder: int | None, is_replaced: bool
) -> None:
    """It keeps the only write lock of the file, so that no worker can write until it is gone."""
    clock = FakeClock()
    parent.supervisor._clock = clock

    def locked(*_: Any) -> None:
        clock.advance(10.0)
        raise FileLocked("the file stayed locked", holder)

    silence = silent(10.0)
    with parent.store.before(DURABLE_PING, locked):
        for _ in range(14):
            silence.add(1.0)
        assert not parent.supervisor._is_too_long(silence, PID), "it is not late yet"
        silence.add(1.0)
        assert not parent.supervisor._is_too_long(silence, PID), "15 s and 10 s are not a lease yet"
        silence.add(1.0)
        assert parent.supervisor._is_too_long(silence, PID) is is_replaced


# ------------------------------------------------------------------------------------- how a child ended


def test_an_end_that_nobody_saw_is_not_called_a_success(parent: Parent) -> None:
    """Code of the user's that waits for any process was first."""
    child = subprocess.Popen(child_program(3))
    os.waitpid(child.pid, 0)
    assert module._code_of(child) is None
    job = parent.runs()
    parent.supervisor._settle_child(1, PID, None)
    [event] = parent.store.journal(job.id)
    assert event.detail["cause"].endswith("its process ended, and its exit code is not known")
    assert row(parent.store.real, job.id).crashes == 1


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (0, []),
        (1, ["worker w/1 stopped with 1 job running; each was settled by its on_crash policy"]),
        (2, ["worker w/1 stopped with 2 jobs running; each was settled by its on_crash policy"]),
    ],
)
def test_a_child_that_stopped_is_mentioned_only_if_it_cut_jobs_short(
    number: int, said: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "holdfast.supervisor")
    reaper: Any = SimpleNamespace(release_worker=lambda worker, cause: number)
    Supervisor._settle_leases(None, reaper, 0, True, False, SimpleNamespace(name="w/1"))  # type: ignore[arg-type]
    assert caplog.messages == said
