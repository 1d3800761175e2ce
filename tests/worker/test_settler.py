"""The settler: batches, lost answers, endings that no store takes (DESIGN 15.9)."""

import json
import sqlite3
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast import App, Context, JobDead, Retry
from holdfast.core.settlement import Settlement
from holdfast.core.verdict import Failed, Succeeded
from holdfast.errors import StoreError, StoreFull, StoreUnavailable
from holdfast.runtime.tracebacks import FRAMES_MAX
from holdfast.stores.protocol import Reply
from holdfast.worker.activity import TaskTransaction
from holdfast.worker.attempt import Attempt
from holdfast.worker.settler import Settler
from tests.factory import a_job, a_step, record, start, start_flow
from tests.timing import assert_within
from tests.worker.house import House, on_every_store, until
from tests.worker.meddler import Meddler, once

ONCE = Retry(attempts_max=1)


@on_every_store
def test_endings_that_come_together_are_written_together(house: House) -> None:
    meeting, ended = threading.Barrier(20), []

    @house.app.task
    def meet() -> None:
        meeting.wait(60)
        ended.append(1)

    house.start(slots=20)
    with house.store.before("settle", lambda *_: until(lambda: len(ended) == 20, "all have come to their end")):
        for job in house.app.enqueue_many([meet.job() for _ in range(20)]):
            job.result(60)
    assert house.store.calls["settle"] < 20


def test_a_single_ending_is_written_at_once(house: House) -> None:
    """It waits neither for others nor for a beat."""
    ended: list[float] = []

    @house.app.task
    def quick() -> None:
        ended.append(time.monotonic())

    house.start()

    def took() -> float:
        quick.enqueue().result(60)
        return time.monotonic() - ended[-1]

    assert_within(0.5, took)


@on_every_store
@pytest.mark.parametrize(
    "error",
    [StoreUnavailable("gone"), StoreFull("full"), StoreError("nobody knows it"), ValueError("nor this")],
    ids=["unreachable", "full", "unknown", "any other"],
)
def test_an_ending_is_kept_until_the_store_takes_it(house: House, error: Exception) -> None:
    """An error that the store meets with every ending is no fault of this one, whatever it is called."""
    runs: list[int] = []

    @house.app.task
    def count() -> str:
        runs.append(1)
        return "fine"

    def fail(*_: Any) -> None:
        raise error

    house.start()
    with house.store.before("settle", fail):
        job = count.enqueue()
        until(lambda: house.store.calls["settle"] >= 4, "it tries again")
        assert house.row(job.id).state == "running"
    assert job.result(60) == "fine"
    assert runs == [1]


@on_every_store
def test_a_repeated_settle_after_a_lost_answer_ends_the_attempt_once(house: House) -> None:
    """15.9: the store did it, and the answer was lost. The second time it says "already", without an event."""

    @house.app.task(retry=Retry(attempts_max=3, base_s=0.5, jitter=False))
    def fails_once(ctx: Context) -> str:
        if ctx.attempt == 1:
            raise ValueError("at first")
        return "fine"

    house.start()
    with house.store.after("settle", once(StoreUnavailable("the answer was lost"))):
        job = fails_once.enqueue()
        assert job.result(60) == "fine"
    assert house.kinds(job.id) == ["failed", "succeeded"]
    row = house.row(job.id)
    assert (row.attempt, row.failures, row.state) == (2, 1, "done")
    assert house.store.counts() == {"default": {"done": 1}}


@on_every_store
def test_a_repeated_settle_is_no_zombie_though_the_next_attempt_runs_by_then(house: House) -> None:
    """15.9 again: the retry was claimed before the repeated report came. It is still a repeat, and no stale report."""

    @house.app.task(retry=Retry(attempts_max=3, base_s=0.0, cap_s=0.0))
    def fails_once(ctx: Context) -> str:
        if ctx.attempt == 1:
            raise ValueError("at first")
        return "fine"

    house.start()
    with house.store.after("settle", once(StoreUnavailable("the answer was lost"))):
        job = fails_once.enqueue()
        assert job.result(60) == "fine"
    assert house.kinds(job.id) == ["failed", "succeeded"]


@on_every_store
def test_every_answer_lost_once_and_still_one_ending_each(house: House) -> None:
    @house.app.task
    def echo(n: int) -> int:
        return n

    lose: set[str] = set()

    def first_time(answer: Any) -> None:
        batch = house.store.arguments_of("settle")[-1][0]
        new = {each.lease.job_id for each in batch} - lose
        lose.update(new)
        if new:
            raise StoreUnavailable("the answer was lost")

    house.start(slots=4)
    with house.store.after("settle", first_time):
        jobs = house.app.enqueue_many([echo.job(n) for n in range(40)])
        assert [job.result(60) for job in jobs] == list(range(40))
    assert all(house.kinds(job.id) == ["succeeded"] for job in jobs)
    assert house.store.counts() == {"default": {"done": 40}}


