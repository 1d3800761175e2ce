"""What a step raised is the same for the code at once and in every replay."""

import asyncio
import subprocess
from decimal import Decimal
from typing import Any

import pytest

from holdfast import AsyncFlow, Flow, JobDead, Retry, StepFailed
from holdfast.workflow.raised import VALUES_MAX, raised, written
from tests.worker.house import House
from tests.workflow.raising import ApiError, Base, HasResponse, Slotted, exceptions

QUICK = Retry(attempts_max=2, base_s=0.0, cap_s=0.0)
ONCE = Retry(attempts_max=1)


def attribute(error: BaseException, name: str) -> Any:
    try:
        return getattr(error, name, None)
    except KeyError:  # the HTTPError of the standard library, without its file
        return "KeyError"


def seen(error: BaseException) -> Any:
    """All that code can ask an exception for, but its class where that is a stand-in."""
    kinds = [each.__name__ for each in type(error).__mro__ if each.__module__ == "builtins"]
    inner = [seen(each) for each in error.exceptions] if isinstance(error, BaseExceptionGroup) else []
    known = [attribute(error, name) for name in ("errno", "strerror", "filename", "name", "start", "amount")]
    args = [seen(each) if isinstance(each, Exception) else each for each in error.args if not isinstance(each, list)]
    attributes = {key: each for key, each in vars(error).items() if not isinstance(each, Exception)}
    return type(error).__name__, str(error), kinds, args, attributes, known, inner


class Wrapping(Exception):
    """Keeps the inner error three times, as many libraries do."""

    def __init__(self, inner: Exception) -> None:
        super().__init__(inner)
        self.inner = self.original = inner


def test_the_record_of_errors_that_wrap_each_other_stays_small() -> None:
    error: Exception = ValueError("leaf")
    for _ in range(12):
        error = Wrapping(error)
    said, whole = written(error)
    assert not whole
    assert str(said).count("kinds") <= VALUES_MAX
    assert "leaf" in str(raised("step", said))


def test_errors_that_wrap_each_other_a_few_times_are_recorded_whole() -> None:
    error = Wrapping(Wrapping(ValueError("leaf")))
    said, whole = written(error)
    assert whole
    assert raised("step", said).inner.original.args == ("leaf",)  # type: ignore[attr-defined]


@pytest.mark.parametrize("repeatable", [True, False])
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_what_a_step_raises_is_the_same_at_once_and_in_a_replay(one_house: House, kind: str, repeatable: bool) -> None:
    got: dict[str, list[Any]] = {}
    ran: list[str] = []

    def boom(name: str) -> None:
        ran.append(name)
        raise exceptions()[name]

    def note(name: str, error: Exception) -> None:
        got.setdefault(name, []).append(seen(error))

    @one_house.app.workflow(name="sync", retry=QUICK)
    def sync(flow: Flow) -> None:
        for name in exceptions():
            try:
                flow.step(boom, name, repeatable=repeatable)
            except Exception as error:
                note(name, error)
        flow.step(lambda: 1, name="last")
        if flow.ctx.attempt == 1:
            raise OSError("again")

    @one_house.app.workflow(name="async", retry=QUICK)
    async def loop(flow: AsyncFlow) -> None:
        for name in exceptions():
            try:
                await flow.step(boom, name, repeatable=repeatable)
            except Exception as error:
                note(name, error)
        await flow.step(lambda: 1, name="last")
        if flow.ctx.attempt == 1:
            raise OSError("again")

    one_house.start()
    (sync if kind == "sync" else loop).enqueue().result(60)
    assert ran == list(exceptions())
    for name, both in got.items():
        assert both[0] == both[1], name


def test_an_exception_that_can_be_rebuilt_is_raised_as_it_is(one_house: House) -> None:
    """Its traceback, its cause and its identity are those of the step."""
    error = ApiError(404, "gone")

    def boom() -> None:
        raise error from ValueError("the cause")

    @one_house.app.workflow(name="w", retry=ONCE)
    def work(flow: Flow) -> bool:
        try:
            flow.step(boom)
        except ApiError as caught:
            return caught is error and isinstance(caught.__cause__, ValueError)
        return False

    one_house.start()
    assert work.enqueue().result(60) is True


