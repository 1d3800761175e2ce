"""Waiting without a slot: timers, signals, people, children. No wake-up is lost, and nothing is delivered twice."""

import asyncio
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import AsyncFlow, Flow, IllegalMove, JobDead, KeyTaken, NotFound, Refused, Retry
from holdfast.core.records import Filter, Inbox, Signal
from holdfast.core.replay import answer_to
from holdfast.errors import Parking, StoreUnavailable, UsageError
from holdfast.workflow.effects import merged
from holdfast.workflow.run import SIGNALS_READ
from tests.factory import awaiting
from tests.worker.house import House, until


def waits(house: House, job_id: str) -> Any:
    return until(lambda: house.row(job_id).state == "waiting" and house.row(job_id), "it waits")


def test_a_waiting_workflow_has_no_slot_no_lease_and_costs_no_budget(house: House) -> None:
    @house.app.workflow(name="w")
    def work(flow: Flow) -> Any:
        return flow.wait("go")

    @house.app.task(name="t")
    def other() -> int:
        return 1

    house.start(slots=1)
    job = work.enqueue()
    row = waits(house, job.id)
    assert (row.worker, row.lease_until, row.failures, row.crashes) == (None, None, 0, 0)
    assert row.awaits == awaiting("signal:go")
    assert other.enqueue().result(60) == 1
    assert house.app.signal(job.id, "go", {"n": 1}, by="ann") is True
    assert job.result(60) == {"n": 1}
    assert house.row(job.id).attempt == 2


def test_signals_before_the_wait_are_kept_and_taken_in_order_by_name(house: House) -> None:
    @house.app.workflow(name="w")
    def work(flow: Flow) -> list[Any]:
        return [flow.wait("a"), flow.wait("b"), flow.wait("a")]

    job = work.enqueue()
    for name, value in (("a", 1), ("a", 2), ("b", 3)):
        house.app.signal(job.id, name, value)
    assert house.app.signal(job.id, "a", 9, signal_id="mine") is True
    assert house.app.signal(job.id, "a", 9, signal_id="mine") is False
    house.start()
    assert job.result(60) == [1, 3, 2]


@pytest.mark.parametrize("odd", ["nul\0", "\ud800", "x" * 20_000], ids=["NUL", "lone surrogate", "very long"])
def test_text_that_some_store_cannot_hold_is_refused_and_changes_nothing(house: House, odd: str) -> None:
    @house.app.workflow(name="w")
    def work(flow: Flow) -> Any:
        return flow.wait("a")

    job = work.enqueue()
    said: list[dict[str, Any]] = [{"by": odd}, {"note": odd}]
    for given in [*said, {"signal_id": odd}]:
        with pytest.raises(UsageError, match="="):
            house.app.signal(job.id, "a", 1, **given)
    for given in said:
        with pytest.raises(UsageError, match="="):
            house.app.cancel(job.id, **given)
    assert house.row(job.id).state == "ready"
    assert house.app.signal(job.id, "a", 2) is True
    house.start()
    assert job.result(60) == 2


def test_a_signal_in_every_gap_is_never_lost(house: House) -> None:
    @house.app.workflow(name="w")
    def work(flow: Flow) -> Any:
        return flow.wait("go", timeout=60)

    for verb in ("claim", "record", "settle"):
        job = work.enqueue()
        sent = threading.Event()

        def send(*_: Any, job_id: str = job.id, sent: threading.Event = sent) -> None:
            if not sent.is_set() and house.row(job_id).state == "running":
                sent.set()
                house.app.signal(job_id, "go", 1)

        with house.store.before(verb, send) if verb != "claim" else house.store.after(verb, send):
            runner = house.start()
            assert job.result(60) == 1
            assert sent.is_set()
        house.stop(runner)


def test_a_wait_has_an_end_and_perhaps_a_default(house: House) -> None:
    @house.app.workflow(name="w")
    def work(flow: Flow) -> list[Any]:
        first = flow.wait("go", timeout=timedelta(seconds=0.2), default="nothing")
        try:
            flow.wait("go", timeout=0.2)
        except TimeoutError:
            return [first, flow.step(lambda: "late", name="after")]
        return []

    house.start()
    job = work.enqueue()
    assert job.result(60) == ["nothing", "late"]
    assert [step.error_kind for step in house.app.steps(job.id)] == ["TimeoutError", "TimeoutError", None]


