"""What becomes of the branches of `flow.gather` when one of them fails, or the workflow is stopped."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import AsyncFlow, Flow, Retry, Rollback
from holdfast.core.row_text import Awaited
from holdfast.tasks import Task
from holdfast.worker.runner import Runner
from holdfast.workflow.async_driver import STEPS_MAX
from tests.worker.house import House, until

FORMS = ["sync", "async"]


class Work:
    """A step that a test can look at: how often it was begun, and whether it is at work."""

    def __init__(self) -> None:
        self.begun = 0
        self.at_work = 0
        self.at_once = 0  # how many were at work at the same time
        self.inside = threading.Event()
        self.may_end = threading.Event()
        self.undone: list[int] = []  # how many were at work when it was undone

    def in_python(self) -> None:
        """Work until it is interrupted."""
        try:
            self._enter()
            while not self.may_end.is_set():
                time.sleep(0.01)
        finally:
            self.at_work -= 1

    def in_c(self) -> None:
        """Be where no interrupt gets through."""
        try:
            self._enter()
            self.may_end.wait(60)
        finally:
            self.at_work -= 1

    def _enter(self) -> None:
        self.begun += 1
        self.at_work += 1
        self.at_once = max(self.at_once, self.at_work)
        self.inside.set()

    def undo(self, result: None) -> None:
        self.undone.append(self.at_work)


def flows(house: House, form: str, work: Work, fn: Callable[[], None], **options: Any) -> Task[..., Any]:
    """Declare a workflow of two branches: one works, one is done at once."""

    @house.app.workflow(name="sync", **options)
    def sync(flow: Flow) -> None:
        flow.gather(lambda: flow.step(fn, undo=work.undo, name="work"), lambda: flow.step(int, name="quick"))

    @house.app.workflow(name="async", **options)
    async def loop(flow: AsyncFlow) -> None:
        await flow.gather(lambda: flow.step(fn, undo=work.undo, name="work"), lambda: flow.step(int, name="quick"))

    return sync if form == "sync" else loop


@pytest.mark.parametrize("form", FORMS)
def test_a_branch_stops_before_the_cancelled_workflow_has_ended(one_house: House, form: str) -> None:
    work = Work()
    job = flows(one_house, form, work, work.in_python).enqueue()
    one_house.start()
    assert work.inside.wait(60)
    one_house.app.cancel(job.id)
    one_house.until_state(job.id, "cancelled")
    assert work.at_work == 0
    work.may_end.set()


def time_is_up(runner: Runner) -> None:
    """Let what runs have reached its `timeout_s`."""
    for attempt in runner._heartbeat.all():
        attempt.activity.deadline = 0.0


@pytest.mark.parametrize("form", FORMS)
def test_a_step_in_a_branch_never_runs_beside_its_own_next_attempt(
    one_house: House, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.worker.time_limits.ABANDON_S", 60.0)  # the step stops by itself
    work, twice = Work(), Retry(attempts_max=2, base_s=0.0)
    job = flows(one_house, form, work, work.in_python, timeout_s=600, retry=twice).enqueue()
    runner = one_house.start(slots=2)
    for times in (1, 2):
        until(lambda times=times: work.begun == times, "the step begins")  # type: ignore[misc]
        time_is_up(runner)
    one_house.until_state(job.id, "rolled_back")
    work.may_end.set()
    assert (work.begun, work.at_once, work.undone) == (2, 1, [0])


@pytest.mark.parametrize("form", FORMS)
def test_nothing_is_undone_while_a_branch_that_cannot_be_stopped_goes_on(
    one_house: House, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.worker.time_limits.ABANDON_S", 0.2)
    work = Work()
    job = flows(one_house, form, work, work.in_c, timeout_s=600, retry=Retry(attempts_max=1)).enqueue()
    runner = one_house.start(slots=2)
    assert work.inside.wait(60)
    time_is_up(runner)
    try:
        held = one_house.until_state(job.id, "held")
        assert held.stop_reason == "still_running"
        assert work.undone == []
    finally:
        work.may_end.set()
    until(lambda: work.at_work == 0, "the step ends")
    one_house.app.rollback(job.id)
    one_house.until_state(job.id, "rolled_back")
    assert work.undone == [0]


class Shop:
    """What the steps of an order did."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.has_stock = False

    def do(self, what: str) -> str:
        self.lines.append(what)
        return what

    def check(self) -> str:
        self.lines.append("check")
        if not self.has_stock:
            raise ValueError("no stock")
        return "in stock"


def waits(house: House, job_id: str, *awaits: str) -> None:
    def does() -> bool:
        row = house.row(job_id)
        return row.state == "waiting" and sorted(row.awaits or ()) == [Awaited("signal", name) for name in awaits]

    until(does, f"it waits for {awaits}")