def test_code_can_ask_a_replayed_exception_what_it_could_ask_the_first_one(house: House) -> None:
    notes: list[Any] = []
    ends: list[int] = []

    @house.app.task(retry=ONCE, name="child")
    def child() -> None:
        raise ValueError("no luck")

    def fail(which: str) -> None:
        raise exceptions()[which]

    @house.app.workflow(name="w", retry=QUICK)
    def work(flow: Flow) -> None:
        try:
            flow.step(fail, "a group")
        except* ValueError as group:
            notes.append(str(group.exceptions[0]))
        except* ApiError as group:
            notes.append(group.exceptions[0].exceptions[0].status)  # type: ignore[union-attr]
        try:
            flow.step(fail, "a process")
        except subprocess.CalledProcessError as error:
            notes.append((error.returncode, error.cmd, error.output))
        try:
            flow.step(fail, "with slots")
        except Slotted as error:
            notes.append(error.amount)
        try:
            flow.step(fail, "made at run time")
        except Base as error:
            notes.append(str(error))
        job = flow.start(child)
        try:
            flow.result(job)
        except JobDead as error:
            notes.append((error.job_id == job.id, str(error.error).partition(";")[0]))
        flow.step(lambda: 1, name="last")
        ends.append(1)
        if len(ends) == 1:
            raise OSError("again")

    house.start()
    work.enqueue().result(60)
    first = ["a", 1, (3, ["false", "-x"], b"out"), Decimal("1.50"), "gone", (True, "ValueError: no luck")]
    assert notes[-6:] == first
    assert notes[:5] == first[:5]
    assert len(ends) == 2


def test_what_no_record_can_hold_is_missing_at_once_and_the_message_stays() -> None:
    said, whole = written(exceptions()["a response"])
    again = raised("step", said)
    assert isinstance(again, HasResponse)
    assert not whole
    assert str(again) == "the server said no"
    assert again.code == 503
    assert not hasattr(again, "response")


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_class_that_no_replay_can_find_comes_as_step_failed_at_once(one_house: House, kind: str) -> None:
    class Gone(Exception):
        pass

    def boom() -> None:
        raise Gone("bye")

    @one_house.app.workflow(name="sync", retry=ONCE)
    def sync(flow: Flow) -> str:
        try:
            flow.step(boom)
        except StepFailed as error:
            return f"{error.kind.rpartition('.')[2]} {error}"
        return ""

    @one_house.app.workflow(name="async", retry=ONCE)
    async def loop(flow: AsyncFlow) -> str:
        try:
            await flow.step(boom)
        except StepFailed as error:
            return f"{error.kind.rpartition('.')[2]} {error}"
        return ""

    one_house.start()
    said = (sync if kind == "sync" else loop).enqueue().result(60)
    assert said.startswith("Gone step 'boom' failed: ")
    assert said.endswith(".Gone: bye")


def test_an_error_that_leaves_the_workflow_keeps_its_text_and_the_lines_of_the_step(one_house: House) -> None:
    def boom() -> None:
        raise exceptions()["a response"]

    @one_house.app.workflow(name="w", retry=ONCE)
    def work(flow: Flow) -> None:
        flow.step(boom)

    one_house.start()
    job = work.enqueue()
    row = one_house.until_state(job.id, "dead")
    assert str(row.error).startswith("HasResponse: the server said no")
    (failed,) = one_house.events(job.id, "failed")
    assert "in boom\n" in failed.detail["traceback"]
    assert "another exception" not in failed.detail["traceback"]


def test_an_exception_is_raised_again_from_its_class_and_message_alone() -> None:
    again = raised("step", {"kinds": ["ValueError"], "text": "no"})
    assert (type(again), again.args) == (ValueError, ("no",))
    gone = raised("step", {"kinds": ["elsewhere.Gone"], "text": "bye"})
    assert isinstance(gone, StepFailed)
    assert str(gone) == "step 'step' failed: elsewhere.Gone: bye"


def test_an_async_step_that_raises_a_group_of_its_own_tasks_is_caught_in_a_replay(one_house: House) -> None:
    async def fan_out() -> None:
        async def bad() -> None:
            raise ValueError("a")

        async with asyncio.TaskGroup() as group:
            group.create_task(bad())

    @one_house.app.workflow(name="w", retry=QUICK)
    async def work(flow: AsyncFlow) -> str:
        said = ""
        try:
            await flow.step(fan_out)
        except* ValueError as group:
            said = str(group.exceptions[0])
        await flow.step(lambda: 1, name="last")
        if flow.ctx.attempt == 1:
            raise OSError("again")
        return said

    one_house.start()
    assert work.enqueue().result(60) == "a"