@pytest.mark.slow  # it sleeps
def test_a_sleep_parks_and_wakes_at_its_instant(house: House) -> None:
    seen: list[datetime] = []

    @house.app.workflow(name="w")
    def work(flow: Flow) -> None:
        flow.sleep(6)  # on a slow machine what is left after the record is more than a second, so it parks
        flow.sleep_until(flow.now() - timedelta(hours=1))
        seen.append(datetime.now(UTC))

    house.start()
    job = work.enqueue()
    row = waits(house, job.id)
    job.result(60)
    assert row.wake_at is not None
    assert seen[-1].timestamp() >= row.wake_at - 0.01
    assert house.row(job.id).attempt == 2


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_flow_takes_lengths_of_time_as_seconds_or_timedelta(one_house: House, kind: str) -> None:
    hour = timedelta(hours=1)

    def sync(flow: Flow) -> str:
        flow.step(int, timeout_s=hour)
        flow.sleep(timedelta(milliseconds=1))
        flow.sleep(hour, minutes=30)
        return "slept"

    async def loop(flow: AsyncFlow) -> str:
        await flow.step(int, timeout_s=hour)
        await flow.sleep(timedelta(milliseconds=1))
        await flow.sleep(hour, minutes=30)
        return "slept"

    work = one_house.app.workflow(name="w")(sync if kind == "sync" else loop)  # type: ignore[type-var]
    one_house.start()
    before = one_house.store.now().wall
    row = waits(one_house, work.enqueue().id)
    assert row.wake_at is not None
    assert 5400 <= row.wake_at - before < 5400 + 60


LENGTHS = [-1, "5", timedelta(seconds=-1), float("nan"), 10.0**11]


@pytest.mark.parametrize("length", LENGTHS, ids=repr)
@pytest.mark.parametrize("call", ["sleep", "wait", "approve", "step"])
def test_what_is_no_length_of_time_is_refused_with_what_to_write(one_house: House, call: str, length: Any) -> None:
    @one_house.app.workflow(name="w", retry=Retry(attempts_max=1))
    def work(flow: Flow) -> None:
        calls: dict[str, Any] = {
            "sleep": lambda: flow.sleep(length),
            "wait": lambda: flow.wait("go", timeout=length),
            "approve": lambda: flow.approve("Go?", timeout=length),
            "step": lambda: flow.step(int, timeout_s=length),
        }
        calls[call]()

    one_house.start()
    job = work.enqueue()
    error = one_house.until_state(job.id, "dead").error or ""
    assert "must be a number of seconds, not negative, or a timedelta" in error


@pytest.mark.parametrize("side_by_side", [False, True], ids=["alone", "in branches"])
def test_a_signal_does_not_wake_a_workflow_that_only_sleeps(house: House, side_by_side: bool) -> None:
    """It would be a replay for nothing; the signal is kept for whoever waits for it later."""

    @house.app.workflow(name="w")
    def work(flow: Flow) -> Any:
        if flow.ctx.attempt == 1:
            house.app.signal(flow.ctx.job.id, "go", 7)  # it comes before the workflow parks
        if side_by_side:
            flow.gather(lambda: flow.sleep(hours=1), lambda: flow.sleep(hours=2))
        else:
            flow.sleep(hours=1)

    house.start()
    job = work.enqueue()
    row = waits(house, job.id)
    assert (row.attempt, row.inbox) == (1, 1)
    assert [signal.value for signal in house.store.inbox(job.id).signals] == ["7"]


def test_on_the_loop_a_sleep_goes_on_although_a_call_beside_it_is_recorded(house: House) -> None:
    ran: list[str] = []

    @house.app.workflow(name="w")
    async def work(flow: AsyncFlow) -> None:
        await flow.gather(flow.sleep(minutes=30), flow.sleep(hours=1), flow.wait("go"))
        await flow.step(ran.append, "too early")

    house.start()
    job = work.enqueue()
    first = waits(house, job.id)
    house.app.signal(job.id, "go")
    until(lambda: house.row(job.id).state == "waiting" and house.row(job.id).attempt == 2, "it sleeps on")
    assert house.row(job.id).wake_at == first.wake_at
    assert ran == []


