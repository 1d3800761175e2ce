"""One worker, start to end: what a handler is given, what becomes of what it returns or raises."""

import asyncio
import dataclasses
import itertools
import logging
import threading
import time
from datetime import UTC, datetime
from typing import Any, NoReturn
from uuid import UUID

import pytest

from holdfast import App, Context, JobDead, Retry, Snooze
from holdfast.errors import HoldfastError, LeaseLost, Stopping
from tests.worker.house import House, on_every_store, until

AT_ONCE = Retry(attempts_max=2, base_s=0.0, cap_s=0.0)


# ------------------------------------------------------------------------------------ what it is given


def test_a_sync_and_an_async_task_run_and_return(house: House) -> None:
    @house.app.task
    def add(a: int, b: int) -> int:
        return a + b

    @house.app.task
    async def greet(name: str = "you") -> str:
        await asyncio.sleep(0)
        return f"hello {name}"

    house.start()
    assert add.enqueue(2, b=3).result(60) == 5
    assert greet.enqueue().result(60) == "hello you"


@dataclasses.dataclass
class Point:
    x: int
    at: datetime
    id: UUID


def test_arguments_and_results_arrive_as_the_types_of_the_signature(house: House) -> None:
    @house.app.task
    def echo(point: Point) -> Point:
        assert isinstance(point, Point)
        return point

    point = Point(2**80, datetime(2030, 1, 1, tzinfo=UTC), UUID(int=7))
    house.start()
    assert echo.enqueue(point).result(60) == point


def test_the_context_knows_its_job_and_attempt(house: House) -> None:
    seen: list[Any] = []

    @house.app.task(timeout_s=60, retry=AT_ONCE)
    def look(ctx: Context) -> None:
        seen.append((ctx.job.id, ctx.attempt, ctx.fence, ctx.cancelled, ctx.deadline is not None))
        left = ctx.time_left()
        assert left is not None
        assert 0 < left <= 60
        ctx.log.info("here")
        ctx.heartbeat()
        if ctx.attempt == 1:
            raise ValueError("once more")

    house.start()
    job = look.enqueue()
    job.result(60)
    assert seen == [(job.id, 1, 1, False, True), (job.id, 2, 2, False, True)]


def test_what_a_context_logs_names_its_job(house: House, caplog: pytest.LogCaptureFixture) -> None:
    @house.app.task
    def speak(ctx: Context) -> None:
        ctx.log.warning("hear me")

    house.start()
    job = speak.enqueue()
    job.result(60)
    [said] = [record for record in caplog.records if record.getMessage() == "hear me"]
    assert (said.job_id, said.task) == (job.id, speak.name)  # type: ignore[attr-defined]


def test_many_handlers_run_at_once_up_to_the_slots(house: House) -> None:
    meeting = threading.Barrier(4)

    @house.app.task
    def meet() -> None:
        meeting.wait(60)

    house.start(slots=4)
    for job in house.app.enqueue_many([meet.job() for _ in range(8)]):
        job.result(60)


def test_no_more_handlers_run_at_once_than_there_are_slots(house: House) -> None:
    now, most = [0], [0]
    lock = threading.Lock()

    @house.app.task
    def count() -> None:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        time.sleep(0.01)
        with lock:
            now[0] -= 1

    house.start(slots=3)
    for job in house.app.enqueue_many([count.job() for _ in range(30)]):
        job.result(60)
    assert most[0] <= 3


def test_a_job_is_started_only_when_it_is_due(house: House) -> None:
    @house.app.task
    def now() -> float:
        return time.time()

    house.start()
    enqueued_at = time.time()
    job = now.using(run_after=0.4).enqueue()
    assert job.result(60) >= enqueued_at + 0.4
    assert house.row(job.id).attempt == 1