@pytest.mark.parametrize("tells", [True, False], ids=["a step comes next", "a wait comes next"])
@pytest.mark.parametrize("form", [*FORMS, "async, awaitables"])
def test_a_branch_that_waited_when_another_one_failed_does_nothing_more(house: House, form: str, tells: bool) -> None:
    shop = Shop()

    @house.app.workflow(name="sync")
    def sync(flow: Flow) -> str:
        def pay() -> None:
            flow.wait("approval")
            flow.step(shop.do, "charge", name="charge")

        try:
            flow.gather(pay, lambda: flow.step(shop.check))
        except ValueError:
            if tells:
                flow.step(shop.do, "withdrawn", name="tell")
            flow.wait("later")
            return "withdrawn"
        return "paid"

    @house.app.workflow(name="async")
    async def loop(flow: AsyncFlow) -> str:
        async def pay() -> None:
            await flow.wait("approval")
            await flow.step(shop.do, "charge", name="charge")

        try:
            if form == "async":
                await flow.gather(pay, lambda: flow.step(shop.check))
            else:
                await flow.gather(flow.wait("approval"), flow.step(shop.check))
                await flow.step(shop.do, "charge", name="charge")
        except ValueError:
            if tells:
                await flow.step(shop.do, "withdrawn", name="tell")
            await flow.wait("later")
            return "withdrawn"
        return "paid"

    house.start()
    job = (sync if form == "sync" else loop).enqueue()
    waits(house, job.id, "later")
    house.app.signal(job.id, "approval", True)
    house.app.signal(job.id, "later")
    assert job.result(60) == "withdrawn"
    assert shop.lines == ["check", "withdrawn"] if tells else ["check"]


@pytest.mark.slow  # it sleeps until the other branch has failed for certain
@pytest.mark.parametrize("form", FORMS)
def test_a_branch_that_slept_when_another_one_failed_does_nothing_more(one_house: House, form: str) -> None:
    shop = Shop()

    @one_house.app.workflow(name="sync")
    def sync(flow: Flow) -> str:
        def remind() -> None:
            flow.sleep(5)
            flow.step(shop.do, "remind", name="remind")

        try:
            flow.gather(lambda: flow.gather(remind), lambda: flow.step(shop.check))
        except ValueError:
            flow.sleep(5.3)
        return "withdrawn"

    @one_house.app.workflow(name="async")
    async def loop(flow: AsyncFlow) -> str:
        async def remind() -> None:
            await flow.sleep(5)
            await flow.step(shop.do, "remind", name="remind")

        try:
            await flow.gather(lambda: flow.gather(remind), lambda: flow.step(shop.check))
        except ValueError:
            await flow.sleep(5.3)
        return "withdrawn"

    one_house.start()
    assert (sync if form == "sync" else loop).enqueue().result(60) == "withdrawn"
    assert shop.lines == ["check"]


@pytest.mark.parametrize("form", FORMS)
def test_a_failure_inside_a_branch_that_goes_on_is_recorded_before_the_workflow_waits(
    one_house: House, form: str
) -> None:
    shop = Shop()

    @one_house.app.workflow(name="sync")
    def sync(flow: Flow) -> list[Any]:
        def pay() -> None:
            flow.wait("approval")
            flow.step(shop.do, "charge", name="charge")

        def order() -> str:
            try:
                flow.gather(pay, lambda: flow.step(shop.check))
            except ValueError:
                return "withdrawn"
            return "paid"

        return flow.gather(order, lambda: flow.wait("later"))

    @one_house.app.workflow(name="async")
    async def loop(flow: AsyncFlow) -> list[Any]:
        async def pay() -> None:
            await flow.wait("approval")
            await flow.step(shop.do, "charge", name="charge")

        async def order() -> str:
            try:
                await flow.gather(pay, lambda: flow.step(shop.check))
            except ValueError:
                return "withdrawn"
            return "paid"

        return await flow.gather(order, lambda: flow.wait("later"))

    one_house.start()
    job = (sync if form == "sync" else loop).enqueue()
    waits(one_house, job.id, "later")
    one_house.app.signal(job.id, "approval", True)
    one_house.app.signal(job.id, "later", 1)
    assert job.result(60) == ["withdrawn", 1]
    assert shop.lines == ["check"]