def test_branches_wait_for_several_things_and_go_on_one_by_one(house: House) -> None:
    @house.app.workflow(name="w")
    def work(flow: Flow) -> list[Any]:
        def branch(name: str) -> Any:
            value = flow.wait(name)
            return flow.step(lambda: value * 2, name=f"twice {name}")

        return flow.gather(lambda: branch("a"), lambda: branch("b"), lambda: flow.step(lambda: 5, name="at once"))

    house.start()
    job = work.enqueue()
    assert waits(house, job.id).awaits == awaiting("signal:a", "signal:b")
    house.app.signal(job.id, "b", 2)
    until(lambda: house.row(job.id).awaits == awaiting("signal:a"), "one branch is done")
    house.app.signal(job.id, "a", 1)
    assert job.result(60) == [2, 4, 5]


def test_on_the_loop_a_workflow_parks_when_nothing_of_it_runs(house: House) -> None:
    @house.app.workflow(name="w")
    async def work(flow: AsyncFlow) -> list[Any]:
        async def branch(name: str) -> Any:
            value = await flow.wait(name)
            return await flow.step(asyncio.sleep, 0.01, value * 2, name=f"twice {name}")

        return await flow.gather(
            branch("a"), branch("b"), flow.step(asyncio.sleep, 0.05, 5, name="slow"), flow.sleep(0.01)
        )

    house.start()
    job = work.enqueue()
    assert waits(house, job.id).awaits == awaiting("signal:a", "signal:b")
    house.app.signal(job.id, "b", 2)
    until(lambda: house.row(job.id).awaits == awaiting("signal:a"), "one branch is done")
    house.app.signal(job.id, "a", 1)
    assert job.result(60) == [2, 4, 5, None]


