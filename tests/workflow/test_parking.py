"""Parking is sticky: whatever a workflow's code catches on its way out, it waits, and nothing runs too early."""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import AsyncFlow, Flow, Retry
from holdfast.core.records import Event, Worker
from holdfast.core.verdict import Released
from holdfast.stores.protocol import Reply
from tests.factory import a_step, awaiting, record, settlement
from tests.worker.house import House, until

HERE = Path(__file__).name
FORMS = ["sync", "async"]


class World:
    """What the steps of a test did."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def do(self, what: str) -> str:
        self.lines.append(what)
        return what


@pytest.fixture
def world() -> World:
    return World()


def waits(house: House, job_id: str, attempt: int = 1) -> None:
    until(lambda: house.row(job_id).state == "waiting" and house.row(job_id).attempt == attempt, "it waits")


def swallowed(house: House, job_id: str) -> list[Event]:
    return house.events(job_id, "warning")


@pytest.mark.parametrize("form", FORMS)
def test_a_cleanup_in_finally_runs_once_after_the_signal(house: House, world: World, form: str) -> None:
    @house.app.workflow(name="sync")
    def sync(flow: Flow) -> str:
        try:
            flow.wait("go")
            return flow.step(world.do, "ship")
        finally:
            flow.step(world.do, "cleanup", name="cleanup")

    @house.app.workflow(name="async")
    async def loop(flow: AsyncFlow) -> str:
        try:
            await flow.wait("go")
            return await flow.step(world.do, "ship")
        finally:
            await flow.step(world.do, "cleanup", name="cleanup")

    house.start()
    job = (sync if form == "sync" else loop).enqueue()
    waits(house, job.id)
    assert world.lines == []
    house.app.signal(job.id, "go")
    assert job.result(60) == "ship"
    assert world.lines == ["ship", "cleanup"]
    assert swallowed(house, job.id) == []  # it only cleans up: nothing was swallowed


@pytest.mark.parametrize("form", FORMS)
def test_a_bare_except_does_not_skip_a_wait_and_is_told_once_with_file_and_line(
    house: House, world: World, form: str, caplog: pytest.LogCaptureFixture
) -> None:
    @house.app.workflow(name="sync")
    def sync(flow: Flow) -> str:
        approved: list[Any] = []
        for _ in range(2):
            try:
                approved.append(flow.wait("go"))  # swallowed here (sync)
            except:  # noqa: E722
                approved.append("nobody said so")
        flow.step(world.do, str(approved))
        return str(approved)

    @house.app.workflow(name="async")
    async def loop(flow: AsyncFlow) -> str:
        approved: list[Any] = []
        for _ in range(2):
            try:
                approved.append(await flow.wait("go"))  # swallowed here (async)
            except:  # noqa: E722
                approved.append("nobody said so")
        await flow.step(world.do, str(approved))
        return str(approved)

    house.start()
    job = (sync if form == "sync" else loop).enqueue()
    with caplog.at_level(logging.WARNING, "holdfast"):
        for attempt in (1, 2):
            waits(house, job.id, attempt)
            house.app.signal(job.id, "go", "yes")
        assert job.result(60) == "['yes', 'yes']"
    assert world.lines == ["['yes', 'yes']"]
    [told] = swallowed(house, job.id)
    assert (Path(told.detail["file"]).name, told.detail["line"]) == (HERE, line_of(f"swallowed here ({form})"))
    said = [each for each in caplog.messages if "caught" in each]
    assert len(said) == 1
    assert f"{HERE}:{told.detail['line']}" in said[0]


@pytest.mark.parametrize("form", FORMS)
def test_a_workflow_that_returns_or_raises_instead_of_parking_is_parked_all_the_same(house: House, form: str) -> None:
    @house.app.workflow(name="sync", retry=Retry(attempts_max=1))
    def sync(flow: Flow, ends: str) -> Any:
        try:
            return flow.wait("go")
        except BaseException as error:
            if ends == "return":
                return "skipped"
            raise ValueError("skipped") from error

    @house.app.workflow(name="async", retry=Retry(attempts_max=1))
    async def loop(flow: AsyncFlow, ends: str) -> Any:
        try:
            return await flow.wait("go")
        except BaseException as error:
            if ends == "return":
                return "skipped"
            raise ValueError("skipped") from error

    house.start()
    for ends in ("return", "raise"):
        job = (sync if form == "sync" else loop).enqueue(ends)
        waits(house, job.id)
        assert house.row(job.id).awaits == awaiting("signal:go")
        house.app.signal(job.id, "go", 7)
        assert job.result(60) == 7
        assert len(swallowed(house, job.id)) == 1


@pytest.mark.parametrize("form", FORMS)
def test_context_managers_neither_act_too_early_nor_skip_a_wait(house: House, world: World, form: str) -> None:
    @house.app.workflow(name="sync")
    def sync(flow: Flow) -> str:
        @contextlib.contextmanager
        def locked() -> Iterator[None]:
            flow.step(world.do, "lock", name="lock")
            try:
                yield
            finally:
                flow.step(world.do, "unlock", name="unlock")

        with contextlib.ExitStack() as stack:
            stack.enter_context(locked())
            stack.callback(flow.step, world.do, "called back", name="callback")
            with contextlib.suppress(BaseException):
                flow.wait("go")
            return flow.step(world.do, "ship")

    @house.app.workflow(name="async")
    async def loop(flow: AsyncFlow) -> str:
        @contextlib.asynccontextmanager
        async def locked() -> AsyncIterator[None]:
            await flow.step(world.do, "lock", name="lock")
            try:
                yield
            finally:
                await flow.step(world.do, "unlock", name="unlock")

        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(locked())
            stack.push_async_callback(flow.step, world.do, "called back", name="callback")
            with contextlib.suppress(BaseException):
                await flow.wait("go")
            return await flow.step(world.do, "ship")

    house.start()
    job = (sync if form == "sync" else loop).enqueue()
    waits(house, job.id)
    assert world.lines == ["lock"]
    house.app.signal(job.id, "go")
    assert job.result(60) == "ship"
    assert world.lines == ["lock", "ship", "called back", "unlock"]
    assert len(swallowed(house, job.id)) == 1  # by `suppress`


@pytest.mark.parametrize("form", FORMS)
def test_a_branch_that_swallows_its_wait_waits_and_the_others_go_on(house: House, world: World, form: str) -> None:
    @house.app.workflow(name="sync")
    def sync(flow: Flow) -> list[Any]:
        def branch() -> Any:
            with contextlib.suppress(BaseException):
                return flow.wait("go")
            return "skipped"

        return flow.gather(branch, lambda: flow.step(world.do, "beside"))

    @house.app.workflow(name="async")
    async def loop(flow: AsyncFlow) -> list[Any]:
        async def branch() -> Any:
            with contextlib.suppress(BaseException):
                return await flow.wait("go")
            return "skipped"

        return await flow.gather(branch, lambda: flow.step(world.do, "beside"))

    house.start()
    job = (sync if form == "sync" else loop).enqueue()
    waits(house, job.id)
    assert world.lines == ["beside"]
    house.app.signal(job.id, "go", 1)
    assert job.result(60) == [1, "beside"]


def test_a_gather_parks_the_line_above_it_only_when_it_raises_that(house: House, world: World) -> None:
    """One branch waits, another fails, and the code goes on by the failure: it does not wait for the first."""

    @house.app.workflow(name="w")
    def work(flow: Flow) -> str:
        def fails() -> None:
            raise ValueError("no")

        try:
            flow.gather(lambda: flow.wait("go"), fails)
        except ValueError:
            return flow.step(world.do, "without it")
        return "with it"

    house.start()
    assert work.enqueue().result(60) == "without it"


def test_a_gather_that_waits_parks_the_line_above_it(house: House, world: World) -> None:
    @house.app.workflow(name="w")
    def work(flow: Flow) -> list[Any]:
        values = ["skipped"]
        with contextlib.suppress(BaseException):
            values = flow.gather(lambda: flow.wait("a"), lambda: flow.wait("b"))
        flow.step(world.do, str(values))
        return values

    house.start()
    job = work.enqueue()
    waits(house, job.id)
    assert house.row(job.id).awaits == awaiting("signal:a", "signal:b")
    for name in ("a", "b"):
        house.app.signal(job.id, name, name)
    assert job.result(60) == ["a", "b"]
    assert world.lines == ["['a', 'b']"]


def test_on_the_loop_all_lines_park_together_and_a_cleanup_that_hangs_is_cancelled_again(
    one_house: House, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.worker.time_limits.LEAVE_S", 600.0)  # nobody else ends it
    spans: list[float] = []

    @one_house.app.workflow(name="w", lease_s=600)
    async def work(flow: AsyncFlow) -> str:
        async def line(name: str) -> None:
            try:
                await flow.wait(name)
            except asyncio.CancelledError:
                world.do(f"{name} is parked")
                await flow.step(world.do, "too early", name="early")

        async def stubborn() -> None:
            try:
                await flow.wait("go")
            except asyncio.CancelledError:
                world.do("go is parked")
                began = time.monotonic()
                try:
                    await asyncio.sleep(3600)
                finally:
                    spans.append(time.monotonic() - began)

        await flow.gather(line("beside"), stubborn)
        return "done"

    one_house.start()
    job = work.enqueue()
    waits(one_house, job.id)
    assert sorted(world.lines) == ["beside is parked", "go is parked"]
    assert 0.9 < spans[0] < 10.0, "one second, or more on a busy machine"
    one_house.app.signal(job.id, "go")
    waits(one_house, job.id, attempt=2)
    one_house.app.signal(job.id, "beside")
    assert job.result(60) == "done"
    assert "too early" not in world.lines


@pytest.mark.parametrize("form", FORMS)
def test_code_that_does_not_fit_the_record_runs_no_cleanup_either(house: House, world: World, form: str) -> None:
    """Under an older version a cleanup was recorded while the workflow still waited. It is held, and runs nothing."""

    @house.app.workflow(name="sync")
    def sync(flow: Flow) -> Any:
        try:
            flow.wait("go")
            flow.step(world.do, "ship", name="ship")
        except BaseException:
            world.do("caught")
        finally:
            flow.step(world.do, "cleanup", name="cleanup")

    @house.app.workflow(name="async")
    async def loop(flow: AsyncFlow) -> Any:
        try:
            await flow.wait("go")
            await flow.step(world.do, "ship", name="ship")
        except BaseException:
            world.do("caught")
        finally:
            await flow.step(world.do, "cleanup", name="cleanup")

    task = sync if form == "sync" else loop
    job = task.enqueue()
    early = a_step(position=1, path="2", name="cleanup", state="recorded", result='"cleanup"')
    with_early_record(house, job.id, early)
    house.app.signal(job.id, "go")
    house.start()
    held = house.until_state(job.id, "held")
    assert "does not fit the record" in str(held.error)
    assert set(world.lines) == {"caught"}


def test_a_cleanup_that_was_recorded_too_early_holds_the_workflow_before_it_waits(house: House, world: World) -> None:
    @house.app.workflow(name="sync")
    def sync(flow: Flow) -> None:
        try:
            flow.wait("go")
        finally:
            flow.step(world.do, "cleanup", name="cleanup")

    job = sync.enqueue()
    with_early_record(house, job.id, a_step(position=1, path="2", name="cleanup", state="recorded", result='"x"'))
    house.start()
    held = house.until_state(job.id, "held")
    assert "number 2, step 'cleanup', is recorded (attempt 1): it was run too early" in str(held.error)
    house.app.retry_from(job.id, "cleanup", by="ann")
    waits(house, job.id, attempt=3)
    house.app.signal(job.id, "go")
    job.result(60)
    assert world.lines == ["cleanup"]


@pytest.mark.parametrize("form", [*FORMS, "branch"])
def test_a_loop_that_catches_its_wait_for_ever_is_told_and_parked_all_the_same(
    one_house: House, form: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.worker.time_limits.LEAVE_S", 2.0)
    over, left = threading.Event(), []  # `over` lets go of code that was given up

    @one_house.app.workflow(name="sync")
    def sync(flow: Flow) -> Any:
        try:
            while not over.is_set():
                try:
                    return flow.wait("go")  # caught for ever (sync)
                except:  # noqa: E722
                    with contextlib.suppress(BaseException):
                        time.sleep(0.05)
        finally:
            left.append(form)

    @one_house.app.workflow(name="async")
    async def loop(flow: AsyncFlow) -> Any:
        try:
            while not over.is_set():
                try:
                    return await flow.wait("go")  # caught for ever (async)
                except:  # noqa: E722
                    with contextlib.suppress(BaseException):
                        await asyncio.sleep(0.05)
        finally:
            left.append(form)

    @one_house.app.workflow(name="branch")
    def branch(flow: Flow) -> Any:
        def caught() -> Any:
            try:
                while not over.is_set():
                    try:
                        return flow.wait("go")  # caught for ever (branch)
                    except:  # noqa: E722
                        with contextlib.suppress(BaseException):
                            time.sleep(0.05)
            finally:
                left.append(form)

        return flow.gather(lambda: flow.gather(caught), lambda: flow.step(int, name="quick"))[0][0]

    one_house.start(slots=2)
    job = {"sync": sync, "async": loop, "branch": branch}[form].enqueue()
    try:
        until(lambda: [each for each in caplog.messages if "caught the signal" in each], "it is told")
        assert one_house.row(job.id).state == "running"  # told while it goes on
        waits(one_house, job.id)
        one_house.app.signal(job.id, "go", 7)
        assert job.result(60) == 7
    finally:
        over.set()
        until(lambda: len(left) == 2, "the code of both attempts leaves")
        until(lambda: [each for each in caplog.messages if "has now returned" in each], "the attempt ends")
    [told] = swallowed(one_house, job.id)
    assert told.detail["line"] == line_of(f"caught for ever ({form})")
    assert len([each for each in caplog.messages if "caught the signal" in each]) == 1


def test_a_clock_that_was_set_back_does_not_begin_a_sleep_again(one_house: House, world: World) -> None:
    @one_house.app.workflow(name="sync")
    def sync(flow: Flow) -> str:
        flow.sleep(1)
        return flow.step(world.do, "ship", name="ship")

    job = sync.enqueue()
    slept = a_step(position=1, path="1", kind="sleep", name="sleep", state="recorded", result=str(time.time() + 3600))
    shipped = a_step(position=2, path="2", name="ship", state="recorded", result='"shipped"')
    with_early_record(one_house, job.id, slept, shipped)
    one_house.start()
    assert job.result(60) == "shipped"


def with_early_record(house: House, job_id: str, *steps: Any) -> None:
    """Let an attempt record these, and be given back."""

    house.store.enroll(Worker(id="old", name="old", host="h", pid=1, boot_id="b"))
    [row] = house.store.claim("old", "c", ["default"], ["sync", "async"], 1)
    assert row.id == job_id
    assert record(house.store, row, *steps) is Reply.ACCEPTED
    house.store.settle([settlement(row, Released(started=True, cause="deployed"))])
    house.store.retire("old", "left")


def line_of(words: str) -> int:
    lines = Path(__file__).read_text("utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.rstrip().endswith(f"# {words}"))