@pytest.mark.parametrize("form", FORMS)
def test_a_failed_branch_is_told_while_another_one_waits(house: House, form: str) -> None:
    """It counts against the budget of the workflow, and a `Rollback` rolls back at once."""
    shop, twice = Shop(), Retry(attempts_max=2, base_s=0.0)

    def undo(result: str | None, what: str) -> None:
        shop.do(f"undo {what}")

    @house.app.workflow(name="sync", retry=twice)
    def sync(flow: Flow, rolls_back: bool) -> None:
        def fails() -> None:
            if rolls_back:
                flow.step(shop.do, "book", undo=undo)
                raise Rollback("enough")
            flow.step(shop.check)

        flow.gather(fails, lambda: flow.wait("never"))

    @house.app.workflow(name="async", retry=twice)
    async def loop(flow: AsyncFlow, rolls_back: bool) -> None:
        async def fails() -> None:
            if rolls_back:
                await flow.step(shop.do, "book", undo=undo)
                raise Rollback("enough")
            await flow.step(shop.check)

        await flow.gather(fails, lambda: flow.wait("never"))

    house.start()
    task = sync if form == "sync" else loop
    house.until_state(task.enqueue(False).id, "dead")
    assert shop.lines == ["check", "check"]
    house.until_state(task.enqueue(True).id, "rolled_back")
    assert shop.lines == ["check", "check", "book", "undo book"]


def test_on_the_loop_a_dropped_branch_that_catches_its_cancellation_does_nothing_more(one_house: House) -> None:
    shop = Shop()

    @one_house.app.workflow(name="w")
    async def work(flow: AsyncFlow) -> str:
        async def stubborn() -> None:
            with contextlib.suppress(asyncio.CancelledError):
                await flow.gather(nested)
            with contextlib.suppress(asyncio.CancelledError):
                await flow.step(shop.do, "cleanup", name="cleanup")
            await asyncio.sleep(3600)

        async def nested() -> None:
            await flow.wait("approval")

        try:
            await flow.gather(stubborn, lambda: flow.step(shop.check))
        except ValueError:
            await flow.wait("later")
        return "withdrawn"

    one_house.start()
    job = work.enqueue()
    waits(one_house, job.id, "later")
    one_house.app.signal(job.id, "approval")
    one_house.app.signal(job.id, "later")
    assert job.result(60) == "withdrawn"
    assert shop.lines == ["check"]


@pytest.mark.parametrize("form", FORMS)
def test_a_gather_that_failed_and_does_not_fail_again_is_held_until_a_person_goes_back(
    one_house: House, form: str
) -> None:
    fails = [True]

    def strict() -> None:
        if fails[0]:
            raise ValueError("no stock")

    @one_house.app.workflow(name="sync")
    def sync(flow: Flow) -> str:
        try:
            flow.gather(lambda: flow.wait("approval"), strict)
        except ValueError:
            flow.wait("later")
            return "withdrawn"
        return "paid"

    @one_house.app.workflow(name="async")
    async def loop(flow: AsyncFlow) -> str:
        try:
            await flow.gather(lambda: flow.wait("approval"), strict)
        except ValueError:
            await flow.wait("later")
            return "withdrawn"
        return "paid"

    one_house.start()
    job = (sync if form == "sync" else loop).enqueue()
    waits(one_house, job.id, "later")
    fails[0] = False
    one_house.app.signal(job.id, "later")
    assert "now no branch of it fails" in str(one_house.until_state(job.id, "held").error)
    one_house.app.signal(job.id, "approval")
    one_house.app.retry_from(job.id, "gather")
    assert job.result(60) == "paid"


@pytest.mark.parametrize("form", FORMS)
def test_a_caught_failure_is_recorded_before_the_workflow_waits(house: House, form: str) -> None:
    shop = Shop()

    @house.app.workflow(name="sync")
    def sync(flow: Flow) -> str:
        with contextlib.suppress(ValueError):
            flow.step(shop.check)
        return str(flow.wait("go"))

    @house.app.workflow(name="async")
    async def loop(flow: AsyncFlow) -> str:
        with contextlib.suppress(ValueError):
            await flow.step(shop.check)
        return str(await flow.wait("go"))

    house.start()
    job = (sync if form == "sync" else loop).enqueue()
    waits(house, job.id, "go")
    house.app.signal(job.id, "go", 1)
    assert job.result(60) == "1"
    assert shop.lines == ["check"]


def test_a_workflow_whose_many_branches_block_delays_no_other_workflow(one_house: House) -> None:
    work = Work()

    @one_house.app.workflow()
    async def wide(flow: AsyncFlow) -> None:
        await flow.gather(*[lambda: flow.step(work.in_c, name="work") for _ in range(STEPS_MAX + 1)])

    @one_house.app.workflow()
    async def other(flow: AsyncFlow) -> int:
        return await flow.step(int, "7")

    one_house.start(slots=2)
    blocked = wide.enqueue()
    until(lambda: work.at_work == STEPS_MAX, "as many branches as may are at work")
    try:
        assert other.enqueue().result(timeout=30) == 7  # shorter than the branches block
    finally:
        work.may_end.set()
    one_house.until_state(blocked.id, "done")
    assert work.begun == STEPS_MAX + 1
    assert work.at_once == STEPS_MAX
