"""Calls of an async flow outside of its own lines: no replay could repeat their order, so the attempt fails by them."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import AsyncFlow, Retry, Rollback
from tests.worker.house import House, until

ONCE = Retry(attempts_max=1)
AGAIN = Retry(attempts_max=2, base_s=0.0, cap_s=0.0)


async def charge_in_a_task(flow: AsyncFlow, charge: Callable[[], None]) -> None:
    await asyncio.create_task(flow.step(charge))


async def charge_in_a_task_that_is_forgotten(flow: AsyncFlow, charge: Callable[[], None]) -> None:
    kept.append(asyncio.create_task(flow.step(charge)))
    await flow.step(lambda: None, name="other")


async def charge_in_a_task_that_never_begins(flow: AsyncFlow, charge: Callable[[], None]) -> None:
    kept.append(asyncio.create_task(flow.step(charge)))


async def call_from_a_task(flow: AsyncFlow, charge: Callable[[], None]) -> None:
    async def one() -> None:
        await flow.step(charge)

    with contextlib.suppress(BaseException):
        await asyncio.gather(one(), one())


async def gather_by_asyncio(flow: AsyncFlow, charge: Callable[[], None]) -> None:
    with contextlib.suppress(BaseException):
        await asyncio.gather(flow.step(charge), flow.step(charge))


async def take_the_first(flow: AsyncFlow, charge: Callable[[], None]) -> None:
    tasks = [asyncio.ensure_future(flow.step(charge)) for _ in range(2)]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)


async def use_a_group(flow: AsyncFlow, charge: Callable[[], None]) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(flow.step(charge))


async def shield_it(flow: AsyncFlow, charge: Callable[[], None]) -> None:
    await asyncio.shield(flow.gather(lambda: flow.step(charge)))


async def use_a_thread(flow: AsyncFlow, charge: Callable[[], None]) -> None:
    with contextlib.suppress(BaseException):
        await asyncio.to_thread(lambda: flow.step(charge))


async def wait_for_ever(flow: AsyncFlow, charge: Callable[[], None]) -> None:
    kept.append(asyncio.create_task(flow.step(charge)))
    await asyncio.sleep(3600)


async def use_a_task_in_a_branch(flow: AsyncFlow, charge: Callable[[], None]) -> None:
    async def branch() -> None:
        await asyncio.create_task(flow.step(charge))

    await flow.gather(branch)


kept: list[asyncio.Task[Any]] = []
WAYS = [
    charge_in_a_task,
    charge_in_a_task_that_is_forgotten,
    call_from_a_task,
    gather_by_asyncio,
    take_the_first,
    shield_it,
    use_a_thread,
    wait_for_ever,
    use_a_task_in_a_branch,
]


@pytest.mark.parametrize("code", WAYS, ids=lambda code: code.__name__)
def test_a_call_in_an_asyncio_task_of_the_code_fails_the_attempt_and_does_nothing(
    one_house: House, code: Callable[..., Any]
) -> None:
    charged: list[int] = []

    def charge() -> None:
        charged.append(1)

    @one_house.app.workflow(name="w", retry=ONCE)
    async def work(flow: AsyncFlow) -> None:
        await code(flow, charge)

    one_house.start()
    row = one_house.until_state(work.enqueue().id, "dead")
    assert str(row.error).startswith("Misused: the call of the flow at ")
    assert __file__ in str(row.error)
    assert "flow.gather(" in str(row.error)
    assert charged == []


def test_a_call_in_a_group_fails_the_attempt(one_house: House) -> None:
    charged: list[int] = []

    @one_house.app.workflow(name="w", retry=ONCE)
    async def work(flow: AsyncFlow) -> None:
        await use_a_group(flow, lambda: charged.append(1))

    one_house.start()
    assert "Misused: the call of the flow at" in str(one_house.until_state(work.enqueue().id, "dead").error)
    assert charged == []


def test_a_task_that_has_not_begun_at_the_end_fails_the_attempt(one_house: House) -> None:
    charged: list[int] = []

    @one_house.app.workflow(name="w", retry=ONCE)
    async def work(flow: AsyncFlow) -> None:
        await charge_in_a_task_that_never_begins(flow, lambda: charged.append(1))

    one_house.start()
    assert "is not awaited" in str(one_house.until_state(work.enqueue().id, "dead").error)
    assert charged == []


def test_a_step_at_work_in_a_branch_is_recorded_before_the_attempt_fails_by_a_call_in_a_task(one_house: House) -> None:
    begun, refused, charged = threading.Event(), threading.Event(), []

    def charge() -> None:
        begun.set()
        assert refused.wait(60)
        charged.append(1)

    @one_house.app.workflow(name="w", retry=ONCE)
    async def work(flow: AsyncFlow) -> None:
        async def bad() -> None:
            await asyncio.to_thread(begun.wait, 60)
            try:
                await asyncio.create_task(flow.step(len, "abc"))
            finally:
                refused.set()

        await flow.gather(flow.step(charge, repeatable=False), bad)

    one_house.start()
    job = work.enqueue()
    row = one_house.until_state(job.id, "dead")
    assert "Misused: the call of the flow at" in str(row.error)
    assert (row.open_step, charged) == (None, [1])
    assert [(step.name, step.state) for step in one_house.app.steps(job.id)] == [("charge", "recorded")]


async def by_timeout(call: Any, started: asyncio.Event) -> None:
    async with asyncio.timeout(None) as limit:
        waiter = asyncio.create_task(started.wait())
        waiter.add_done_callback(lambda _: limit.reschedule(0))
        await call()


async def by_wait_for(call: Any, started: asyncio.Event) -> None:
    await asyncio.wait_for(call(), 0.2)


async def by_cancel(call: Any, started: asyncio.Event) -> None:
    this = asyncio.current_task()
    assert this is not None
    waiter = asyncio.create_task(started.wait())
    waiter.add_done_callback(lambda _: this.cancel())
    try:
        await call()
    except asyncio.CancelledError:
        raise TimeoutError from None


@pytest.mark.parametrize("form", ["step", "branch", "pause"])
@pytest.mark.parametrize("limit", [by_timeout, by_wait_for, by_cancel], ids=lambda limit: limit.__name__)
def test_a_call_that_the_code_cuts_short_fails_the_attempt_and_nothing_follows(
    one_house: House, limit: Callable[..., Any], form: str
) -> None:
    lines: list[str] = []

    @one_house.app.workflow(name="w", retry=ONCE)
    async def order(flow: AsyncFlow) -> str:
        started = asyncio.Event()

        async def charge() -> str:
            started.set()
            await asyncio.sleep(3600)
            return "charged"

        async def pause() -> None:
            started.set()
            await flow.sleep(0.9)

        calls: dict[str, Any] = {
            "step": lambda: flow.step(charge),
            "branch": lambda: flow.gather(lambda: flow.step(charge)),
            "pause": pause,
        }
        try:
            await limit(calls[form], started)
        except BaseException:
            await flow.step(lines.append, "order dropped")
        return "dropped"

    one_house.start()
    row = one_house.until_state(order.enqueue().id, "dead")
    assert "Misused: the call of the flow at" in str(row.error)
    assert "timeout_s=" in str(row.error)
    assert lines == []


def test_a_blocking_step_that_the_code_cuts_short_has_ended_before_its_undo_runs(one_house: House) -> None:
    lines: list[str] = []
    begun = threading.Event()

    def transfer() -> None:
        try:
            begun.set()
            until(lambda: False, "it is stopped", 60)
        finally:
            lines.append("ended")

    def take_back(result: object) -> None:
        lines.append("undone")

    @one_house.app.workflow(name="w", retry=ONCE)
    async def work(flow: AsyncFlow) -> None:
        this = asyncio.current_task()
        assert this is not None
        if flow.ctx.attempt == 1:
            kept.append(asyncio.create_task(asyncio.to_thread(begun.wait, 60)))
            kept[-1].add_done_callback(lambda _: this.cancel())
        await flow.gather(lambda: flow.step(transfer, undo=take_back))

    one_house.start()
    row = one_house.until_state(work.enqueue().id, "rolled_back")
    assert "was cancelled by the code itself" in str(row.error)
    assert lines == ["ended", "undone"]


async def forget_a_step(flow: AsyncFlow, ran: list[str]) -> None:
    flow.step(ran.append, "paid")


async def forget_a_step_before_another_one(flow: AsyncFlow, ran: list[str]) -> None:
    flow.step(ran.append, "paid")
    await flow.step(ran.append, "shipped")


async def forget_a_step_before_a_gather(flow: AsyncFlow, ran: list[str]) -> None:
    flow.step(ran.append, "paid")
    await flow.gather(flow.step(ran.append, "shipped"))


async def forget_a_step_in_a_branch(flow: AsyncFlow, ran: list[str]) -> None:
    async def branch() -> None:
        flow.step(ran.append, "paid")

    with contextlib.suppress(BaseException):
        await flow.gather(branch)


async def forget_a_gather(flow: AsyncFlow, ran: list[str]) -> None:
    flow.gather(flow.step(ran.append, "paid"))


async def await_them_in_another_order(flow: AsyncFlow, ran: list[str]) -> None:
    first, second = flow.step(ran.append, "paid"), flow.step(ran.append, "shipped")
    await second
    await first


@pytest.mark.parametrize(
    "code",
    [
        forget_a_step,
        forget_a_step_before_another_one,
        forget_a_step_before_a_gather,
        forget_a_step_in_a_branch,
        forget_a_gather,
        await_them_in_another_order,
    ],
    ids=lambda code: code.__name__,
)
def test_a_call_that_is_not_awaited_fails_the_attempt_and_names_its_line(
    one_house: House, code: Callable[..., Any], recwarn: pytest.WarningsRecorder
) -> None:
    ran: list[str] = []

    @one_house.app.workflow(name="w", retry=ONCE)
    async def work(flow: AsyncFlow) -> str:
        await code(flow, ran)
        return "all done"

    one_house.start()
    row = one_house.until_state(work.enqueue().id, "dead")
    assert f"Misused: the call of the flow at {__file__}:" in str(row.error)
    assert "is not awaited, so it was not carried out" in str(row.error)
    assert ran == []
    assert [str(warning.message) for warning in recwarn] == []


def test_calls_that_are_made_first_and_awaited_in_their_order_are_carried_out(one_house: House) -> None:
    ran: list[str] = []

    @one_house.app.workflow(name="w")
    async def work(flow: AsyncFlow) -> None:
        first, second = flow.step(ran.append, "paid"), flow.step(ran.append, "shipped")
        await first
        await second

    one_house.start()
    work.enqueue().result(60)
    assert ran == ["paid", "shipped"]


def test_steps_that_are_handed_to_a_gather_are_undone(house: House) -> None:
    lines: list[str] = []

    def book(what: str) -> str:
        lines.append(f"book {what}")
        return what

    def cancel(result: str | None, what: str) -> None:
        lines.append(f"cancel {result}")

    @house.app.workflow(name="w")
    async def trip(flow: AsyncFlow) -> None:
        await flow.gather(flow.step(book, "flight", undo=cancel), flow.step(len, "abc"))
        raise Rollback("no visa")

    house.start()
    house.until_state(trip.enqueue().id, "rolled_back")
    assert lines == ["book flight", "cancel flight"]


def test_a_workflow_rolls_back_through_a_group_of_tasks_that_do_not_use_the_flow(one_house: House) -> None:
    lines: list[str] = []

    @one_house.app.workflow(name="w", retry=AGAIN)
    async def work(flow: AsyncFlow) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(0))
            await flow.step(lines.append, "do", undo=lambda result, what: lines.append("undo"), name="do")
            await flow.step(len, "abc")
        raise Rollback("why")

    one_house.start()
    one_house.until_state(work.enqueue().id, "rolled_back")
    assert lines == ["do", "undo"]
