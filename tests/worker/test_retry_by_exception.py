"""Retries that depend on the exception, and requests of the task: give up, or run again later."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Flow, GiveUp, JobDead, PolicyError, Retry, RetryLater, UsageError
from tests.worker import bad
from tests.worker.house import House

QUICK = {"base_s": 0.0, "cap_s": 0.0}


class Declined(ValueError):
    """An error of the domain."""


def form(house: House, is_async: bool, fn: Callable[[], Any], **options: Any) -> Any:
    async def later() -> Any:
        return fn()

    return house.app.task(name="work", **options)(later if is_async else lambda: fn())


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize(
    ("retry", "raised", "starts"),
    [
        (Retry(attempts_max=3, never=(ValueError,), **QUICK), Declined("closed"), 1),
        (Retry(attempts_max=3, never=(ValueError,), **QUICK), OSError("down"), 3),
        (Retry(attempts_max=3, on=(OSError, TimeoutError), **QUICK), ConnectionError("down"), 3),
        (Retry(attempts_max=3, on=(OSError,), **QUICK), Declined("closed"), 1),
        (Retry(attempts_max=3, on=(ValueError,), never=(Declined,), **QUICK), Declined("closed"), 1),
        (Retry(attempts_max=3, on=(ValueError,), never=(Declined,), **QUICK), ValueError("odd"), 3),
    ],
)
def test_a_task_declares_after_which_exceptions_it_is_run_again(
    house: House, is_async: bool, retry: Retry, raised: Exception, starts: int
) -> None:
    ran: list[int] = []

    def work() -> None:
        ran.append(1)
        raise raised

    task = form(house, is_async, work, retry=retry)
    house.start()
    job = task.enqueue()
    with pytest.raises(JobDead, match=str(raised)):
        job.result(60)
    row = house.row(job.id)
    assert (len(ran), row.failures, row.stop_reason) == (starts, starts, "final" if starts == 1 else "attempts_max")


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_task_that_gives_up_is_dead_at_once_with_its_reason(house: House, is_async: bool) -> None:
    def work() -> None:
        raise GiveUp("the account is closed")

    task = form(house, is_async, work)
    house.start()
    job = task.enqueue()
    with pytest.raises(JobDead, match="GiveUp: the account is closed"):
        job.result(60)
    row = house.row(job.id)
    assert (row.attempt, row.failures, row.stop_reason) == (1, 1, "final")
    assert house.kinds(job.id) == ["failed", "dead"]


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("on", [(), (OSError,)], ids=["on all", "on some"])
def test_a_task_that_asks_to_be_run_later_waits_as_long_and_uses_up_its_attempts(
    house: House, is_async: bool, on: tuple[type[Exception], ...]
) -> None:
    started: list[float] = []

    def work() -> None:
        started.append(time.monotonic())
        raise RetryLater(0.2, "the mail server is busy")

    task = form(house, is_async, work, retry=Retry(attempts_max=2, base_s=600.0, on=on))
    house.start()
    job = task.enqueue()
    with pytest.raises(JobDead, match="the mail server is busy"):
        job.result(60)
    assert started[1] - started[0] >= 0.2
    assert (len(started), house.row(job.id).failures) == (2, 2)


def test_a_backoff_of_the_tasks_own_gets_the_number_of_failures_and_chooses_the_pause(house: House) -> None:
    asked: list[int] = []

    def backoff(failures: int) -> float:
        asked.append(failures)
        return 0.0

    def work() -> None:
        raise OSError("down")

    task = form(house, False, work, retry=Retry(attempts_max=3, base_s=600.0, backoff=backoff))
    house.start()
    with pytest.raises(JobDead):
        task.enqueue().result(60)
    assert asked == [1, 2, 3]


@pytest.mark.parametrize("chosen", [-1, "soon", None, float("nan"), ZeroDivisionError])
def test_a_backoff_that_fails_or_returns_nonsense_is_logged_and_the_default_pause_is_used(
    house: House, chosen: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def backoff(failures: int) -> float:
        if chosen is ZeroDivisionError:
            raise chosen
        result: float = chosen
        return result

    def work() -> None:
        raise OSError("down")

    task = form(house, False, work, retry=Retry(attempts_max=2, backoff=backoff, **QUICK))
    house.start()
    with pytest.raises(JobDead, match="OSError: down"):
        task.enqueue().result(60)
    assert "task work: its backoff failed, and the default one is used" in caplog.text


def test_an_isolated_task_is_retried_by_exception_too(file_house: House) -> None:
    house = file_house
    task = house.app.task(name="declined", isolate=True, retry=bad.NOT_DECLINED)(bad.declined.fn)
    house.start()
    job = task.enqueue()
    with pytest.raises(JobDead, match="ValueError: declined"):
        job.result(60)
    assert (house.row(job.id).attempt, house.row(job.id).stop_reason) == (1, "final")


def test_an_isolated_process_that_cannot_find_the_declaration_says_so(file_house: House) -> None:
    house = file_house
    task = house.app.task(name="elsewhere", isolate=True, retry=Retry(attempts_max=1, on=(OSError,)))(bad.pid)
    house.start()
    with pytest.raises(JobDead, match="its Retry has on, never or backoff, and the app is not in its module"):
        task.enqueue().result(60)


def test_code_in_a_retry_is_refused_where_it_would_have_to_travel_with_the_job(house: House) -> None:
    task = form(house, False, lambda: None)
    for retry in (Retry(on=(OSError,)), Retry(never=(OSError,)), Retry(backoff=float)):
        with pytest.raises(PolicyError, match=r"task work: on, never and backoff are code.*declare them on the task"):
            task.using(retry=retry)
    assert task.using(retry=Retry(attempts_max=2)).job().new.policy.retry.attempts_max == 2


def test_the_jobs_of_such_a_task_and_its_schedule_carry_what_a_row_can(house: House) -> None:
    retry = Retry(attempts_max=2, never=(ValueError,), backoff=float)
    task = form(house, False, lambda: None, retry=retry)
    house.app.cron("* * * * *", task, key="k")
    house.app.store.declare(list(house.app.schedules.values()))
    [stored] = house.app.store.schedules()
    assert stored.job.policy.retry == task.job().new.policy.retry == Retry(attempts_max=2)
    assert task.using(priority=1).job().new.policy.retry == Retry(attempts_max=2)
    assert task.policy.retry == retry


@pytest.mark.parametrize("wrong", [OSError, [OSError], (Exception("x"),), ("OSError",), (int,), (BaseException,), None])
def test_what_is_no_exception_class_is_refused(wrong: Any) -> None:
    with pytest.raises(PolicyError, match="must be a tuple of exception classes"):
        Retry(on=wrong)
    with pytest.raises(PolicyError, match="must be a tuple of exception classes"):
        Retry(never=wrong)


def test_a_backoff_that_cannot_be_called_is_refused() -> None:
    with pytest.raises(PolicyError, match="backoff=5 must be a function"):
        Retry(backoff=5)  # type: ignore[arg-type]


@pytest.mark.parametrize("delay_s", [-1, float("nan"), float("inf")])
def test_a_delay_that_is_no_time_from_now_is_refused(delay_s: float) -> None:
    with pytest.raises(UsageError, match="RetryLater"):
        RetryLater(delay_s)


@pytest.mark.parametrize(
    ("retry", "raised", "tries"),
    [
        (Retry(attempts_max=3, never=(ValueError,), **QUICK), Declined("closed"), 1),
        (Retry(attempts_max=3, on=(OSError,), **QUICK), OSError("down"), 3),
        (Retry(attempts_max=3, **QUICK), GiveUp("no"), 1),
        (Retry(attempts_max=3, base_s=600.0), RetryLater(0.0), 3),
        (Retry(attempts_max=3, base_s=600.0, on=(OSError,)), RetryLater(0.0), 3),
        (Retry(attempts_max=3, base_s=600.0, backoff=lambda tries: 0.001 * tries), OSError("down"), 3),
    ],
)
def test_a_step_is_tried_again_by_the_same_rules(house: House, retry: Retry, raised: Exception, tries: int) -> None:
    ran: list[int] = []

    def work() -> None:
        ran.append(1)
        raise raised

    @house.app.workflow(retry=Retry(attempts_max=1))
    def flow_of_one(flow: Flow) -> str:
        try:
            flow.step(work, retry=retry, name="work")
        except type(raised) as error:
            return str(error)
        return "it went well"

    house.start()
    assert flow_of_one.enqueue().result(60) == str(raised)
    assert len(ran) == tries


def test_a_workflow_that_gives_up_undoes_its_steps(house: House) -> None:
    undone: list[str] = []

    @house.app.workflow()
    def order(flow: Flow) -> None:
        flow.step(lambda: "stock", name="reserve", undo=lambda result: undone.append(str(result)))
        raise GiveUp("the customer has left")

    house.start()
    job = order.enqueue()
    with pytest.raises(Exception, match="the customer has left"):
        job.result(60)
    assert (house.row(job.id).state, undone) == ("rolled_back", ["stock"])
