"""Which of several calls ended first is the same in every replay."""

import asyncio

from holdfast import AsyncFlow
from holdfast.core.row_text import Awaited
from tests.worker.house import House, until


def waits(house: House, job_id: str, *awaits: str) -> None:
    def does() -> bool:
        row = house.row(job_id)
        return row.state == "waiting" and sorted(row.awaits or ()) == [Awaited("signal", name) for name in awaits]

    until(does, f"it waits for {awaits}")


def test_results_come_in_the_order_in_which_they_were_recorded(house: House) -> None:
    seen: list[str] = []

    @house.app.workflow(name="w")
    async def work(flow: AsyncFlow) -> str:
        came: list[str] = []

        async def listen(name: str) -> None:
            await flow.wait(name)
            came.append(name)
            await flow.step(len, name, name=f"heard {name}")
            came.append(f"{name} again")

        await flow.gather(*(lambda name=name: listen(name) for name in ("a", "b", "c")))
        seen.append(" ".join(came))
        await flow.wait("later")
        return " ".join(came)

    house.start()
    job = work.enqueue()
    waits(house, job.id, "a", "b", "c")
    house.app.signal(job.id, "c")
    waits(house, job.id, "a", "b")
    house.app.signal(job.id, "a")
    waits(house, job.id, "b")
    house.app.signal(job.id, "b")
    waits(house, job.id, "later")
    house.app.signal(job.id, "later")
    assert job.result(60) == "c c again a a again b b again"
    assert set(seen) == {"c c again a a again b b again"}


def test_a_step_that_waits_for_another_line_of_the_workflow_goes_on_in_a_replay(one_house: House) -> None:
    """What is not on record begins when everything on record has been had, and all of it side by side."""

    @one_house.app.workflow(name="w")
    async def work(flow: AsyncFlow) -> str:
        told = asyncio.Event()

        async def tells() -> None:
            await flow.step(int, name="recorded")
            await flow.wait("go")
            await flow.step(told.set, name="tell")

        async def hears() -> str:
            await told.wait()
            return "heard"

        async def starts() -> str:
            await flow.wait("start")
            return await flow.step(hears)

        return (await flow.gather(tells, starts))[1]

    one_house.start()
    job = work.enqueue()
    waits(one_house, job.id, "go", "start")
    one_house.app.signal(job.id, "go")
    one_house.app.signal(job.id, "start")
    assert job.result(60) == "heard"


def test_a_short_branch_does_not_wait_for_a_long_one(one_house: House) -> None:
    @one_house.app.workflow(name="w")
    async def work(flow: AsyncFlow) -> str:
        told = asyncio.Event()

        async def tells() -> None:
            for number in range(3):
                await flow.step(int, name=f"step {number}")
            await flow.step(told.set, name="tell")

        await flow.gather(tells, lambda: flow.step(told.wait, name="long"))
        return "done"

    one_house.start()
    assert work.enqueue().result(60) == "done"