def test_branches_that_look_at_the_same_time_take_a_signal_each(
    one_house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    @one_house.app.workflow(name="w")
    def work(flow: Flow) -> list[int]:
        return sorted(flow.gather(lambda: flow.wait("go"), lambda: flow.wait("go")))

    both, look = threading.Barrier(2, timeout=60), one_house.app.store.inbox

    def inbox(*given: Any) -> Inbox:
        found = look(*given)
        both.wait()
        return found

    monkeypatch.setattr(one_house.app.store, "inbox", inbox)
    job = work.enqueue()
    for number in (1, 2):
        one_house.app.signal(job.id, "go", number)
    one_house.start()
    assert job.result(60) == [1, 2]


def test_of_two_branches_that_see_the_same_signal_one_takes_it_and_the_other_waits(
    one_house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    @one_house.app.workflow(name="w")
    def work(flow: Flow) -> list[int]:
        return sorted(flow.gather(lambda: flow.wait("go"), lambda: flow.wait("go")))

    both, look, looks = threading.Barrier(2, timeout=60), one_house.app.store.inbox, []

    def inbox(*given: Any) -> Inbox:
        found = look(*given)
        looks.append(found)
        if one_house.row(given[0]).attempt == 1:
            both.wait()
        return found

    monkeypatch.setattr(one_house.app.store, "inbox", inbox)
    job = work.enqueue()
    one_house.app.signal(job.id, "go", 1)
    one_house.start()
    waits(one_house, job.id)
    one_house.app.signal(job.id, "go", 2)
    assert job.result(60) == [1, 2]
    assert [len(found.signals) for found in looks] == [1, 1, 1]


def test_a_person_is_asked_and_answers(house: House) -> None:
    @house.app.workflow(name="w")
    def work(flow: Flow) -> list[bool]:
        return [flow.approve("Ship it?"), flow.approve("Really?")]

    house.start()
    job = work.enqueue()
    assert waits(house, job.id).question == "Ship it?"
    assert [row.id for row in house.store.find(Filter(asking=True))] == [job.id]
    house.app.approve(job.id, by="ann")
    until(lambda: house.row(job.id).question == "Really?", "the second question")
    with pytest.raises(IllegalMove, match="Really"):
        house.app.resolve(job.id, "done")
    house.app.approve(job.id, False, by="bob")
    assert job.result(60) == [True, False]
    answered = "is done and asks nobody; bob answered its last question with no at 20"
    with pytest.raises(Refused, match=answered):
        house.app.approve(job.id)
    for answer in ("retry", "fail"):
        with pytest.raises(IllegalMove, match=answered):
            house.app.resolve(job.id, answer)  # type: ignore[arg-type]


def test_children_are_started_once_and_waited_for(house: House) -> None:
    @house.app.task(name="t")
    def double(n: int) -> int:
        return n * 2

    @house.app.workflow(name="c")
    def nested(flow: Flow, n: int) -> int:
        return int(flow.wait("n")) + n

    @house.app.workflow(name="p", retry=Retry(attempts_max=2, base_s=0.0, cap_s=0.0))
    def parent(flow: Flow) -> list[int]:
        first = flow.start(double, 1)
        second = flow.start(nested.using(priority=3), 10)
        flow.signal(second.id, "n", 5)
        if flow.ctx.attempt == 1:
            raise ValueError("again")
        return [flow.result(second), flow.result(first)]

    house.start()
    job = parent.enqueue()
    assert job.result(60) == [15, 2]
    children = [row for row in house.store.find(Filter()) if row.parent == job.id]
    assert sorted(row.task for row in children) == ["c", "t"]
    assert len(children) == 2


@pytest.mark.parametrize("of", ["nobody", "another workflow", "another task"])
def test_a_child_whose_id_is_taken_is_not_started(house: House, of: str) -> None:
    @house.app.task(name="ship")
    def ship(n: int) -> int:
        return n

    @house.app.task(name="pay")
    def pay(n: int) -> int:
        return -n

    @house.app.workflow(name="w", retry=Retry(attempts_max=1))
    def work(flow: Flow, goes_on: bool) -> int | str:
        try:
            return flow.result(flow.start(ship.using(id="ship-1", run_after=0 if goes_on else 600), 1))
        except KeyTaken as error:
            flow.wait("go")
            return str(error)

    house.start()
    if of == "another workflow":
        first = work.enqueue(False)
        until(lambda: house.row(first.id).awaits == awaiting("job:ship-1"), "it has started the child")
        assert house.row(first.id).wake_at is None, "the end of the child wakes it"
    else:
        (ship if of == "nobody" else pay).using(id="ship-1").enqueue(41)
    job = work.enqueue(True)
    until(lambda: house.row(job.id).awaits == awaiting("signal:go"), "it has caught the error")
    [step] = house.app.steps(job.id)
    assert (step.kind, step.error_kind) == ("start", "holdfast.errors.KeyTaken")
    house.app.signal(job.id, "go")
    said = job.result(60)
    assert said == "job 'ship-1' exists, and is not a 'ship' that this workflow started; the child was not started"


def test_a_child_whose_key_is_taken_is_not_started(house: House) -> None:
    @house.app.task(name="t")
    def ship() -> None: ...

    @house.app.workflow(name="w", retry=Retry(attempts_max=1))
    def work(flow: Flow) -> None:
        flow.start(ship.using(key="order 1"))

    ship.using(key="order 1", run_after=600).enqueue()
    house.start()
    with pytest.raises(JobDead, match="the key 'order 1' belongs to another live job; the child was not started"):
        work.enqueue().result(60)


def test_a_workflow_meets_its_own_child_again(house: House) -> None:
    """Its record of the start was set aside, and the child has an id of the caller."""

    @house.app.task(name="t")
    def ship(n: int) -> int:
        return n

    @house.app.workflow(name="w", retry=Retry(attempts_max=1))
    def work(flow: Flow) -> int:
        shipped = flow.result(flow.start(ship.using(id="ship-1"), 7))
        flow.wait("go")
        return shipped

    house.start()
    job = work.enqueue()
    until(lambda: house.row(job.id).awaits == awaiting("signal:go"), "it has the result")
    house.app.cancel(job.id)
    house.app.retry_from(job.id, "t")
    house.app.signal(job.id, "go")
    assert job.result(60) == 7


def test_a_fork_gets_the_result_of_a_child_that_was_revived_after_it(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of the child wakes the workflow that started it, which has ended: the fork has to look."""
    monkeypatch.setattr("holdfast.workflow.run.LOOK_AGAIN_S", 0.2)
    is_mended, may_end = threading.Event(), threading.Event()

    @house.app.task(name="t", retry=Retry(attempts_max=1))
    def ship() -> str:
        if not is_mended.is_set():
            raise ValueError("no")
        assert may_end.wait(60)
        return "shipped"

    def pack() -> str:
        return "packed"

    @house.app.workflow(name="w")
    def work(flow: Flow) -> str:
        child = flow.start(ship)
        flow.step(pack)
        flow.wait("go")
        return flow.result(child)

    house.start(slots=2)
    job = work.enqueue()
    until(lambda: house.row(job.id).awaits == awaiting("signal:go"), "it waits")
    [child] = [row for row in house.store.find(Filter()) if row.parent == job.id]
    house.until_state(child.id, "dead")
    house.app.cancel(job.id)
    fork = house.app.fork(job.id, "pack")
    until(lambda: house.row(fork.id).awaits == awaiting("signal:go"), "it waits as well")
    is_mended.set()
    house.app.revive(child.id)
    house.app.signal(fork.id, "go")
    try:
        until(lambda: house.row(fork.id).awaits == awaiting(f"job:{child.id}"), "it waits for the child")
    finally:
        may_end.set()
    assert fork.result(60) == "shipped"


def test_a_child_that_dies_raises_in_its_parent_now_and_in_a_replay(house: House) -> None:
    @house.app.task(name="t", retry=Retry(attempts_max=1))
    def boom() -> None:
        raise ValueError("no")

    @house.app.workflow(name="p")
    async def parent(flow: AsyncFlow) -> str:
        child = await flow.start(boom)
        try:
            await flow.result(child)
        except JobDead as error:
            await flow.wait("go")
            return str(error)
        return ""

    house.start()
    job = parent.enqueue()
    until(lambda: house.row(job.id).awaits == awaiting("signal:go"), "it has caught the error")
    house.app.signal(job.id, "go")
    assert "ValueError: no" in job.result(60)


def test_a_dead_workflow_continues_with_the_result_of_its_revived_child(house: House) -> None:
    broken = [True]

    @house.app.task(name="t", retry=Retry(attempts_max=1))
    def work() -> int:
        if broken:
            raise ValueError("no")
        return 7

    @house.app.workflow(name="p")
    def parent(flow: Flow) -> int:
        return flow.result(flow.start(work))

    house.start()
    job = parent.enqueue()
    with pytest.raises(JobDead, match="it is not retried"):  # the default Retry has nine more attempts
        job.result(60)
    [child] = house.app.find(task="t")
    broken.clear()
    assert house.app.revive(child.id).result(60) == 7
    house.app.retry_from(job.id, "2")
    assert job.result(60) == 7
    assert len(house.app.find(task="t")) == 1


def test_a_signal_to_nobody_raises_in_the_workflow(house: House) -> None:
    @house.app.workflow(name="w")
    def work(flow: Flow) -> str:
        try:
            flow.signal("nobody", "go")
        except NotFound:
            return "nobody there"
        return ""

    house.start()
    job = work.enqueue()
    assert job.result(60) == "nobody there"
    with pytest.raises(Refused, match="has ended"):
        house.app.signal(job.id, "go")
    with pytest.raises(NotFound):
        house.app.signal("nobody", "go")


def test_ten_thousand_steps_are_replayed_without_growing_slow(one_house: House) -> None:
    spans: list[float] = []

    @one_house.app.workflow(name="w", lease_s=120)
    def work(flow: Flow, steps: int) -> int:
        began = time.process_time()  # of a busy machine only this process counts
        total = 0
        for _ in range(steps):
            total += flow.step(int, 1)
        spans.append(time.process_time() - began)
        flow.wait("go")
        return total

    one_house.start()
    job = work.enqueue(10_000)
    until(lambda: one_house.row(job.id).state == "waiting", "all steps are recorded", timeout_s=120)
    one_house.app.signal(job.id, "go")
    assert job.result(60) == 10_000
    assert spans[1] < 2.0


@pytest.mark.parametrize("form", ["sync", "async"])
def test_queued_signals_are_read_many_at_once(house: House, form: str) -> None:
    """Each wait used to read the whole inbox: of 10,000 signals 2,817 were taken in 100 s."""

    @house.app.workflow(name="sync", lease_s=120)
    def sync(flow: Flow, many: int) -> list[int]:
        return [flow.wait("go") for _ in range(many)]

    @house.app.workflow(name="async", lease_s=120)
    async def loop(flow: AsyncFlow, many: int) -> list[int]:
        return [await flow.wait("go") for _ in range(many)]

    many = 2 * SIGNALS_READ + 10
    job = (sync if form == "sync" else loop).enqueue(many)
    for number in range(many):
        house.store.real.signal(Signal(id=f"{job.id}-{number}", job_id=job.id, name="go", value=str(number)))
    house.start()
    assert job.result(100) == list(range(many))
    assert house.store.calls["inbox"] == 3


def test_ten_thousand_signals_are_taken_in_under_ten_seconds(one_house: House) -> None:
    spans: list[float] = []

    @one_house.app.workflow(name="w", lease_s=120)
    def work(flow: Flow, many: int) -> int:
        began = time.process_time()  # of a busy machine only this process counts
        last = [flow.wait("go") for _ in range(many)][-1]
        spans.append(time.process_time() - began)
        return int(last)

    job = work.enqueue(10_000)
    for number in range(10_000):
        one_house.store.real.signal(Signal(id=f"{job.id}-{number}", job_id=job.id, name="go", value=str(number)))
    one_house.start()
    assert job.result(100) == 9_999
    assert spans[0] < 10.0


def test_of_several_questions_the_one_that_is_shown_is_the_one_that_is_answered() -> None:
    """Branches come to a stand in any order; an answer goes to the first question in the order of what is awaited."""
    pay = Parking(None, awaiting("job:1", "signal:approve:4.10.1"), "Pay?", 3)
    ship = Parking(9.0, awaiting("signal:approve:4.2.1"), "Ship?", 2)
    for waits in ([pay, ship], [ship, pay]):
        found = merged(waits)
        assert answer_to(found.awaits) == "approve:4.10.1"
        assert (found.question, found.wake_at, found.inbox) == ("Pay?", 9.0, 2)


@pytest.mark.parametrize("call", ["wait", "signal"])
def test_answers_to_questions_are_no_signals_of_ones_own(one_house: House, call: str) -> None:
    @one_house.app.workflow(name="w", retry=Retry(attempts_max=1))
    def work(flow: Flow) -> None:
        if call == "wait":
            flow.wait("approve:1")
        else:
            flow.signal(flow.id, "APPROVE:1", True)

    one_house.start()
    with pytest.raises(JobDead, match=r"flow\.approve"):
        work.enqueue().result(60)


@pytest.mark.parametrize("form", ["sync", "async"])
@pytest.mark.parametrize("verb", ["steps", "inbox", "get"])
def test_a_store_that_fails_while_a_workflow_reads_costs_it_nothing(house: House, form: str, verb: str) -> None:
    """The workflow waits until the store is back, and goes on. It had no second try left."""

    @house.app.task(name="child")
    def child() -> int:
        return 7

    @house.app.workflow(name="sync", retry=Retry(attempts_max=1))
    def sync(flow: Flow) -> Any:
        return flow.result(flow.start(child)) + flow.wait("go")

    @house.app.workflow(name="async", retry=Retry(attempts_max=1))
    async def loop(flow: AsyncFlow) -> Any:
        return await flow.result(await flow.start(child)) + await flow.wait("go")

    failures = iter(range(3))

    def fail(*_: Any) -> None:
        if next(failures, None) is not None:
            raise StoreUnavailable("the test took it away")

    job = (sync if form == "sync" else loop).enqueue()
    house.app.signal(job.id, "go", 1)
    with house.store.before(verb, fail):
        house.start()
        real = house.store.real
        until(lambda: (real.get(job.id) or job.row).state in ("done", "dead"), "it ends")
    assert next(failures, None) is None, "the store has failed three times"
    row = house.row(job.id)
    assert (row.failures, row.releases, house.app.get(job.id).result(1)) == (0, 0, 8)


@pytest.mark.parametrize("by", ["key", "id"])
def test_a_workflow_that_runs_again_from_its_start_waits_for_the_child_that_it_has(house: House, by: str) -> None:
    gate, broken = threading.Event(), threading.Event()
    broken.set()
    shipped: list[int] = []

    @house.app.task(name="ship")
    def ship(n: int) -> int:
        shipped.append(n)
        gate.wait(60)
        return n

    def check() -> None:
        if broken.is_set():
            raise ValueError("broken")

    @house.app.workflow(name="w", retry=Retry(attempts_max=1))
    def work(flow: Flow) -> int:
        child = flow.start(ship.using(**{by: "ship-1"}), 1)  # type: ignore[arg-type]
        flow.step(check)
        return flow.result(child)

    house.start()
    job = work.enqueue()
    try:
        house.until_state(job.id, "dead")
        broken.clear()
        house.app.retry_from(job.id, "1")
        until(lambda: house.row(job.id).state == "waiting", "it waits for its child")
    finally:
        gate.set()
    assert job.result(60) == 1
    assert shipped == [1]


def test_a_workflow_that_starts_two_children_with_one_key_is_told(house: House) -> None:
    @house.app.task(name="ship")
    def ship(n: int) -> int:
        return n

    @house.app.workflow(name="w", retry=Retry(attempts_max=1))
    def work(flow: Flow) -> None:
        flow.start(ship.using(key="order 1", run_after=600), 1)
        flow.start(ship.using(key="order 1", run_after=600), 2)

    house.start()
    job = work.enqueue()
    with pytest.raises(JobDead, match="the key 'order 1' belongs to another live job; the child was not started"):
        job.result(60)
