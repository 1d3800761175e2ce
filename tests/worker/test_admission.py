"""New jobs of a call whose jobs have crashed are held, not started."""

import os
from typing import Any

import pytest

from holdfast import App, Retry, Task
from holdfast.core.crash_fingerprint import call_of
from holdfast.core.records import Job as Row
from holdfast.core.verdict import Failed, Lost, Outcome, Released, Succeeded
from holdfast.errors import StoreUnavailable, UsageError
from tests.factory import again, enrol, row, settle
from tests.worker.house import House, on_every_store, until

ALONE = Lost("exit", "its process was killed by SIGSEGV", {"isolated": True}, suspects=1)
WITH_OTHERS = Lost("expired", "its lease ran out")


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker looks after every claim."""
    monkeypatch.setattr("holdfast.worker.admission.REFRESH_S", 0.0)


def leave(code: int) -> None:
    os._exit(code)


def work(number: int) -> int:
    return 2 * number


def declare(house: House, **options: Any) -> Task[..., Any]:
    return house.app.task(name="work", **{"hold_after": 2, "crashes_max": 1} | options)(work)  # type: ignore[no-any-return,call-overload]


def fall(
    house: House, task: Task[..., Any], number: int = 7, outcome: Outcome = ALONE, worker: str | None = None
) -> Row:
    """A job that has crashed, and is dead or held."""
    job = task.enqueue(number)
    settle(house.store, again(house.store, house.row(job.id), worker), outcome)  # type: ignore[arg-type]
    return house.row(job.id)


@on_every_store
def test_what_kills_its_process_is_held_the_third_time(house: House) -> None:
    task = house.app.task(name="leave", isolate=True, crashes_max=1, hold_after=2)(leave)
    house.start()
    fallen = [house.until_state(task.enqueue(3).id, "dead") for _ in range(2)]
    third, other = task.enqueue(3), task.enqueue(4)
    held = house.until_state(third.id, "held")
    house.until_state(other.id, "dead")
    group = f"2 jobs of leave with the same arguments (#{call_of(held).digest})"
    assert str(held.error).startswith(f"held back: {group} have crashed within a day and were given up or held")
    assert str(held.error).endswith(f", the last of them {fallen[1].id}")
    assert held.stop_reason == "suspected"
    assert (held.crashes, held.failures, held.zombies) == (0, 0, 0)
    assert house.kinds(third.id) == ["released", "held"]
    assert house.events(third.id, "held")[0].detail == {"reason": f"{held.error}; a person decides"}


@on_every_store
def test_a_person_decides(house: House) -> None:
    """Who is approved runs; when those that fell are brought back and done, so do new ones."""
    task = declare(house)
    fallen = [fall(house, task) for _ in range(2)]
    house.start()
    held, second = task.enqueue(7), task.enqueue(7)
    house.until_state(held.id, "held")
    house.until_state(second.id, "held")
    house.app.resolve(held.id, "retry", by="ann")
    assert held.result(60) == 14
    third = task.enqueue(7)
    house.until_state(third.id, "held")
    house.app.revive(fallen[0].id, by="ann")
    house.until_state(fallen[0].id, "done")
    assert task.enqueue(7).result(60) == 14
    assert house.row(second.id).state == "held", "nobody has answered for it"


def test_one_that_is_cancelled_before_its_claim_is_known_is_not_started(house: House) -> None:
    ran: list[int] = []

    @house.app.task
    def note(number: int) -> None:
        ran.append(number)

    def lose_the_answer(jobs: list[Row]) -> None:
        """The same claim is asked for again, and answered with the job as it is by then."""
        for each in jobs:
            if not each.cancel_requested:
                house.app.cancel(each.id)
                raise StoreUnavailable("the answer was lost")

    job = note.enqueue(7)
    with house.store.after("claim", lose_the_answer):
        house.start()
        assert house.until_state(job.id, "cancelled").error == "cancelled before it started"
    assert ran == []


def test_one_that_is_asked_to_stop_is_cancelled_and_not_held(house: House) -> None:
    task = declare(house)
    for _ in range(2):
        fall(house, task)
    job = task.enqueue(7)
    with house.store.after("claim", lambda jobs: [house.app.cancel(each.id) for each in jobs]):
        house.start()
        row = house.until_state(job.id, "cancelled")
    assert "held" not in house.kinds(job.id)
    assert row.error is not None


def test_other_arguments_other_tasks_and_tasks_that_do_not_ask_for_it_are_started(house: House) -> None:
    task, other = declare(house), house.app.task(name="other", hold_after=2)(work)
    free = house.app.task(name="free", crashes_max=1)(work)
    for _ in range(2):
        fall(house, task)
        fall(house, free)
    house.start()
    assert [each.enqueue(7).result(60) for each in (other, free)] == [14, 14]
    assert task.enqueue(8).result(60) == 16
    house.until_state(task.enqueue(7).id, "held")


@pytest.mark.parametrize(
    ("outcomes", "state"),
    [
        ([ALONE], "done"),
        ([ALONE, Failed("boom")], "done"),
        ([ALONE, Succeeded("14")], "done"),
        ([ALONE, Lost("exit", "the store was away", {"isolated": True}, suspects=1, excused=True)], "done"),
        ([ALONE, WITH_OTHERS], "held"),
    ],
)
def test_which_crashes_count_against_a_call(house: House, outcomes: list[Outcome], state: str) -> None:
    task = declare(house, on_crash="hold")
    for outcome in outcomes:
        fall(house, task, outcome=outcome)
    house.start()
    house.until_state(task.enqueue(7).id, state)


@pytest.mark.parametrize(("workers", "state"), [(1, "done"), (2, "held")])
def test_jobs_that_were_lost_with_one_worker_died_one_death(house: House, workers: int, state: str) -> None:
    task = declare(house)
    hosts = [enrol(house.store) for _ in range(workers)]  # type: ignore[arg-type]
    for number in range(4):
        fall(house, task, outcome=WITH_OTHERS, worker=hosts[number % workers])
    house.start()
    house.until_state(task.enqueue(7).id, state)


def test_a_job_that_died_of_failures_after_a_crash_does_not_count(house: House) -> None:
    task = declare(house, crashes_max=3, retry=Retry(attempts_max=2, base_s=0.0, cap_s=0.0))
    for _ in range(2):
        crashed = fall(house, task)
        settle(house.store, again(house.store, crashed), Failed("boom"))  # type: ignore[arg-type]
        assert (house.row(crashed.id).state, house.row(crashed.id).crashes) == ("dead", 1)
    house.start()
    assert task.enqueue(7).result(60) == 14


def test_one_that_a_person_says_has_happened_does_not_count(house: House) -> None:
    task = declare(house, on_crash="hold")
    fallen = [fall(house, task) for _ in range(2)]
    house.start()
    house.until_state(task.enqueue(7).id, "held")
    house.app.resolve(fallen[1].id, "done", by="ann")
    assert task.enqueue(7).result(60) == 14


def test_what_is_decided_just_before_a_job_is_claimed_counts_for_it(house: House) -> None:
    task = declare(house, on_crash="hold")
    fallen = [fall(house, task) for _ in range(2)]

    def answer(*_: Any) -> None:
        if house.row(fallen[1].id).state == "held":
            house.app.resolve(fallen[1].id, "done", by="ann")

    job = task.enqueue(7)
    with house.store.before("claim", answer):
        house.start()
        assert job.result(60) == 14


def test_a_second_crash_counts_as_the_latest_whatever_an_older_attempt_reports(house: House) -> None:
    task = declare(house, on_crash="hold")
    frozen = again(house.store, house.row(task.enqueue(7).id))  # type: ignore[arg-type]
    settle(house.store, frozen, WITH_OTHERS)  # type: ignore[arg-type]
    fall(house, task)
    house.app.resolve(frozen.id, "retry", by="ann")
    settle(house.store, again(house.store, house.row(frozen.id)), ALONE)  # type: ignore[arg-type]
    settle(house.store, frozen, Succeeded())  # type: ignore[arg-type]
    assert house.kinds(frozen.id)[-1] == "stale_report"
    house.start()
    held = house.until_state(task.enqueue(7).id, "held")
    assert str(held.error).endswith(f"the last of them {frozen.id}")


def test_one_that_reported_after_all_had_not_crashed(house: House) -> None:
    task = declare(house)
    fall(house, task)
    frozen = again(house.store, house.row(task.enqueue(7).id))  # type: ignore[arg-type]
    settle(house.store, frozen, WITH_OTHERS)  # type: ignore[arg-type]
    settle(house.store, frozen, Succeeded())  # type: ignore[arg-type]
    assert row(house.store, frozen.id).state == "dead"  # type: ignore[arg-type]
    house.start()
    assert task.enqueue(7).result(60) == 14


def test_a_late_report_of_one_that_was_lost_and_runs_again_holds_nothing_back(house: House) -> None:
    task = declare(house, crashes_max=9, on_crash="retry")
    frozen = again(house.store, house.row(task.enqueue(7).id))  # type: ignore[arg-type]
    settle(house.store, frozen, WITH_OTHERS)  # type: ignore[arg-type]
    settle(house.store, frozen, Succeeded())  # type: ignore[arg-type]
    assert house.kinds(frozen.id) == ["zombie", "stale_report"]
    house.start()
    assert task.enqueue(7).result(60) == 14


def test_one_that_is_on_its_way_goes_on(house: House) -> None:
    """Only new ones are held: what has failed before has budgets of its own."""
    task = declare(house, retry=Retry(base_s=0.0, cap_s=0.0))
    failed, given_back = task.using(queue="failed").enqueue(7), task.using(queue="given_back").enqueue(7)
    for job, outcome in ((failed, Failed("boom")), (given_back, Released(started=False, cause="the worker stopped"))):
        settle(house.store, again(house.store, house.row(job.id)), outcome)  # type: ignore[arg-type]
    for _ in range(2):
        fall(house, task)
    house.start(queues=("failed", "given_back"))
    assert failed.result(60) == 14
    house.until_state(given_back.id, "held")


def test_longer_ago_than_a_day_is_forgotten(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    task = declare(house)
    for _ in range(2):
        fall(house, task)
    monkeypatch.setattr("holdfast.worker.admission.LATELY_S", -1.0)
    house.start()
    assert task.enqueue(7).result(60) == 14


def test_while_it_cannot_be_read_what_was_known_stays_so(house: House) -> None:
    task = declare(house)
    for _ in range(2):
        fall(house, task)
    house.start()
    house.until_state(task.enqueue(7).id, "held")

    def away(*_: Any) -> None:
        raise StoreUnavailable("the journal is away")

    with house.store.before("journal", away):
        assert task.enqueue(8).result(60) == 16
        job = task.enqueue(7)
        house.until_state(job.id, "held")


def test_nothing_is_read_for_tasks_that_do_not_ask_for_it_and_little_for_one_that_does(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, free = declare(house), house.app.task(name="free")(work)
    runner = house.start()
    assert [free.enqueue(number).result(60) for number in range(3)] == [0, 2, 4]
    assert house.store.calls["journal"] == 0
    house.stop(runner)
    monkeypatch.setattr("holdfast.worker.admission.REFRESH_S", 3600.0)
    for _ in range(2):
        fall(house, task)
    before = house.store.calls["find"]
    house.start()
    for _ in range(5):
        house.until_state(task.enqueue(7).id, "held")
    assert house.store.calls["journal"] == 1
    monkeypatch.setattr("holdfast.worker.admission.REFRESH_S", 0.0)
    house.until_state(task.enqueue(7).id, "held")
    looked = house.store.calls["journal"]
    house.until_state(task.enqueue(7).id, "held")
    assert house.store.calls["journal"] > looked
    rows = [where for (where,) in house.store.arguments_of("find")[before:] if where.ids]
    assert len(rows) == 1, "the rows of those that fell are read once"


@pytest.mark.parametrize("hold_after", [0, -1, True, 1.5, "3"])
def test_a_limit_that_is_none_is_refused(hold_after: Any) -> None:
    with pytest.raises(UsageError, match="hold_after="):
        App("memory://").task(hold_after=hold_after)(work)


def test_it_ends_a_wait_for_work_in_a_tick_too(house: House) -> None:
    task = declare(house)
    for _ in range(2):
        fall(house, task)
    job = task.enqueue(7)
    assert house.app.tick(budget_s=10).finished
    until(lambda: house.row(job.id).state == "held")
