"""What the code of a workflow leaves behind, in threads or tasks of its own, does nothing any more."""

import asyncio
import contextvars
import threading
from typing import Any

import pytest

from holdfast import AsyncFlow, Flow, Retry
from holdfast.errors import LeaseLost
from tests.worker.house import House, until

ONCE = Retry(attempts_max=1)


def test_a_thread_left_over_from_an_ended_workflow_runs_no_step(house: House) -> None:
    ended, ran, refused = threading.Event(), [], []

    @house.app.workflow(name="w")
    def work(flow: Flow) -> str:
        def left_over() -> None:
            ended.wait(60)
            try:
                flow.step(ran.append, 1)
            except LeaseLost as error:
                refused.append(str(error))

        threading.Thread(target=contextvars.copy_context().run, args=(left_over,), daemon=True).start()
        return "done"

    house.start()
    assert work.enqueue().result(60) == "done"
    ended.set()
    until(lambda: refused, "the step is refused")
    assert "has ended" in refused[0]
    assert ran == []


def test_a_task_left_over_from_an_ended_workflow_runs_no_step(house: House) -> None:
    kept: list[asyncio.Task[None]] = []
    ran: list[int] = []
    refused: list[str] = []
    ended = threading.Event()

    @house.app.workflow(name="w")
    async def work(flow: AsyncFlow) -> str:
        async def left_over() -> None:
            while not ended.is_set():  # its first call of the flow comes after the end: nobody knew it to cancel it
                await asyncio.sleep(0.005)
            try:
                await flow.step(ran.append, 1)
            except LeaseLost as error:
                refused.append(str(error))

        kept.append(asyncio.create_task(left_over()))
        return "done"

    house.start()
    assert work.enqueue().result(60) == "done"
    ended.set()
    until(lambda: refused, "the step is refused")
    assert ran == []


def test_a_gather_that_cannot_start_its_threads_stops_the_branches_that_did_start(
    one_house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, ended, seen = threading.Event(), threading.Event(), []
    start = threading.Thread.start

    def starved(thread: threading.Thread) -> None:
        if thread.name == "holdfast-branch" and begun.is_set():
            raise RuntimeError("can't start new thread")
        start(thread)
        if thread.name == "holdfast-branch":
            assert begun.wait(60)

    @one_house.app.workflow(name="w", retry=ONCE)
    def work(flow: Flow) -> list[Any]:
        def long() -> None:
            try:
                begun.set()
                while True:
                    ended.wait(0.01)
            finally:
                seen.append("stopped")

        try:
            return flow.gather(lambda: flow.step(long, name="long"), lambda: flow.step(lambda: 1, name="never"))
        finally:
            seen.append("gather has ended")

    monkeypatch.setattr(threading.Thread, "start", starved)
    one_house.start()
    row = one_house.until_state(work.enqueue().id, "dead")
    assert "can't start new thread" in str(row.error)
    assert seen == ["stopped", "gather has ended"]