@on_every_store
def test_a_job_is_started_as_soon_as_it_is_due_and_not_at_the_next_poll(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.worker.claimer.POLL_S", 3600.0)

    @house.app.task
    def now() -> float:
        return time.time()

    house.start()
    assert now.enqueue().result(60)
    due_at = time.time() + 0.1
    assert now.using(run_after=0.1).enqueue().result(60) >= due_at


def test_with_a_full_journal_claims_and_the_success_are_written_down(house: House) -> None:
    @house.app.task(retry=AT_ONCE)
    def second_time(ctx: Context) -> None:
        if ctx.attempt == 1:
            raise ValueError

    house.start()
    job = second_time.enqueue()
    job.result(60)
    told = [(event.kind, event.fence) for event in house.events(job.id)]
    assert told == [("claimed", 1), ("failed", 1), ("claimed", 2), ("succeeded", 2)]


# ---------------------------------------------------------------------------------- what it may raise


class Unspeakable(Exception):
    def __str__(self) -> NoReturn:
        raise RuntimeError("no words")


class Mute(BaseException):
    """Not even an Exception."""


class Shy(Exception):
    """As classes do that pass every attribute on to an object that is not there."""

    def __getattribute__(self, name: str) -> NoReturn:
        raise RuntimeError(f"{name} is private")


class Faceless(Exception):
    @property
    def __class__(self) -> NoReturn:  # type: ignore[override]
        raise RuntimeError("no class")


class Empty(Exception):
    def __bool__(self) -> NoReturn:
        raise RuntimeError("neither true nor false")


class Nameless(type):
    @property
    def __name__(cls) -> NoReturn:  # type: ignore[override]
        raise RuntimeError("no name")


class OfNoName(Exception, metaclass=Nameless):
    """Not even its class can be named."""


def after(cause: BaseException) -> Exception:
    error = ValueError("it came from another one")
    error.__cause__ = cause
    return error


def raises(error: BaseException) -> Any:
    def task() -> None:
        raise error

    return task


def araises(error: BaseException) -> Any:
    async def task() -> None:
        raise error

    return task


ENDS_BADLY = {
    "an exception": (ValueError("bad luck"), "ValueError: bad luck"),
    "without a text": (ValueError(), "ValueError"),
    "sys.exit": (SystemExit(3), "SystemExit: 3"),
    "ctrl-c": (KeyboardInterrupt(), "KeyboardInterrupt"),
    "generator exit": (GeneratorExit(), "GeneratorExit"),
    "a text that raises": (Unspeakable(), "Unspeakable: (its text could not be read)"),
    "no attribute can be read": (Shy("x"), None),
    "its class cannot be read": (Faceless("x"), None),
    "its class has no name": (OfNoName("x"), None),
    "caused by one that cannot be read": (after(Shy("x")), None),
    "caused by one that is neither true nor false": (after(Empty("x")), "ValueError: it came from another one"),
    "a text with a NUL": (ValueError("a\0b"), "ValueError: a␀b"),
    "a lone surrogate": (ValueError("a\ud800b"), None),
    "a very long text": (ValueError("x" * 100_000), None),
    "no Exception at all": (Mute("psst"), "Mute: psst"),
    "cancelled from inside": (asyncio.CancelledError(), None),
    "our own error": (HoldfastError("who said that"), "HoldfastError: who said that"),
    "a signal that nobody sent": (Stopping("I am tired"), "Stopping: I am tired"),
    "a loss of the lease that is not one": (LeaseLost("not mine"), "LeaseLost: not mine"),
}


@pytest.mark.parametrize("make", [raises, araises], ids=["sync", "async"])
@pytest.mark.parametrize(("error", "text"), ENDS_BADLY.values(), ids=ENDS_BADLY.keys())
def test_whatever_a_handler_raises_is_a_failure_and_the_worker_goes_on(
    file_house: House, make: Any, error: BaseException, text: str | None
) -> None:
    house = file_house
    bad = house.app.task(name="bad", retry=Retry(attempts_max=1))(make(error))

    @house.app.task
    def good() -> str:
        return "fine"

    house.start(slots=1)
    job = bad.enqueue()
    with pytest.raises(JobDead):
        job.result(60)
    row = house.row(job.id)
    assert (row.failures, row.crashes, row.zombies) == (1, 0, 0)
    if text is not None:
        assert row.error == text
    assert house.kinds(job.id) == ["failed", "dead"]
    assert good.enqueue().result(60) == "fine"


def test_a_failure_is_retried_and_then_the_job_is_dead_with_the_reason(house: House) -> None:
    @house.app.task(retry=Retry(attempts_max=3, base_s=0.0, cap_s=0.0))
    def never(ctx: Context) -> None:
        raise ValueError(f"attempt {ctx.attempt}")

    house.start()
    job = never.enqueue()
    with pytest.raises(JobDead, match=r"attempt 3; failed or crashed 3 times \(attempts_max=3\)"):
        job.result(60)
    row = house.row(job.id)
    assert (row.attempt, row.failures, row.crashes) == (3, 3, 0)
    assert (row.error, row.stop_reason) == ("ValueError: attempt 3", "attempts_max")
    events = house.events(job.id, "failed", "dead")
    assert [event.kind for event in events] == ["failed", "failed", "failed", "dead"]
    assert [event.fence for event in events] == [1, 2, 3, 3]
    assert "ValueError: attempt 1" in events[0].detail["traceback"]
    assert events[0].detail["decision"] == "retry"


def test_a_retry_waits_for_its_backoff(house: House) -> None:
    started: list[float] = []

    @house.app.task(retry=Retry(attempts_max=2, base_s=0.5, jitter=False))
    def twice() -> None:
        started.append(time.monotonic())
        if len(started) == 1:
            raise ValueError

    house.start()
    twice.enqueue().result(60)
    assert started[1] - started[0] >= 0.5


def test_the_last_error_stays_readable_after_a_success(house: House) -> None:
    @house.app.task(retry=AT_ONCE)
    def second_time(ctx: Context) -> str:
        if ctx.attempt == 1:
            raise ValueError("at first")
        return "fine"

    house.start()
    job = second_time.enqueue()
    assert job.result(60) == "fine"
    assert house.row(job.id).error == "ValueError: at first"


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_snooze_comes_back_later_and_costs_nothing(house: House, is_async: bool) -> None:
    started: list[float] = []

    def nap(ctx: Context) -> int:
        started.append(time.monotonic())
        if ctx.attempt <= 3:
            raise Snooze(0.05)
        return ctx.attempt

    async def anap(ctx: Context) -> int:
        return nap(ctx)

    task = house.app.task(name="nap", retry=Retry(attempts_max=1))(anap if is_async else nap)
    house.start()
    job = task.enqueue()
    assert job.result(60) == 4
    row = house.row(job.id)
    assert (row.failures, row.crashes) == (0, 0)
    assert house.kinds(job.id) == ["snoozed"] * 3 + ["succeeded"]
    assert all(later - sooner >= 0.05 for sooner, later in itertools.pairwise(started))


RESULTS = {
    "an object": object(),
    "bytes": b"raw",
    "not a number": float("nan"),
    "too much": "x" * 2_000_000,
    "a lock": threading.Lock(),
}


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("result", RESULTS.values(), ids=RESULTS.keys())
def test_a_result_that_cannot_be_stored_is_a_failure_with_that_reason(
    file_house: House, result: Any, is_async: bool
) -> None:
    house = file_house

    def give() -> Any:
        return result

    async def agive() -> Any:
        return result

    task = house.app.task(name="give", retry=Retry(attempts_max=1))(agive if is_async else give)
    house.start(slots=1)
    job = task.enqueue()
    with pytest.raises(JobDead, match="the result could not be stored"):
        job.result(60)


def test_a_payload_that_does_not_fit_is_tried_again_by_a_worker_whose_code_it_fits(file_house: House) -> None:
    """In the middle of a deploy old and new code run side by side."""
    house = file_house
    retry = Retry(attempts_max=1000, base_s=0.2, cap_s=0.2)

    @house.app.task(name="t", retry=retry)
    def old(count: int) -> None: ...

    with App(house.app.url) as newer:

        @newer.task(name="t", retry=retry)
        def new(count: int, colour: str = "red") -> str:
            return colour

        job = new.enqueue(1, "blue")
        runner = house.start()
        until(lambda: house.row(job.id).failures > 0, "the old code has tried")
        assert "unexpected argument 'colour'; it takes (count)" in (house.row(job.id).error or "")
        runner.stop()
        house.join(runner)

        def is_done() -> bool:
            newer.tick(budget_s=20)
            return job.refresh().state == "done"

        until(is_done, "the new code has run it")
        assert job.result(1) == "blue"


def test_what_a_handler_says_of_another_payload_is_an_ordinary_failure(house: House) -> None:
    @house.app.task(name="other")
    def other(count: int) -> None: ...

    @house.app.task(name="t", retry=Retry(attempts_max=2, base_s=0.0, cap_s=0.0))
    def work() -> None:
        other.enqueue("many")  # type: ignore[arg-type]

    house.start()
    assert house.until_state(work.enqueue().id, "dead").failures == 2


# ------------------------------------------------------------------------------------- as the worker sees it


def test_a_worker_says_that_it_is_ready_and_what_it_recovered(house: House, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    @house.app.task(queue="mail")
    def send() -> None: ...

    house.start(slots=7)
    until(lambda: "is ready" in caplog.text)
    assert "recovered 0 orphaned jobs at start" in caplog.text
    assert "worker w is ready: 7 slots, queues mail, 1 tasks" in caplog.text


def test_of_very_many_queues_a_worker_names_a_few(house: House, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    @house.app.task
    def send() -> None: ...

    house.start(queues=tuple(f"q{number}" for number in range(3000)))
    until(lambda: "is ready" in caplog.text)
    assert "queues q0, q1, q2, q3, q4, q5, q6, q7, q8, q9 and 2990 more, 1 tasks" in caplog.text


def test_a_worker_signs_off_when_it_leaves(house: House) -> None:
    runner = house.start(name="ann")
    [worker] = house.store.workers()
    assert (worker.name, worker.id) == ("ann", runner.worker_id)
    assert house.stop(runner) == 0
    assert house.store.workers() == []
    [gone] = house.store.workers(gone=True)
    assert gone.gone_cause == "left"


@on_every_store
@pytest.mark.parametrize("ending", ["return", "raise"])
def test_progress_told_just_before_the_end_is_kept(house: House, ending: str) -> None:
    @house.app.task(name="t", retry=Retry(attempts_max=1))
    def task(ctx: Context) -> None:
        ctx.progress(0.9, note="nearly")
        ctx.progress(1.0, note="finished")
        if ending == "raise":
            raise ValueError("at the very end")

    house.start()
    row = house.until_state(task.enqueue().id, "done" if ending == "return" else "dead")
    assert (row.progress, row.note) == (1.0, "finished")


@pytest.mark.parametrize("is_async", [False, True])
def test_what_a_handler_left_behind_cannot_use_its_context(house: House, is_async: bool) -> None:
    ended, said = threading.Event(), list[str]()

    def left_over(ctx: Context) -> None:
        ended.wait(60)
        for use in (lambda: ctx.progress(0.9), ctx.heartbeat, lambda: ctx.transaction().__enter__()):
            try:
                use()
            except LeaseLost as error:
                said.append(str(error))

    def task(ctx: Context) -> None:
        ctx.progress(0.5)
        threading.Thread(target=left_over, args=(ctx,), daemon=True).start()

    async def loop_task(ctx: Context) -> None:
        task(ctx)

    declared = house.app.task(name="t")(loop_task if is_async else task)
    house.start()
    job = declared.enqueue()
    job.result(60)
    ended.set()
    until(lambda: len(said) == 3, "all three are refused")
    assert said == [f"this attempt of job {job.id} has ended"] * 3
    assert house.row(job.id).progress == 0.5


def test_progress_is_seen_in_the_store_soon(house: House) -> None:
    done = threading.Event()

    @house.app.task(lease_s=3600)  # an ordinary beat is far away
    def slow(ctx: Context) -> None:
        ctx.progress(0.25, note="a quarter\0")
        done.wait(60)

    house.start()
    job = slow.enqueue()
    try:
        until(lambda: house.row(job.id).progress == 0.25, "the progress reaches the store")
        assert house.row(job.id).note == "a quarter␀"
    finally:
        done.set()
    job.result(60)


def test_hooks_hear_of_a_job_that_gives_up_or_is_held_by_its_own_report(house: House) -> None:
    heard: list[tuple[str, str]] = []
    for kind in ("dead", "held"):
        house.app.on(kind, lambda event: heard.append((event["kind"], event["id"])))  # type: ignore[call-overload]

    @house.app.task(retry=Retry(attempts_max=1))
    def fails() -> None:
        raise ValueError("no luck")

    @house.app.task(on_crash="hold", timeout_s=0.2)
    async def hangs() -> None:
        await asyncio.sleep(60)

    house.start()
    dead, held = fails.enqueue(), hangs.enqueue()
    until(lambda: len(heard) == 2, "both were told")
    assert sorted(heard) == sorted([("dead", dead.id), ("held", held.id)])


def test_the_log_tells_of_every_attempt_that_did_not_succeed(house: House, caplog: pytest.LogCaptureFixture) -> None:
    @house.app.task(retry=AT_ONCE)
    def fails() -> None:
        raise ValueError("no luck")

    with caplog.at_level(logging.WARNING, logger="holdfast.worker"):
        house.start()
        job = fails.enqueue()
        said = until(lambda: [text for text in caplog.messages if job.id in text][1:] and caplog.messages)
    said = [text for text in said if job.id in text]
    assert len(said) == 2
    assert "attempt 1 ended, now to be run again: ValueError: no luck" in said[0]
    assert "attempt 2 ended, now dead: ValueError: no luck" in said[1]


def test_secrets_in_errors_stacks_and_notes_are_hidden(house: House) -> None:
    """On every store and on every way from the user's code into the journal."""
    address = "postgresql://ann:s3cret@db/x"

    @house.app.task(retry=Retry(attempts_max=1))
    def leaky(ctx: Context) -> None:
        ctx.progress(note=f"connecting to {address}")
        raise RuntimeError(f"{address} refused api_key=s3cret")

    house.start()
    job = leaky.enqueue()
    row = house.until_state(job.id, "dead")
    told = f"{row} {house.store.journal(job.id)}"
    assert "s3cret" not in told
    assert "RuntimeError: postgresql://ann:***@db/x refused api_key=***" in (row.error or "")
    assert row.note in (None, "connecting to postgresql://ann:***@db/x")
