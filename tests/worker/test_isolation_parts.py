"""The parts of isolation: frames, memory, words, where a task is found."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from holdfast import App, Retry
from holdfast.core.durations import iso
from holdfast.core.lease import TrustWindow
from holdfast.core.records import Moment
from holdfast.core.verdict import Failed, Lost, Succeeded
from holdfast.errors import Cancelled, LeaseLost, NoProgress, TimeLimit
from holdfast.worker.attempt import Attempt
from holdfast.worker.isolated import memory, pool, protocol
from holdfast.worker.isolated.exits import lost
from holdfast.worker.isolated.process import IsolatedProcess
from tests.factory import a_job, claim, enrol, settle
from tests.worker import bad
from tests.worker.house import House, until

ONCE = Retry(attempts_max=1)


# --- Frames -----------------------------------------------------------------------------------------------


def test_a_stream_is_cut_into_frames_wherever_it_is_torn() -> None:
    sent: list[protocol.Word] = [
        protocol.Ready(),
        protocol.ProgressMade(0.5, "é"),
        protocol.Logged({"msg": "x" * 5000}),
        protocol.Ready(),
    ]
    stream = b"".join(map(protocol.frame, sent))
    for step in (1, 3, 7, len(stream)):
        frames = protocol.Frames[protocol.Word](protocol.Word)
        got = [word for at in range(0, len(stream), step) for word in frames.feed(stream[at : at + step])]
        assert got == sent


@pytest.mark.parametrize("nonsense", [b"\xff" * 8, b"\0\0\0\1\xc1", protocol.frame(protocol.Leave())])
def test_what_is_no_frame_is_refused(nonsense: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        list(protocol.Frames[protocol.Word](protocol.Word).feed(nonsense))


@pytest.mark.parametrize("outcome", [None, Succeeded('"x"'), Failed("no", {"traceback": "…"}, finished=True)])
def test_an_outcome_travels(outcome: Any) -> None:
    word = protocol.ended(outcome, progress=0.5, note="n", rss_mb=1.0, spent=False)
    [got] = protocol.Frames[protocol.Word](protocol.Word).feed(protocol.frame(word))
    assert isinstance(got, protocol.Ended)
    assert protocol.outcome_of(got) == outcome


def test_a_cell_that_sends_nonsense_is_ended(file_house: House) -> None:
    task = file_house.app.task(name="talks", isolate=True, crashes_max=1)(bad.talk_nonsense)
    file_house.start()
    row = file_house.until_state(task.enqueue().id, "dead")
    assert (row.error or "").startswith("its process sent a message that cannot be decoded")


def test_a_cell_that_lost_its_event_loop_ends_whatever_the_error_says(file_house: House) -> None:
    """To read the text of the error is to run its author's code, and that never returns."""
    task = file_house.app.task(name="ends", isolate=True, crashes_max=1)(bad.exit_endlessly_in_a_callback)
    file_house.start()
    row = file_house.until_state(task.enqueue().id, "dead")
    assert (row.error or "").startswith("its process exited with code 78")


# --- Memory -----------------------------------------------------------------------------------------------


def tree(folder: Path, line: str, file: str, text: str) -> dict[str, Path]:
    own, where = folder / "own", folder / file
    own.write_text(line + "\n")
    where.parent.mkdir(parents=True)
    where.write_text(text)
    return {"groups": folder, "own": own}


def test_kills_for_want_of_memory_are_counted_in_either_version(tmp_path: Path) -> None:
    (tmp_path / "2").mkdir()
    new = tree(tmp_path / "2", "0::/a/b", "a/b/memory.events", "oom 7\noom_kill 3\n")
    assert memory.kills_here(**new) == 3
    (tmp_path / "1").mkdir()
    old = tree(tmp_path / "1", "4:cpu,memory:/c", "memory/c/memory.oom_control", "under_oom 0\noom_kill 2\n")
    assert memory.kills_here(**old) == 2
    assert memory.kills_here(groups=tmp_path, own=tmp_path / "none") is None