class Poison:
    """Makes the store stumble over the settlement of one job, whatever batch it comes in."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.job_id = ""
        self.only: str | None = None  # a part of the result that it stumbles over; None: over any ending

    def __call__(self, settlements: list[Settlement], *_: Any) -> None:
        for each in settlements:
            told = json.dumps([each.verdict.result, each.verdict.error])
            if each.lease.job_id == self.job_id and (self.only is None or self.only in told):
                raise self.error


@pytest.mark.parametrize(
    "error", [StoreError("CHECK constraint failed"), ValueError("no encoding")], ids=["the store's", "any other"]
)
def test_a_batch_that_errors_is_split_and_the_bad_one_fails_with_the_reason(house: House, error: Exception) -> None:
    """15.9. The others of its batch are written as if nothing had been."""
    meeting = threading.Barrier(16)

    @house.app.task(retry=ONCE)
    def meet(n: int) -> str:
        meeting.wait(60)
        return f"result {n}"

    poison = Poison(error)
    drafts = [meet.job(n) for n in range(16)]
    poison.job_id, poison.only = drafts[7].new.id, "result 7"
    house.start(slots=16)
    with house.store.before("settle", poison):
        jobs = house.app.enqueue_many(drafts)
        for n, job in enumerate(jobs):
            if n == 7:
                with pytest.raises(JobDead, match=f"its outcome could not be stored: .*{error}"):
                    job.result(60)
            else:
                assert job.result(60) == f"result {n}"


def test_an_ending_that_can_never_be_written_does_not_stop_the_others(house: House) -> None:
    """Not even as a failure. Its lease runs out; all others go on."""

    @house.app.task(lease_s=600)
    def echo(n: int) -> int:
        return n

    poison = Poison(StoreError("CHECK constraint failed"))
    drafts = [echo.job(n) for n in range(8)]
    poison.job_id = drafts[3].new.id
    runner = house.start(slots=8)
    with house.store.before("settle", poison):
        jobs = house.app.enqueue_many(drafts)
        assert [jobs[n].result(60) for n in (0, 1, 2, 4, 5, 6, 7)] == [0, 1, 2, 4, 5, 6, 7]
        until(lambda: not runner._heartbeat.all(), "the bad one is renewed no more")
    assert house.row(poison.job_id).state == "running"


def test_a_row_damaged_on_disk_stops_neither_worker_nor_settler(file_house: House, tmp_path: Path) -> None:
    """The same with a real store: a row that breaks its own rules cannot be updated."""
    house = file_house
    running, go_on = threading.Event(), threading.Event()

    @house.app.task
    def wait() -> None:
        running.set()
        go_on.wait(60)

    @house.app.task
    def fine() -> str:
        return "fine"

    runner = house.start(slots=4, reaper=False)
    job = wait.enqueue()
    running.wait(60)
    damage(tmp_path / "jobs.db", job.id, "rolling_back = 7")
    go_on.set()
    until(lambda: not runner._heartbeat.all(), "the worker gives it up")
    assert [fine.enqueue().result(60) for _ in range(3)] == ["fine"] * 3
    damage(tmp_path / "jobs.db", job.id, "rolling_back = 0")
    assert house.row(job.id).state == "running"


def test_a_policy_damaged_on_disk_stops_neither_worker_nor_settler(file_house: House, tmp_path: Path) -> None:
    house = file_house

    @house.app.task
    def fails() -> None:
        raise ValueError("judge me")

    @house.app.task
    def fine() -> str:
        return "fine"

    job = fails.enqueue()
    damage(tmp_path / "jobs.db", job.id, "backoff_base_s = 100, backoff_cap_s = 1")
    house.start(slots=4)
    until(lambda: house.row(job.id).attempt == 1, "it runs")
    assert [fine.enqueue().result(60) for _ in range(3)] == ["fine"] * 3


def damage(path: Path, job_id: str, change: str) -> None:
    """Write what no program of ours would."""
    with sqlite3.connect(path, timeout=60) as connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute(f"UPDATE holdfast_job SET {change} WHERE id = ?", (job_id,))
    connection.close()


def test_one_that_is_to_be_judged_again_does_not_keep_hooks_from_hearing_of_the_others() -> None:
    """Its row must be read for that, and the store may be out of reach just then."""
    app, told = App("memory://"), []
    store = Meddler(app.store)
    flow, job = start_flow(store.real, attempts_max=1), start(store.real, attempts_max=1)
    record(store.real, flow, a_step(1, "started", repeatable=False), open_step="charge")
    app.on("dead", lambda event: told.append((event["kind"], event["id"])))
    app.on("held", lambda event: told.append((event["kind"], event["id"])))
    settler = Settler(store, app.clock, lambda _: None, app.hooks)  # type: ignore[arg-type]
    for row in (flow, job):  # the worker of the first does not know what was begun
        settler.put(Attempt(row, SimpleNamespace(), 0.0), Failed("no luck"))  # type: ignore[arg-type]
    with store.before("get", once(StoreUnavailable("gone"))):
        settler.start(lambda *_: None)
        assert settler.flush(20)
    settler.close()
    assert app.hooks.flush(20)
    assert told == [("dead", job.id), ("held", flow.id)]


def test_an_ending_is_saved_although_the_thread_that_had_it_takes_long_to_die() -> None:
    app, dies, may_end = App("memory://"), threading.Event(), threading.Event()
    store = Meddler(app.store)
    job = start(store.real)
    settler = Settler(store, app.clock, lambda _: None, app.hooks)  # type: ignore[arg-type]

    def died(*_: Any) -> None:
        dies.set()
        may_end.wait(60)

    with store.before("settle", once(SystemExit())):
        settler.start(died)
        settler.put(Attempt(job, SimpleNamespace(), 0.0), Succeeded("1"))  # type: ignore[arg-type]
        assert dies.wait(60)
        threading.Timer(0.2, may_end.set).start()  # when somebody has begun to wait for it
        assert settler.flush(50)
    assert store.real.get(job.id).state == "done"
    settler.close()


@pytest.mark.parametrize("kind", [OSError, StoreError])
def test_a_commit_that_fails_gives_no_secret_away(kind: type[Exception]) -> None:
    def settle(_: Settlement) -> None:
        raise kind("no answer from postgresql://me:hunter2@db/shop\0")

    app = App("memory://")
    attempt = Attempt(a_job(), SimpleNamespace(), 0.0)  # type: ignore[arg-type]
    transaction: Any = SimpleNamespace(settle=settle, rollback=lambda: None, outage=None)
    attempt.transaction = TaskTransaction("ctx.transaction()", transaction)
    outcome = Settler(app.store, app.clock, lambda _: None, app.hooks).commit(attempt, Succeeded("1"))
    assert isinstance(outcome, Failed)
    assert outcome.error.removeprefix("OSError: ") == "no answer from postgresql://me:***@db/shop␀"


def test_an_error_in_the_log_forges_no_line_and_says_where_it_was_raised(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    forged = "no\n2030-01-01 00:00:00 ERROR holdfast.worker: all is lost \x1b[2J\r"

    def deeper(depth: int) -> None:
        if depth:
            deeper(depth - 1)
        raise ValueError(forged)

    @house.app.task(name="t", retry=ONCE)
    def task() -> None:
        deeper(20)

    house.start()
    job = task.enqueue()
    house.until_state(job.id, "dead")
    until(lambda: "attempt 1 ended" in caplog.text, "it is told")
    [record] = [each for each in caplog.records if "attempt 1 ended" in each.getMessage()]
    first, *frames = record.getMessage().split("\n")
    assert first.startswith(f"job {job.id} (t): attempt 1 ended, now dead: ValueError: no\\n2030-01-01")
    assert "\\x1b[2J\\r" in first
    assert len(frames) == FRAMES_MAX
    assert all(frame.startswith("    ") and __file__ in frame and frame.isprintable() for frame in frames)
    assert frames[-1].endswith("in deeper: raise ValueError(forged)")


def test_hooks_hear_of_an_ending_whose_answer_was_lost() -> None:
    app, told = App("memory://"), []
    store = Meddler(app.store)
    app.on("dead", lambda event: told.append(event["id"]))
    settler = Settler(store, app.clock, lambda _: None, app.hooks)  # type: ignore[arg-type]
    job = start(store.real, attempts_max=1)
    settler.put(Attempt(job, SimpleNamespace(), 0.0), Failed("no luck"))  # type: ignore[arg-type]
    with store.after("settle", once(StoreUnavailable("the answer is lost"))):
        settler.start(lambda *_: None)
        assert settler.flush(30)
    settler.close()
    assert app.hooks.flush(30)
    assert told == [job.id]


@pytest.mark.parametrize("answer", [Reply.LOCKED, Reply.AGAIN])
def test_a_success_whose_writes_were_rolled_back_is_not_reported_without_them(answer: Reply) -> None:
    app = App("memory://")
    settler = Settler(app.store, app.clock, lambda _: None, app.hooks)
    mine = Attempt(start(app.store), SimpleNamespace(), 0.0)  # type: ignore[arg-type]
    transaction: Any = SimpleNamespace(settle=lambda _: answer, rollback=lambda: None, outage=None)
    mine.transaction = TaskTransaction("ctx.transaction()", transaction)
    assert not isinstance(settler.commit(mine, Succeeded()), Succeeded | None)
