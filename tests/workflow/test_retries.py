"""Steps that are tried again: they pause without a slot, and their tries are counted whoever runs the next one."""

import asyncio
import threading
from typing import Any

import pytest

from holdfast import AsyncFlow, Flow, JobDead, PayloadError, Retry, insight
from holdfast.cli import job_page
from holdfast.core.records import Step
from holdfast.core.verdict import Lost
from tests.factory import awaiting, settlement
from tests.worker.house import House, until

ONCE = Retry(attempts_max=1)
QUICK = Retry(attempts_max=3, base_s=0.0, cap_s=0.0)
LONG = Retry(attempts_max=3, base_s=3600.0)  # nobody waits for it
PARKS = Retry(attempts_max=3, base_s=2.5, cap_s=2.5, jitter="none")  # on a slow machine more than a second is left


class Flaky:
    """A function that raises a few times before it returns."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.runs = 0

    def __call__(self, what: str = "x") -> str:
        self.runs += 1
        if self.runs <= self.failures:
            raise OSError(f"down {self.runs}")
        return what.upper()

    def undo(self, result: str | None, what: str = "x") -> None: ...


def the_step(house: House, job_id: str, name: str = "flaky") -> Step:
    return next(step for step in house.app.steps(job_id) if step.name == name)


def parked(house: House, job_id: str, tries: int = 1) -> Any:
    def is_parked() -> Any:
        row = house.row(job_id)
        return row.state == "waiting" and the_step(house, job_id).tries == tries and row

    return until(is_parked, "it pauses without a slot")


def lose(house: House, job_id: str) -> None:
    """Settle the running attempt as its reaper would: its worker is lost."""
    lost = settlement(house.row(job_id), Lost("exit", "killed"), now=house.store.now().wall)
    assert house.store.real.settle([lost]) == ["accepted"]


@pytest.mark.parametrize("form", ["sync", "async"])
@pytest.mark.slow  # a pause that parks is longer than a second
def test_a_long_pause_between_two_tries_leaves_the_slot_and_costs_no_budget(house: House, form: str) -> None:
    flaky = Flaky(1)

    @house.app.workflow(name="sync", retry=ONCE)
    def sync(flow: Flow) -> str:
        return flow.step(flaky, "a", retry=PARKS, name="flaky")

    @house.app.workflow(name="async", retry=ONCE)
    async def loop(flow: AsyncFlow) -> str:
        async def later() -> str:
            await asyncio.sleep(0)
            return flaky("a")

        return await flow.step(later, retry=PARKS, name="flaky")

    @house.app.task(name="other")
    def other() -> int:
        return 1

    house.start(slots=1)
    job = {"sync": sync, "async": loop}[form].enqueue()
    row = parked(house, job.id)
    step = the_step(house, job.id)
    assert (row.worker, row.lease_until, row.failures, row.crashes) == (None, None, 0, 0)
    assert (step.state, step.tries, step.retry_at) == ("started", 1, row.wake_at)
    assert (step.error, step.error_kind) == ("OSError: down 1", "OSError")
    assert row.awaits == awaiting("step:1/3:flaky")
    assert other.enqueue().result(60) == 1
    assert job.result(60) == "A"
    step = the_step(house, job.id)
    assert (step.state, step.tries, step.retry_at, step.error, step.error_kind) == ("recorded", 2, None, None, None)
    assert step.started_at is not None
    assert step.started_at >= row.wake_at
    assert (flaky.runs, house.row(job.id).failures, house.row(job.id).attempt) == (2, 0, 2)


def test_a_short_pause_stays_in_the_slot_and_the_tries_are_recorded(house: House) -> None:
    flaky = Flaky(2)

    @house.app.workflow(name="w", retry=ONCE)
    def work(flow: Flow) -> list[str]:
        return [flow.step(flaky, "a", retry=QUICK, name="flaky"), flow.step(str, 5, name="plain")]

    house.start()
    job = work.enqueue()
    assert job.result(60) == ["A", "5"]
    assert house.row(job.id).attempt == 1
    assert [(step.name, step.tries) for step in house.app.steps(job.id)] == [("flaky", 3), ("plain", 1)]


@pytest.mark.parametrize("options", [{}, {"undo": True}], ids=["plain", "with an undo"])
def test_a_workflow_whose_worker_stops_during_the_pause_waits_for_the_rest_of_it(
    house: House, options: dict[str, Any]
) -> None:
    flaky = Flaky(1)

    @house.app.workflow(name="w", retry=ONCE)
    def work(flow: Flow) -> list[Any]:
        undo = flaky.undo if options else None
        return flow.gather(lambda: flow.step(flaky, "a", retry=LONG, name="flaky", undo=undo), lambda: flow.wait("go"))

    first = house.start(name="first")
    job = work.enqueue()
    row, step = parked(house, job.id), the_step(house, job.id)
    house.stop(first)
    house.start(name="second")
    house.app.signal(job.id, "go", 1)  # it is run again, and not because of the pause
    again = until(lambda: house.row(job.id).attempt == 2 and parked(house, job.id), "it pauses again")
    assert again.wake_at == row.wake_at == step.retry_at
    assert flaky.runs == 1
    assert the_step(house, job.id).tries == 1


def test_a_death_between_two_tries_of_a_step_that_must_not_be_repeated_asks_nobody(house: House) -> None:
    """Its function has raised, so nothing of it is at work; the next attempt goes on counting."""
    flaky = Flaky(2)
    lost: list[str | None] = []

    @house.app.workflow(name="w", retry=QUICK, on_crash="retry")
    def work(flow: Flow) -> str:
        return flow.step(flaky, "a", retry=QUICK, repeatable=False, name="flaky")

    def die(*_: Any) -> None:
        row = house.row(job.id)
        if not lost and row.state == "running" and the_step(house, job.id).retry_at is not None:
            lost.append(row.open_step)
            lose(house, job.id)

    job = work.enqueue()
    with house.store.after("record", die):
        house.start()
        assert job.result(60) == "A"
    assert lost == [None]
    assert (flaky.runs, the_step(house, job.id).tries, house.row(job.id).crashes) == (3, 3, 1)
    assert "held" not in house.kinds(job.id)


def test_a_death_in_the_second_try_of_a_step_that_must_not_be_repeated_is_held(house: House) -> None:
    flaky, inside, go = Flaky(1), threading.Event(), threading.Event()

    def charge() -> str:
        if flaky.runs:
            inside.set()
            assert go.wait(60)
        return flaky("a")

    @house.app.workflow(name="w", retry=QUICK, on_crash="retry")
    def work(flow: Flow) -> str:
        return flow.step(charge, retry=QUICK, repeatable=False, name="flaky")

    house.start()
    job = work.enqueue()
    try:
        assert inside.wait(60)
        step = the_step(house, job.id)
        assert (house.row(job.id).open_step, step.tries, step.retry_at, step.error) == ("flaky", 1, None, None)
        lose(house, job.id)
        assert house.until_state(job.id, "held").stop_reason == "open_step"
    finally:
        go.set()


def test_when_the_tries_are_used_up_the_error_goes_to_the_code(house: House) -> None:
    flaky = Flaky(9)

    @house.app.workflow(name="w", retry=ONCE)
    def work(flow: Flow) -> str:
        try:
            return flow.step(flaky, retry=QUICK, name="flaky")
        except OSError as error:
            return flow.step(str, error, name="after")

    house.start()
    job = work.enqueue()
    assert job.result(60) == "down 3"
    step = the_step(house, job.id)
    assert (flaky.runs, step.state, step.tries, step.error) == (3, "recorded", 3, "OSError: down 3")


def test_a_workflow_that_is_run_again_after_a_failure_gives_a_step_all_its_tries_again(house: House) -> None:
    flaky = Flaky(5)

    @house.app.workflow(name="w", retry=Retry(attempts_max=2, base_s=0.0, cap_s=0.0))
    def work(flow: Flow) -> str:
        return flow.step(flaky, "a", retry=QUICK, name="flaky")

    house.start()
    job = work.enqueue()
    assert job.result(60) == "A"
    assert (flaky.runs, house.row(job.id).failures, the_step(house, job.id).tries) == (6, 1, 3)


def test_the_last_error_of_a_step_that_must_not_be_repeated_is_final(house: House) -> None:
    flaky = Flaky(9)

    @house.app.workflow(name="w", retry=QUICK)
    def work(flow: Flow) -> str:
        return flow.step(flaky, retry=QUICK, repeatable=False, name="flaky")

    house.start()
    job = work.enqueue()
    with pytest.raises(JobDead, match="down 3"):
        job.result(60)
    assert (flaky.runs, the_step(house, job.id).tries) == (3, 3)


def test_a_step_that_pauses_may_have_happened_and_is_undone(house: House) -> None:
    flaky, undone = Flaky(1), []

    @house.app.workflow(name="w", retry=ONCE)
    def work(flow: Flow) -> str:
        return flow.step(flaky, "a", retry=LONG, undo=lambda result, what: undone.append((result, what)), name="flaky")

    house.start()
    job = work.enqueue()
    parked(house, job.id)
    house.app.rollback(job.id, by="ann")
    house.until_state(job.id, "rolled_back")
    assert (undone, flaky.runs, the_step(house, job.id).state) == ([(None, "a")], 1, "undone")


def test_a_result_that_cannot_be_recorded_is_no_reason_to_do_it_again(one_house: House) -> None:
    runs: list[int] = []

    def odd() -> object:
        runs.append(1)
        return object()

    @one_house.app.workflow(name="w", retry=ONCE)
    def work(flow: Flow) -> str:
        try:
            flow.step(odd, retry=QUICK)
        except PayloadError:
            return "no"
        return "yes"

    one_house.start()
    assert work.enqueue().result(60) == "no"
    assert runs == [1]


def test_a_step_that_succeeds_at_once_costs_one_record_whatever_its_retry(one_house: House) -> None:
    @one_house.app.workflow(name="w", retry=ONCE)
    def work(flow: Flow) -> str:
        return flow.step(str, 1, retry=LONG)

    one_house.start()
    job = work.enqueue()
    assert job.result(60) == "1"
    assert sum(len(records) for (records,) in one_house.store.arguments_of("record")) == 1


@pytest.mark.parametrize("form", ["sync", "async"])
@pytest.mark.parametrize("retry", [None, QUICK])
def test_the_step_by_which_a_workflow_failed_is_told_when_it_has_ended(
    house: House, form: str, retry: Retry | None, capsys: pytest.CaptureFixture[str]
) -> None:
    tries = 1 if retry is None else 3

    @house.app.workflow(name="sync", retry=ONCE)
    def sync(flow: Flow) -> str:
        flow.now()
        return flow.step(Flaky(9), retry=retry, name="flaky")

    @house.app.workflow(name="async", retry=ONCE)
    async def loop(flow: AsyncFlow) -> str:
        await flow.now()
        return await flow.step(Flaky(9), retry=retry, name="flaky")

    house.start()
    job = {"sync": sync, "async": loop}[form].enqueue()
    with pytest.raises(JobDead, match="down"):
        job.result(60)
    row, events = house.row(job.id), house.store.journal(job.id)
    for shown in (insight.job_story(house.store, row), insight.workflow_view(house.store, row, events, {})):
        first, failed = shown["steps"]
        assert (first["name"], first["error"]) == ("now", None)
        assert (failed["name"], failed["tries"], failed["state"]) == ("flaky", tries, "started")
        assert failed["error"] == f"OSError: down {tries}"
    job_page.tell(house.store, row)
    told = capsys.readouterr().out
    assert "(1 step on record, 1 failed)" in told
    assert [line.split()[:3] for line in told.splitlines() if " flaky " in line] == [["2", "flaky", "failed"]]
    assert f"raised OSError: down {tries}" in told
    assert ("tried 3 times" in told) is (tries == 3)


def test_a_step_that_failed_once_and_was_run_again_is_not_told_as_failed(house: House) -> None:
    flaky = Flaky(1)

    @house.app.workflow(retry=Retry(attempts_max=2, base_s=0.0, cap_s=0.0))
    def again(flow: Flow) -> str:
        return flow.step(flaky, name="flaky")

    house.start()
    job = again.enqueue()
    assert job.result(60) == "X"
    [step] = insight.job_story(house.store, house.row(job.id))["steps"]
    assert (step["state"], step["error"], step["tries"]) == ("recorded", None, 1)