def test_no_group_is_made_where_the_tree_is_not_ours(tmp_path: Path) -> None:
    where = tree(tmp_path, "0::/a/b", "a/cgroup.subtree_control", "memory\n")
    assert memory.make_group(1, **where) is None
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["cgroup.subtree_control"]


def test_a_group_limits_counts_and_kills(tmp_path: Path) -> None:
    group = memory.MemoryGroup(tmp_path)
    (tmp_path / "memory.events").write_text("oom_kill 1\n")
    group.limit(64)
    assert (tmp_path / "memory.max").read_text() == str(64 << 20)
    group.limit(None)
    assert (tmp_path / "memory.max").read_text() == "max"
    group.kill()
    assert (tmp_path / "cgroup.kill").read_text() == "1"
    assert group.kills() == 0, "that was in an earlier attempt"
    (tmp_path / "memory.events").write_text("oom_kill 2\n")
    assert group.kills() == 1


@pytest.mark.parametrize(
    ("code", "killed_for_memory", "error", "cause", "facts"),
    [
        (-9, False, None, "its process was killed by SIGKILL", {"signal": "SIGKILL"}),
        (-9, True, None, "its process was killed by SIGKILL; out of memory at 1.9 GiB", {"signal": "SIGKILL"}),
        (-11, True, None, "its process was killed by SIGSEGV", {"signal": "SIGSEGV"}),
        (-99, False, None, "its process was killed by signal 99", {"signal": "signal 99"}),
        (3, False, None, "its process exited with code 3", {"exit_code": 3}),
        (None, False, None, "its process ended, and its exit code is not known", {}),
        (-9, False, "sent nonsense", "its process sent nonsense", {}),
    ],
)
def test_the_cause_in_words(
    code: int | None, killed_for_memory: bool, error: str | None, cause: str, facts: dict[str, Any]
) -> None:
    task: Any = None
    attempt = Attempt(a_job(), task, 100.0)
    attempt.move(101.0, 0.5, None)
    cell: Any = SimpleNamespace(pid=7, error=error, peak_mb=1945.6)
    outcome = lost(attempt, cell, code, "w", "File x, line 1", killed_for_memory, Moment(1_000.0, 102.0))
    assert isinstance(outcome, Lost)
    assert (outcome.detector, outcome.cause, outcome.suspects) == ("exit", cause, 1)
    known = outcome.autopsy
    assert {name: known[name] for name in ("exit_code", "signal") if name in known} == facts
    assert (known["pid"], known["progress"], known["stack"]) == (7, 0.5, "File x, line 1")
    assert (known["last_beat"], known["seconds_since_beat"]) == (iso(998.0), 0.0)
    assert (known["lease_until"], known["seconds_overdue"]) == (iso(998.0 + attempt.job.lease_s), 0.0)


# --- Stopping ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("why", [LeaseLost(""), None])
@pytest.mark.parametrize("lease_s", [0.5, 1.0, 30.0, 3600.0])
def test_a_handler_is_gone_before_its_lease_ends(why: Any, lease_s: float) -> None:
    assert sum(pool.moments(why, lease_s)) <= min(1.0, lease_s * (59 / 60 - 5 / 6))


@pytest.mark.parametrize("why", [Cancelled(""), TimeLimit(""), NoProgress("")])
def test_every_moment_is_bounded(why: Any) -> None:
    assert 0 < sum(pool.moments(why, 30.0)) <= 3.0


def test_an_async_handler_that_swallows_its_cancellation_is_ended(shared_house: House) -> None:
    house = shared_house
    task = house.app.task(name="swallows", isolate=True, timeout_s=2, retry=ONCE)(bad.swallow_cancellation)
    house.start()
    job = task.enqueue()
    house.until_state(job.id, "dead")
    [event] = house.events(job.id, "timed_out")
    assert event.detail["error"] == "ran longer than timeout_s=2"
    assert event.detail["process"] == "was killed by SIGTERM"
    assert "in swallow_cancellation" in event.detail["stack"]


