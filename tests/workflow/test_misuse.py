"""Calls of the flow where it cannot be used: they are refused at once, with one clear error."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import App, AsyncFlow, Flow, JobDead, Retry, Rollback
from tests.worker.house import House, until

ONCE = Retry(attempts_max=1)
TWICE = Retry(attempts_max=2, base_s=0.0, cap_s=0.0)

CALLS: dict[str, Callable[[Any], Any]] = {
    "step": lambda flow: flow.step(len, "abc"),
    "start": lambda flow: flow.start(flow._run.app.tasks["mail"]),
    "sleep": lambda flow: flow.sleep(60),
    "gather": lambda flow: flow.gather(lambda: flow.step(len, "abc")),
    "now": lambda flow: flow.now(),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_an_undo_that_uses_the_flow_fails_like_any_other_and_is_held(
    one_house: House, kind: str, call: Callable[[Any], Any]
) -> None:
    refunds: list[int] = []

    @one_house.app.task(name="mail")
    def mail() -> None: ...

    @one_house.app.workflow(name="sync", retry=TWICE)
    def sync(flow: Flow) -> None:
        def refund(result: int | None) -> None:
            refunds.append(1)
            call(flow)

        flow.step(lambda: 1, undo=refund, name="charge")
        raise Rollback("withdrawn")

    @one_house.app.workflow(name="async", retry=TWICE)
    async def loop(flow: AsyncFlow) -> None:
        async def refund(result: int | None) -> None:
            refunds.append(1)
            await call(flow)

        await flow.step(lambda: 1, undo=refund, name="charge")
        raise Rollback("withdrawn")

    one_house.start()
    row = one_house.until_state((sync if kind == "sync" else loop).enqueue().id, "held")
    assert "the flow was used inside the undo 'charge'" in str(row.error)
    assert (row.attempt, len(refunds)) == (3, 2)  # once to fail, and the two tries that the undos have


@pytest.mark.parametrize("kind", ["sync", "async", "async, in a thread"])
def test_a_step_that_uses_the_flow_fails_at_once(house: House, kind: str) -> None:
    ran: list[str] = []

    @house.app.workflow(name="sync", retry=ONCE)
    def sync(flow: Flow) -> None:
        flow.step(lambda: flow.step(ran.append, "inner"), name="outer")

    @house.app.workflow(name="async", retry=ONCE)
    async def loop(flow: AsyncFlow) -> None:
        async def outer() -> None:
            await flow.step(ran.append, "inner")

        await flow.step(outer)

    @house.app.workflow(name="async, in a thread", retry=ONCE)
    async def aside(flow: AsyncFlow) -> None:
        await flow.step(lambda: flow.step(ran.append, "inner") and None, name="outer")

    house.start()
    row = house.until_state({"sync": sync, "async": loop}.get(kind, aside).enqueue().id, "dead")
    assert "UsageError: the flow was used inside the step 'outer'" in str(row.error)
    assert ran == []


def test_a_transaction_that_uses_the_flow_fails_and_writes_nothing(sql_house: House) -> None:
    @sql_house.app.workflow(name="w", retry=ONCE)
    def work(flow: Flow) -> None:
        def outer(connection: Any) -> None:
            connection.execute("CREATE TABLE written (x int)")
            flow.step(len, "abc")

        flow.transaction(outer)

    sql_house.start()
    job = work.enqueue()
    assert "inside the transaction 'outer'" in str(sql_house.until_state(job.id, "dead").error)
    assert sql_house.app.steps(job.id) == []


def test_a_step_that_must_not_be_repeated_and_uses_the_flow_is_over_and_not_open(house: House) -> None:
    runs: list[int] = []

    @house.app.workflow(name="w")
    def work(flow: Flow) -> None:
        def charge() -> None:
            runs.append(1)
            flow.sleep(hours=1)

        flow.step(charge, repeatable=False)

    house.start()
    row = house.until_state(work.enqueue().id, "dead")
    assert "inside the step 'charge'" in str(row.error)
    assert (row.open_step, runs) == (None, [1])


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_workflow_that_uses_the_flow_of_another_one_is_refused(one_house: House, kind: str) -> None:
    kept: list[Any] = []
    known, used = threading.Event(), threading.Event()
    ran: list[str] = []

    @one_house.app.workflow(name="owner")
    def owner(flow: Flow) -> None:
        kept.append(flow)
        known.set()
        assert used.wait(60)

    @one_house.app.workflow(name="async-owner")
    async def loop_owner(flow: AsyncFlow) -> None:
        kept.append(flow)
        known.set()
        await flow.step(used.wait, 60)

    @one_house.app.workflow(name="sync", retry=ONCE)
    def sync(flow: Flow) -> None:
        kept[0].step(ran.append, "stolen")

    @one_house.app.workflow(name="async", retry=ONCE)
    async def loop(flow: AsyncFlow) -> None:
        await kept[0].step(ran.append, "stolen")

    one_house.start(slots=2)
    theirs = (owner if kind == "sync" else loop_owner).enqueue()
    assert known.wait(60)
    thief = sync if kind == "sync" else loop
    first = one_house.until_state(thief.enqueue().id, "dead")
    assert f"UsageError: the flow of workflow {theirs.id} was used in another workflow" in str(first.error)
    used.set()
    theirs.result(60)
    late = one_house.until_state(thief.enqueue().id, "dead")  # its owner has ended: that is no other mistake
    assert str(late.error) == str(first.error)
    assert ran == []
    assert until(lambda: [step.name for step in one_house.app.steps(theirs.id)] in ([], ["wait"]))


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_plain_function_is_no_child(one_house: House, kind: str) -> None:
    def plain() -> None: ...

    @one_house.app.workflow(name="sync", retry=ONCE)
    def sync(flow: Flow) -> None:
        flow.start(plain)  # type: ignore[arg-type]

    @one_house.app.workflow(name="async", retry=ONCE)
    async def loop(flow: AsyncFlow) -> None:
        await flow.start(plain)  # type: ignore[arg-type]

    one_house.start()
    job = (sync if kind == "sync" else loop).enqueue()
    with pytest.raises(JobDead, match=r"flow\.start takes a task or a workflow, not .*plain.*; run a function with"):
        job.result(60)


def test_an_async_step_of_a_plain_workflow_is_refused_by_its_name(one_house: House) -> None:
    async def later() -> None: ...

    @one_house.app.workflow(retry=ONCE)
    def sync(flow: Flow) -> None:
        flow.step(later, name="later")

    one_house.start()
    job = sync.enqueue()
    with pytest.raises(JobDead, match="the step 'later' is an async function; use it in an async workflow"):
        job.result(60)


@pytest.mark.parametrize("form", ["sync", "async"])
def test_a_workflow_that_was_deployed_as_a_plain_task_is_held_and_repeats_nothing(sql_house: House, form: str) -> None:
    charged: list[str] = []

    @sql_house.app.workflow(name="pay")
    def pay(flow: Flow) -> None:
        flow.step(lambda: charged.append("before"), name="charge")
        flow.wait("go")

    job = pay.enqueue()
    sql_house.app.tick()
    sql_house.until_state(job.id, "waiting")
    sql_house.app.signal(job.id, "go")
    with App(sql_house.app.url) as deployed:
        if form == "sync":

            @deployed.task(name="pay")
            def plain() -> None:
                charged.append("again")
        else:

            @deployed.task(name="pay")
            async def plain_async() -> None:
                charged.append("again")

        deployed.tick()
    row = sql_house.until_state(job.id, "held")
    assert "it was stored as a workflow, and 'pay' is a plain task here" in str(row.error)
    assert charged == ["before"]
    sql_house.app.revive(job.id)
    sql_house.app.tick()
    sql_house.until_state(job.id, "done")
    assert charged == ["before"]
