"""Tracebacks and stacks: the frames of the author of a task, and of ours only those that may tell something."""

import copy
import re
import threading
import time
from typing import Any

import pytest

from holdfast import AsyncFlow, Context, Flow, Retry
from holdfast.core import durations
from holdfast.errors import UsageError
from holdfast.runtime.tracebacks import FRAMES_MAX, stack_text, trace_of, user_frames
from tests.worker.house import House, until

ONCE = Retry(attempts_max=1)


def inner(text: str) -> int:
    return int(text)


def frames_of(text: str) -> list[str]:
    """The functions that a traceback shows, in its order."""
    return re.findall(r'File ".*", line \d+, in (\w+)', text)


def trace(house: House, job_id: str) -> str:
    until(lambda: house.row(job_id).state == "dead", "it has failed for good")
    [failed] = [event for event in house.events(job_id) if event.kind == "failed"]
    return str(failed.detail["traceback"])


def test_a_task_is_shown_without_what_called_it(house: House) -> None:
    @house.app.task(name="t", retry=ONCE)
    def task() -> int:
        return inner("x")

    house.start()
    text = trace(house, task.enqueue().id)
    assert frames_of(text) == ["task", "inner"]
    assert text.startswith("Traceback (most recent call last):\n")
    assert text.endswith("ValueError: invalid literal for int() with base 10: 'x'\n")


def test_a_workflow_is_shown_without_what_is_between_it_and_its_step(house: House) -> None:
    @house.app.workflow(name="w", retry=ONCE)
    def work(flow: Flow, fine: bool) -> int:
        return flow.step(inner, "x") if fine else flow.step(int, "x")  # the second has no frame of its own

    @house.app.workflow(name="a", retry=ONCE)
    async def awork(flow: AsyncFlow) -> int:
        return await flow.step(inner, "x")

    house.start()
    assert frames_of(trace(house, work.enqueue(True).id)) == ["work", "inner"]
    assert frames_of(trace(house, work.enqueue(False).id)) == ["work"]
    shown = frames_of(trace(house, awork.enqueue().id))
    assert (shown[0], shown[-1]) == ("awork", "inner")
    assert not {"_drive", "_carry_out", "_do", "aplay"} & set(shown)


def test_causes_are_shown_by_the_same_rule(house: House) -> None:
    @house.app.workflow(name="w", retry=ONCE)
    def work(flow: Flow) -> None:
        try:
            flow.step(inner, "x")
        except ValueError as error:
            raise RuntimeError("it does not work") from error

    house.start()
    text = trace(house, work.enqueue().id)
    assert frames_of(text) == ["work", "inner", "work"]
    assert "The above exception was the direct cause" in text


def in_our_code(error: Exception) -> Exception:
    """The exception as if it were raised by us, below a function of an author."""
    with pytest.raises((OverflowError, ValueError)) as raised:
        durations.instant("12:00", now=1e20)
    return error.with_traceback(raised.value.__traceback__)


def test_our_answer_to_a_mistake_is_shown_at_the_mistake_and_a_mistake_of_ours_in_full() -> None:
    assert frames_of(trace_of(in_our_code(UsageError("no")))) == ["in_our_code"]
    assert frames_of(trace_of(in_our_code(ValueError("broken")))) == ["in_our_code", "instant", "_last_time_of_day"]


def test_where_only_ours_are_they_are_shown() -> None:
    error = in_our_code(ValueError("broken"))
    assert error.__traceback__ is not None
    assert frames_of(trace_of(error.with_traceback(error.__traceback__.tb_next))) == ["instant", "_last_time_of_day"]


def test_a_group_of_exceptions_is_shown_by_the_same_rule() -> None:
    def one() -> ValueError:
        try:
            inner("x")
        except ValueError as error:
            return error
        raise AssertionError

    text = trace_of(ExceptionGroup("several", [one(), one()]))
    assert frames_of(text) == ["one", "inner"] * 2


def logged_functions(error: BaseException) -> list[str]:
    return [line.split(" in ", 1)[1].partition(":")[0] for line in user_frames(error, FRAMES_MAX)]


def test_the_log_shows_the_authors_frames_and_then_the_last_one_of_a_library() -> None:
    with pytest.raises(TypeError, match="cannot pickle") as raised:
        copied([[[[threading.Lock()]]]])
    shown = ["test_the_log_shows_the_authors_frames_and_then_the_last_one_of_a_library", "copied", "deepcopy"]
    assert logged_functions(raised.value) == shown


def copied(what: object) -> object:
    return copy.deepcopy(what)


def test_the_log_of_a_wait_that_timed_out_shows_the_line_of_the_workflow(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    @house.app.workflow(name="w", retry=ONCE)
    def work(flow: Flow) -> None:
        flow.wait("nothing", timeout=0)

    house.start()
    trace(house, work.enqueue().id)
    until(lambda: "attempt 1 ended" in caplog.text, "it is told")
    [line] = [record.getMessage() for record in caplog.records if "attempt 1 ended" in record.getMessage()]
    assert re.findall(r" in (\w+): ", line) == ["work"]


def test_a_task_that_is_installed_is_its_authors_code() -> None:
    modules = {
        "shop/tasks.py": "def task(): helper()",
        "shop/parts.py": "def helper(): fetch()",
        "httpx/client.py": "def fetch(): send()",
        "httpx/pool.py": "def send(): int('x')",
    }
    names: dict[str, Any] = {}
    for file, text in modules.items():
        exec(compile(text, f"/venv/lib/site-packages/{file}", "exec"), names)
    with pytest.raises(ValueError, match="invalid literal") as raised:
        names["task"]()
    assert raised.value.__traceback__ is not None
    error = raised.value.with_traceback(raised.value.__traceback__.tb_next)  # without this test, which is not installed
    assert logged_functions(error) == ["task", "helper", "send"]


def test_the_stack_of_a_handler_that_hangs_begins_with_the_handler(house: House) -> None:
    @house.app.task(name="t", retry=ONCE, stall_s=2)
    def task(ctx: Context) -> None:
        ctx.progress(0.1)
        wait(threading.Event())

    def wait(never: threading.Event) -> None:
        while not never.is_set():
            time.sleep(0.01)

    house.start()
    job = task.enqueue()
    until(lambda: house.row(job.id).state == "dead", "it was stopped")
    [stalled] = [event for event in house.events(job.id) if event.kind == "stalled"]
    assert frames_of(stalled.detail["stack"])[:2] == ["task", "wait"]


def test_a_stack_without_anybody_elses_frames_is_shown_as_it_is() -> None:
    import traceback

    ours = traceback.StackSummary.from_list([(threading.__file__, 1, "run", None)])
    assert frames_of(stack_text(ours)) == ["run"]