def test_one_that_waits_for_a_cell_is_given_back_when_the_worker_stops(
    file_house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(IsolatedProcess, "is_ready", property(lambda _: False, lambda *_: None), raising=False)
    monkeypatch.setattr(pool.Pool, "_rest", lambda *_: None)  # no cell is ever free
    task = file_house.app.task(name="pid", isolate=True)(bad.pid)
    runner = file_house.start(grace_period_s=0.0)
    job = task.enqueue()
    until(lambda: runner._slots.pool._waiting, "it waits")
    assert file_house.stop(runner) == 0
    row = file_house.row(job.id)
    assert (row.state, row.crashes, row.failures) == ("ready", 0, 0)
    [event] = file_house.events(job.id, "released")
    assert event.detail["started"] is False


# --- Who, and from where ----------------------------------------------------------------------------------


def test_one_of_several_suspects_runs_apart(file_house: House) -> None:
    """Its task does not ask for it: it was in a process with others when that died."""
    task = file_house.app.task(name="pid")(bad.pid)
    suspect, innocent = task.enqueue(), None
    worker = enrol(file_house.store)  # type: ignore[arg-type]
    [job] = claim(file_house.store, worker, tasks=["pid"])  # type: ignore[arg-type]
    settle(file_house.store, job, Lost("exit", "its process died", suspects=2))  # type: ignore[arg-type]
    innocent = task.enqueue()
    file_house.start()
    assert suspect.result(60) != os.getpid()
    assert innocent.result(60) == os.getpid()


def test_an_app_that_the_cell_cannot_import_is_said_and_nothing_is_lost(
    file_house: House, caplog: pytest.LogCaptureFixture
) -> None:
    task = file_house.app.task(name="pid", isolate=True)(bad.pid)
    job = task.enqueue()
    file_house.start(app_ref="no_such_module:app")
    words = "isolated jobs cannot be run: there is no module 'no_such_module'"
    until(lambda: words in caplog.text, "it is said")
    assert (file_house.row(job.id).failures, file_house.row(job.id).crashes) == (0, 0)


class Backwards:
    def encode(self, value: Any) -> str:
        return msgspec.json.encode(value).decode()[::-1]

    def decode(self, text: str) -> Any:
        return msgspec.json.decode(text[::-1])


def test_an_app_with_a_codec_of_its_own_must_be_found_whole(tmp_path: Path) -> None:
    house = House(App(f"sqlite:///{tmp_path}/jobs.db", codec=Backwards()))
    task = house.app.task(name="pid", isolate=True, retry=ONCE)(bad.pid)
    house.start()
    row = house.until_state(task.enqueue().id, "dead")
    house.close()
    assert "the app with its codec is not at the top of the module" in (row.error or "")


SHOP = """
    import os
    from holdfast import App

    app = App("sqlite:///elsewhere.db")

    @app.task(isolate=True)
    def pid() -> int:
        return os.getpid()
"""
PROGRAM = """
    import os
    import shop

    shop.app.url = "sqlite:///jobs.db"
    job = shop.pid.enqueue()
    assert shop.app.tick(20).finished
    assert job.result(0) != os.getpid()
    assert not os.path.exists("elsewhere.db")
"""


def test_a_task_of_another_module_is_found_there(tmp_path: Path) -> None:
    """The program is not guarded: it must not be loaded again for a task that stands elsewhere."""
    (tmp_path / "shop.py").write_text(textwrap.dedent(SHOP))
    (tmp_path / "program.py").write_text(textwrap.dedent(PROGRAM))
    run = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr


def test_an_attempt_elsewhere_is_interrupted_there() -> None:
    done: list[str] = []
    keeps: Any = SimpleNamespace(interrupt=lambda _: done.append("interrupt"), kill=lambda _: done.append("kill"))
    attempt = Attempt(a_job(), SimpleNamespace(), 0.0)  # type: ignore[arg-type]
    assert not attempt.handler.kill(0.0)
    attempt.handler.enter_process(keeps)
    attempt.handler.stop(Cancelled("now"))
    attempt.handler.stop(Cancelled("again"))
    assert attempt.handler.kill(100.0)
    assert done == ["interrupt", "kill"]
    late = Attempt(a_job(), SimpleNamespace(), 0.0)  # type: ignore[arg-type]
    late.handler.stop(Cancelled("before it began"))
    late.handler.enter_process(keeps)
    assert done == ["interrupt", "kill", "interrupt"]


def test_a_system_that_does_not_tell_of_ends_is_asked(file_house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.worker.isolated.process.end_of", lambda _: None)
    bad_task = file_house.app.task(name="bad", isolate=True, crashes_max=1)(bad.leave_at_once)
    fine = file_house.app.task(name="fine", isolate=True)(bad.pid)
    file_house.start(slots=2)
    row = file_house.until_state(bad_task.enqueue().id, "dead")
    assert (row.error or "").startswith("its process exited with code 3")
    assert fine.enqueue().result(60) != os.getpid()


def test_a_cell_that_is_never_ready_is_given_up(
    file_house: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pool, "BIRTH_MAX_S", 0.0)
    monkeypatch.setattr(pool, "FIRST_RESTART_S", 0.05)
    monkeypatch.setattr(pool.Pool, "prepare", lambda _: None)  # the job is there before the first cell
    task = file_house.app.task(name="pid", isolate=True)(bad.pid)
    file_house.start()
    job = task.enqueue()
    until(lambda: "released" in file_house.kinds(job.id), "it is given back")
    assert "isolated jobs cannot be run: a process was not ready after 0 s" in caplog.text
    monkeypatch.undo()
    assert job.result(60) != os.getpid()


def test_without_threads_for_the_pool_jobs_are_given_back(file_house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Any) -> None:
        raise RuntimeError("can't start new thread")

    begin = pool.Pool._begin
    task = file_house.app.task(name="pid", isolate=True)(bad.pid)
    monkeypatch.setattr(pool.Pool, "prepare", lambda _: None)
    monkeypatch.setattr(pool.Pool, "_begin", refuse)
    runner = file_house.start()
    job = task.enqueue()
    until(lambda: "released" in file_house.kinds(job.id), "it is given back")
    assert not file_house.row(job.id).failures
    monkeypatch.setattr(pool.Pool, "_begin", begin)
    assert job.result(60) != os.getpid()
    assert runner.settled >= 2


def test_one_whose_lease_is_about_to_end_is_not_begun(file_house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    ready: list[Any] = []
    rest = pool.Pool._rest
    monkeypatch.setattr(pool.Pool, "_rest", lambda *given: ready.append(given))
    task = file_house.app.task(name="pid", isolate=True)(bad.pid)
    runner = file_house.start()
    with file_house.store.down("beat"):
        job = task.enqueue()
        [attempt] = until(
            lambda: list(runner._slots.pool._waiting) if ready else [], "a cell is there, and not free yet"
        )
        now = file_house.app.clock.lease()
        attempt.window = TrustWindow(now, now, now, now + 5.0)  # no beat got through for long
        monkeypatch.setattr(pool.Pool, "_rest", rest)
        for given in tuple(ready):
            runner._slots.pool._do(lambda given=given: rest(*given))  # type: ignore[misc]
        [event] = until(lambda: file_house.events(job.id, "released"), "it is given back")
    assert event.detail["cause"] == "its lease was about to end before it began"
    assert job.result(60) != os.getpid()
    assert file_house.kinds(job.id) == ["released", "succeeded"]
