"""What becomes of the branches of `flow.gather` when one of them fails, or the workflow is stopped."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import AsyncFlow, Flow, Retry
from holdfast.tasks import Task
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
        self._enter()
        try:
            while not self.may_end.is_set():
                time.sleep(0.01)
        finally:
            self.at_work -= 1

    def in_c(self) -> None:
        """Be where no interrupt gets through."""
        self._enter()
        try:
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


@pytest.mark.parametrize("form", FORMS)
def test_a_step_in_a_branch_never_runs_beside_its_own_next_attempt(one_house: House, form: str) -> None:
    work, twice = Work(), Retry(attempts_max=2, base_s=0.0)
    job = flows(one_house, form, work, work.in_python, timeout_s=0.3, retry=twice).enqueue()
    one_house.start(slots=2)
    one_house.until_state(job.id, "rolled_back")
    work.may_end.set()
    assert (work.begun, work.at_once, work.undone) == (2, 1, [0])


@pytest.mark.parametrize("form", FORMS)
def test_nothing_is_undone_while_a_branch_that_cannot_be_stopped_goes_on(one_house: House, form: str) -> None:
    work = Work()
    job = flows(one_house, form, work, work.in_c, timeout_s=0.3, retry=Retry(attempts_max=1)).enqueue()
    one_house.start(slots=2)
    try:
        held = one_house.until_state(job.id, "held")
        assert "nothing is undone beside it" in str(held.error)
        assert work.undone == []
    finally:
        work.may_end.set()
    until(lambda: work.at_work == 0, "the step ends")
    one_house.app.rollback(job.id)
    one_house.until_state(job.id, "rolled_back")
    assert work.undone == [0]
