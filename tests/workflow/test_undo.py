"""Rollback: undos in reverse, each recorded; open steps and people's answers."""

import asyncio
import contextlib
import logging
import os
import re
import threading
from typing import Any

import pytest

from holdfast import AsyncFlow, Flow, IllegalMove, JobRolledBack, NotFound, Refused, Retry, Rollback, insight
from holdfast.cli import job_page
from holdfast.core.settlement import Settlement
from holdfast.core.stop_reason import full_reason
from holdfast.core.verdict import Lost
from holdfast.errors import StoreError
from holdfast.stores.protocol import Reply
from tests.factory import a_step, record, settlement
from tests.worker.house import House, until
from tests.worker.meddler import once

ONCE = Retry(attempts_max=1)


class Shop:
    """A world outside: what was done, and undone, to it."""

    def __init__(self) -> None:
        self.lines: list[Any] = []
        self.broken = 0

    def do(self, what: str) -> str:
        self.lines.append(f"do {what}")
        return what.upper()

    def undo(self, result: str | None, what: str) -> None:
        self.lines.append(f"undo {what} {result}")
        if self.broken:
            self.broken -= 1
            raise OSError("the undo fails")

    def fail(self) -> None:
        raise ValueError("no")


@pytest.fixture
def shop() -> Shop:
    return Shop()


def ended(house: House, job_id: str, state: str) -> Any:
    return until(lambda: house.row(job_id).state == state and house.row(job_id), f"it is {state}")


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_failure_for_good_undoes_in_reverse_with_the_recorded_results(house: House, shop: Shop, kind: str) -> None:
    @house.app.workflow(name="sync", retry=ONCE)
    def sync(flow: Flow) -> None:
        flow.step(shop.do, "a", undo=shop.undo)
        flow.step(shop.do, "b")
        flow.step(shop.do, "c", undo=shop.undo, name="third")
        flow.step(shop.fail)

    @house.app.workflow(name="async", retry=ONCE)
    async def loop(flow: AsyncFlow) -> None:
        await flow.step(shop.do, "a", undo=shop.undo)
        await flow.step(shop.do, "b")
        await flow.step(shop.do, "c", undo=shop.undo, name="third")
        await flow.step(shop.fail)

    house.start()
    job = (sync if kind == "sync" else loop).enqueue()
    with pytest.raises(JobRolledBack, match="ValueError: no"):
        job.result(60)
    assert shop.lines == ["do a", "do b", "do c", "undo c C", "undo a A"]
    assert [step.state for step in house.app.steps(job.id)] == ["undone", "recorded", "undone"]
    assert [event.kind for event in house.app.get(job.id).events() if event.kind == "rolled_back"] == ["rolled_back"]


@pytest.mark.parametrize("repeatable", [True, False])
@pytest.mark.parametrize("caught", [True, False])
def test_a_step_that_raised_may_have_happened_and_is_undone(
    one_house: House, shop: Shop, repeatable: bool, caught: bool
) -> None:
    @one_house.app.workflow(name="w", retry=ONCE)
    def work(flow: Flow) -> None:
        flow.step(shop.do, "a", undo=shop.undo)
        with contextlib.suppress(ValueError if caught else ZeroDivisionError):
            flow.step(shop.fail, undo=lambda result: shop.lines.append(f"undo {result}"), repeatable=repeatable)
        raise Rollback("enough")

    one_house.start()
    with pytest.raises(JobRolledBack):
        work.enqueue().result(60)
    assert shop.lines == ["do a", "undo None", "undo a A"]


def test_nothing_is_undone_while_a_step_that_cannot_be_stopped_goes_on(
    one_house: House, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.worker.time_limits.ABANDON_S", 0.2)
    begun, read_end, write_end = threading.Event(), *os.pipe()

    def charge() -> None:
        try:
            begun.set()
            os.read(read_end, 1)  # a call that no interrupt reaches
        finally:
            shop.lines.append("charge has ended")

    @one_house.app.workflow(name="w", retry=ONCE)
    def work(flow: Flow) -> None:
        flow.step(charge, undo=lambda result: shop.lines.append(f"undo charge {result}"), repeatable=False)

    one_house.start()
    job = work.enqueue()
    begun.wait(60)
    one_house.app.rollback(job.id, by="ann", note="withdrawn")
    row = one_house.until_state(job.id, "held")
    assert row.error == "withdrawn; cancelled while running; its handler did not stop and was given up"
    assert row.stop_reason == "still_running"
    os.write(write_end, b"x")
    until(lambda: shop.lines == ["charge has ended"])
    one_house.app.rollback(job.id, by="ann")
    with pytest.raises(JobRolledBack):
        job.result(60)
    assert shop.lines == ["charge has ended", "undo charge None"]
    for end in (read_end, write_end):
        os.close(end)


@pytest.mark.parametrize("form", ["sync", "async"])
def test_an_undo_that_blocks_past_its_timeout_is_not_started_again_beside_itself(
    house: House, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three refunds overlapped: the first one blocked, and the workflow was run again by its budget."""
    monkeypatch.setattr("holdfast.worker.time_limits.ABANDON_S", 0.2)
    lines, blocks, pipe = [], True, os.pipe()

    def refund(result: object) -> None:
        lines.append("begun")
        try:
            if blocks:
                os.read(pipe[0], 1)  # a call that no interrupt reaches
        finally:
            lines.append("ended")

    options: Any = {"retry": Retry(attempts_max=5, base_s=0.0, cap_s=0.0), "timeout_s": 0.5}

    @house.app.workflow(name="sync", **options)
    def sync(flow: Flow) -> None:
        flow.step(int, undo=refund)
        raise Rollback("why")

    @house.app.workflow(name="async", **options)
    async def loop(flow: AsyncFlow) -> None:
        await flow.step(int, undo=refund)
        raise Rollback("why")

    try:
        house.start()
        job = (sync if form == "sync" else loop).enqueue()
        held = house.until_state(job.id, "held", 60)
        assert "its undo may still be at work, so nothing is undone at the same time" in str(full_reason(held))
        assert held.rolling_back
        assert lines == ["begun"]
        blocks = False
    finally:
        os.close(pipe[1])  # every call that reads comes back
    until(lambda: len(lines) == 2, "the undo has ended")
    house.app.resolve(job.id, "retry", by="ann")
    with pytest.raises(JobRolledBack):
        job.result(60)
    assert lines == ["begun", "ended", "begun", "ended"]
    os.close(pipe[0])


def test_on_the_loop_nothing_is_undone_while_a_step_goes_on_in_a_thread(
    one_house: House, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.worker.time_limits.ABANDON_S", 0.2)
    begun, pipe = threading.Event(), os.pipe()

    def charge() -> None:
        try:
            begun.set()
            os.read(pipe[0], 1)
        finally:
            shop.lines.append("charge has ended")

    @one_house.app.workflow(name="w", retry=ONCE)
    async def work(flow: AsyncFlow) -> None:
        await flow.step(charge, undo=lambda result: shop.lines.append("undone"))

    try:
        one_house.start()
        job = work.enqueue()
        assert begun.wait(60)
        one_house.app.rollback(job.id, by="ann")
        one_house.until_state(job.id, "held", 60)
        assert shop.lines == []
    finally:
        os.close(pipe[1])  # every call that reads comes back
    until(lambda: shop.lines == ["charge has ended"])
    one_house.app.rollback(job.id, by="ann")
    with pytest.raises(JobRolledBack):
        job.result(60)
    assert shop.lines == ["charge has ended", "undone"]
    os.close(pipe[0])


def test_on_the_loop_a_blocking_step_is_stopped_when_its_time_is_up(one_house: House) -> None:
    """The next try begins when the one before it has ended, and not beside it."""
    lines: list[str] = []

    @one_house.app.workflow(name="w")
    async def work(flow: AsyncFlow) -> str:
        def slow() -> None:
            lines.append("begun")
            try:
                while True:
                    threading.Event().wait(0.01)
            finally:
                lines.append("stopped")

        try:
            await flow.step(slow, timeout_s=2, retry=Retry(attempts_max=2, base_s=0.0, cap_s=0.0))
        except TimeoutError as error:
            return str(error)
        return ""

    one_house.start()
    assert work.enqueue().result(60) == "the step took longer than 2 s"
    assert lines == ["begun", "stopped"] * 2


def test_a_workflow_that_fails_for_good_is_told_to_be_rolled_back_and_what_its_numbers_are_of(
    house: House, shop: Shop, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    @house.app.workflow(retry=Retry(attempts_max=2, base_s=0.0, cap_s=0.0))
    def order(flow: Flow) -> None:
        flow.step(shop.do, "a", undo=shop.undo)
        flow.step(shop.fail)

    with caplog.at_level(logging.WARNING, logger="holdfast.worker"):
        house.start()
        job = order.enqueue()
        ended(house, job.id, "rolled_back")
    said = [text for text in caplog.messages if job.id in text]
    assert "attempt 1 ended, now to be run again: ValueError: no" in said[0]
    assert "attempt 2 ended, now to be rolled back: ValueError: no; failed or crashed 2 times" in said[1]
    job_page.tell(house.store, house.row(job.id))
    told = capsys.readouterr().out
    assert re.search(r"attempts +3; 0 failed and 0 crashed since it began to roll back", told)
    assert re.search(r"2  \S*fail +failed", told)
    assert "raised ValueError: no" in told


def test_nothing_to_undo_is_dead(house: House, shop: Shop) -> None:
    @house.app.workflow(name="w", retry=ONCE)
    def work(flow: Flow) -> None:
        flow.step(shop.do, "a")
        flow.step(shop.fail)

    house.start()
    assert ended(house, work.enqueue().id, "dead").error.startswith("ValueError: no")


def test_an_exception_asks_for_a_rollback_at_once(house: House, shop: Shop) -> None:
    @house.app.workflow(name="w")
    def work(flow: Flow) -> None:
        flow.step(shop.do, "a", undo=shop.undo)
        raise Rollback("the customer went away")

    house.start()
    assert ended(house, work.enqueue().id, "rolled_back").error == "Rollback: the customer went away"
    assert shop.lines == ["do a", "undo a A"]


def test_an_undo_that_fails_is_tried_again_and_the_others_are_not(house: House, shop: Shop) -> None:
    @house.app.workflow(name="w", retry=Retry(attempts_max=3, base_s=0.0, cap_s=0.0))
    def work(flow: Flow) -> None:
        flow.step(shop.do, "a", undo=shop.undo)
        flow.step(shop.do, "b", undo=shop.undo, name="second")
        raise Rollback("why")

    shop.broken = 2
    house.start()
    job = work.enqueue()
    assert ended(house, job.id, "rolled_back").error == "Rollback: why"
    assert shop.lines == ["do a", "do b", "undo b B", "undo b B", "undo b B", "undo a A"]


def test_an_undo_that_keeps_failing_holds_and_goes_on_when_it_is_told_to(house: House, shop: Shop) -> None:
    @house.app.workflow(name="w", retry=Retry(attempts_max=2, base_s=0.0, cap_s=0.0))
    def work(flow: Flow) -> None:
        flow.step(shop.do, "a", undo=shop.undo)
        raise Rollback("why")

    shop.broken = 2
    house.start()
    job = work.enqueue()
    held = ended(house, job.id, "held")
    assert (held.error, held.rollback_cause) == ("OSError: the undo fails", "Rollback: why")
    assert held.rolling_back
    house.app.resolve(job.id, "retry", by="ann")
    ended(house, job.id, "rolled_back")
    assert shop.lines == ["do a", "undo a A", "undo a A", "undo a A"]


def test_branches_are_undone_in_the_reverse_order_of_their_records(house: House, shop: Shop) -> None:
    @house.app.workflow(name="w")
    async def work(flow: AsyncFlow) -> None:
        first = asyncio.Event()

        async def slow(what: str) -> str:
            await first.wait()
            return shop.do(what)

        async def quick(what: str) -> str:
            first.set()
            return shop.do(what)

        await flow.gather(
            flow.step(slow, "slow", undo=shop.undo, name="a"), flow.step(quick, "quick", undo=shop.undo, name="b")
        )
        raise Rollback("why")

    house.start()
    ended(house, work.enqueue().id, "rolled_back")
    assert shop.lines == ["do quick", "do slow", "undo quick QUICK", "undo slow SLOW"]


def lose(house: House, job_id: str) -> None:
    """Settle the running attempt as its reaper would: its worker is lost."""
    [answer] = house.store.real.settle(
        [settlement(house.row(job_id), Lost("exit", "killed"), now=house.store.now().wall)]
    )
    assert answer == "accepted"


class Gate:
    """A step that stands still while a test takes its lease away."""

    def __init__(self) -> None:
        self.inside = threading.Event()
        self.open = threading.Event()
        self.runs = 0

    def __call__(self, what: str = "x") -> str:
        self.runs += 1
        self.inside.set()
        assert self.open.wait(60)
        return what


def test_a_step_that_got_its_undo_after_it_was_begun_is_undone(house: House, shop: Shop) -> None:
    """A deploy between two attempts: what counts is the code that has run it to its record."""
    gate, undos = Gate(), [None, shop.undo]

    @house.app.workflow(name="w", crashes_max=9)
    def work(flow: Flow) -> None:
        undo = undos[0] if flow.ctx.attempt == 1 else undos[1]
        flow.step(gate, "x", undo=undo, repeatable=False, name="charge")
        raise Rollback("why")

    house.start(slots=2)
    job = work.enqueue()
    assert gate.inside.wait(60)
    lose(house, job.id)
    gate.open.set()
    house.app.resolve(job.id, "retry")
    ended(house, job.id, "rolled_back")
    assert shop.lines == ["undo x x"]


def test_a_step_that_is_run_again_began_when_it_was_run_again_and_ended_before_it_was_undone(
    one_house: House, shop: Shop
) -> None:
    gate = Gate()

    @one_house.app.workflow(name="w", crashes_max=9)
    def work(flow: Flow) -> None:
        flow.step(gate, "x", undo=shop.undo, name="charge")
        raise Rollback("why")

    one_house.start(slots=2)
    job = work.enqueue()
    assert gate.inside.wait(60)
    [begun] = one_house.app.steps(job.id)
    lost_at = one_house.store.now().wall  # before it is: from then on it may begin anew
    lose(one_house, job.id)
    gate.open.set()
    ended(one_house, job.id, "rolled_back")
    [step] = one_house.app.steps(job.id)
    assert None not in (begun.started_at, step.started_at, step.ended_at, step.undone_at)
    assert begun.started_at < lost_at <= step.started_at <= step.ended_at <= step.undone_at  # type: ignore[operator]
    [death] = insight.deaths([step], one_house.store.journal(job.id))
    assert (death.place, death.inside) == ("in or before charge (1)", False)


@pytest.mark.parametrize("on_crash", ["retry", "rollback", "fail", "hold"])
def test_a_death_in_a_step_that_must_not_be_repeated_holds_whatever_on_crash_says(
    house: House, shop: Shop, on_crash: Any
) -> None:
    gate = Gate()

    @house.app.workflow(name="w", on_crash=on_crash)
    def work(flow: Flow) -> str:
        flow.step(shop.do, "a", undo=shop.undo)
        paid = flow.step(gate, "pay", repeatable=False, name="charge")
        return flow.step(shop.do, paid, name="ship")

    house.start()
    job = work.enqueue()
    assert gate.inside.wait(60)
    assert house.row(job.id).open_step == "charge"
    lose(house, job.id)
    held = ended(house, job.id, "held")
    assert held.stop_reason == "open_step"
    with pytest.raises(IllegalMove, match="say what it returned"):
        house.app.resolve(job.id, "done", by="ann")
    house.app.resolve(job.id, "done", result="paid", by="ann")
    assert job.result(60) == "PAID"
    gate.open.set()
    assert gate.runs == 1
    assert shop.lines == ["do a", "do paid"]
    until(
        lambda: [each.detail.get("verb") for each in job.events() if each.kind == "stale_report"], "the zombie is told"
    )


def test_a_step_that_began_behind_the_judges_back_is_held(house: House) -> None:
    """A thread that was given up, or a process whose last record was on the wire, began it after the worker judged."""

    @house.app.workflow(name="w", retry=ONCE)
    def work(flow: Flow) -> None:
        flow.step(str)
        raise ValueError("no luck")

    began = []

    def begin(batch: list[Settlement], *_: Any) -> None:
        if not began:
            began.append(batch[0].lease)
            steps = a_step(2, "started", repeatable=False, name="charge")
            assert record(house.store.real, began[0], steps, open_step="charge") is Reply.ACCEPTED

    with house.store.before("settle", begin):
        house.start()
        held = house.until_state(work.enqueue().id, "held")
    assert (held.open_step, held.attempt, held.failures) == ("charge", 1, 1)
    assert house.store.calls["settle"] == 2, "judged twice, and no more"
    assert house.events(held.id, "stale_report") == []


def test_a_step_whose_beginning_was_never_written_needs_nobody(house: House, shop: Shop) -> None:
    """The worker had noted that it may be open; the row knows better, since the function did not run."""

    @house.app.workflow(name="w", retry=Retry(attempts_max=2, base_s=0.0, cap_s=0.0))
    def work(flow: Flow) -> Any:
        return flow.step(shop.do, "charge", undo=shop.undo, repeatable=False)

    with house.store.before("record", once(StoreError("no store takes this"))):
        house.start()
        job = work.enqueue()
        assert job.result(60) == "CHARGE"
    assert shop.lines == ["do charge"]
    assert (house.row(job.id).attempt, house.kinds(job.id)) == (2, ["failed", "succeeded"])


def test_the_other_answers_run_it_roll_back_or_give_up(house: House, shop: Shop) -> None:
    gates = {answer: Gate() for answer in ("retry", "rollback", "fail")}

    @house.app.workflow(name="w", lease_s=30)
    def work(flow: Flow, answer: str) -> str:
        flow.step(shop.do, answer, undo=shop.undo)
        return flow.step(gates[answer], "paid", undo=shop.undo, repeatable=False, name="charge")

    house.start()
    jobs = {answer: work.enqueue(answer) for answer in gates}
    for answer, job in jobs.items():
        assert gates[answer].inside.wait(60)
        lose(house, job.id)
        ended(house, job.id, "held")
        gates[answer].open.set()
        house.app.resolve(job.id, answer, by="ann")  # type: ignore[arg-type]
    assert jobs["retry"].result(60) == "paid"
    assert gates["retry"].runs == 2
    ended(house, jobs["rollback"].id, "rolled_back")
    ended(house, jobs["fail"].id, "dead")
    assert [line for line in shop.lines if "undo" in line] == ["undo paid None", "undo rollback ROLLBACK"]


def test_a_zombie_records_nothing_sends_nothing_and_starts_nothing(house: House, shop: Shop) -> None:
    gate = Gate()
    went_on: list[str] = []

    @house.app.task(name="t")
    def child() -> None: ...

    @house.app.workflow(name="other")
    def other(flow: Flow) -> Any:
        return flow.wait("go", timeout=3600)

    @house.app.workflow(name="w", crashes_max=9)
    def work(flow: Flow, target: str, how: str) -> str:
        if flow.ctx.attempt > 1:
            return "the successor"
        gate()
        try:
            if how == "start":
                flow.start(child)
            elif how == "signal":
                flow.signal(target, "go")
            else:
                flow.step(shop.do, "zombie")
        except Exception:
            went_on.append(how)
        went_on.append(how)
        return "the zombie"

    house.start(slots=4)
    target = other.enqueue()
    for how in ("step", "start", "signal"):
        gate.inside.clear()
        gate.open.clear()
        job = work.enqueue(target.id, how)
        assert gate.inside.wait(60)
        zombie = house.row(job.id)
        house.store.real.settle([settlement(zombie, Lost("exit", "killed"), now=house.store.now().wall)])
        assert job.result(60) == "the successor"
        gate.open.set()
        until(lambda job=job: [e for e in job.events() if e.kind == "stale_report"], "the zombie is told")
        assert house.app.steps(job.id) == []
    assert went_on == []
    assert house.app.find(task="t") == []
    assert house.row(target.id).inbox == 0


def test_a_person_rolls_back_what_waits_runs_or_is_dead(house: House, shop: Shop) -> None:
    gate = Gate()

    @house.app.workflow(name="waits")
    def waits(flow: Flow) -> None:
        flow.step(shop.do, "waits", undo=shop.undo)
        flow.wait("go")

    @house.app.workflow(name="runs")
    def runs(flow: Flow) -> None:
        flow.step(shop.do, "runs", undo=shop.undo)
        while True:
            flow.ctx.progress()
            gate.inside.set()

    @house.app.workflow(name="dead", retry=ONCE, on_crash="fail")
    def dead(flow: Flow) -> None:
        flow.step(shop.do, "dead", undo=shop.undo)
        raise ValueError("no")

    house.start()
    jobs = [waits.enqueue(), runs.enqueue(), dead.enqueue()]
    ended(house, jobs[0].id, "waiting")
    assert gate.inside.wait(60)
    ended(house, jobs[2].id, "dead")
    for job in jobs:
        house.app.rollback(job.id, by="ann", note="not wanted")
    for job in jobs:
        ended(house, job.id, "rolled_back")
    assert sorted(line for line in shop.lines if "undo" in line) == [
        *("undo dead DEAD", "undo runs RUNS", "undo waits WAITS"),
    ]
    assert house.row(jobs[0].id).error == "not wanted"
    with pytest.raises(IllegalMove, match="rolled back"):
        house.app.rollback(jobs[0].id)


def test_a_cancel_undoes_nothing(house: House, shop: Shop) -> None:
    @house.app.workflow(name="w")
    def work(flow: Flow) -> None:
        flow.step(shop.do, "a", undo=shop.undo)
        flow.wait("go")

    house.start()
    job = work.enqueue()
    ended(house, job.id, "waiting")
    house.app.cancel(job.id)
    assert house.row(job.id).state == "cancelled"
    assert shop.lines == ["do a"]


def test_a_retry_from_a_step_keeps_what_is_before_it(house: House, shop: Shop) -> None:
    @house.app.workflow(name="w", retry=ONCE, on_crash="fail")
    def work(flow: Flow) -> str:
        flow.step(shop.do, "a", name="first")
        flow.step(shop.do, "b", name="second")
        flow.step(shop.do, "c", name="third")
        if flow.ctx.attempt == 1:
            raise ValueError("no")
        return "fine"

    house.start()
    job = work.enqueue()
    ended(house, job.id, "dead")
    with pytest.raises(NotFound, match="known: first, second, third"):
        house.app.retry_from(job.id, "nothing")
    house.app.retry_from(job.id, "second", by="ann")
    assert job.result(60) == "fine"
    assert shop.lines == ["do a", "do b", "do c", "do b", "do c"]
    aside = [(step.name, step.aside > 0) for step in house.app.steps(job.id, aside=True)]
    assert sorted(aside) == [("first", False), ("second", False), ("second", True), ("third", False), ("third", True)]
    [moved] = [event for event in job.events() if event.kind == "moved"]
    assert moved.detail["set_aside"] == ["second", "third"]
    assert moved.actor == "ann"


def test_a_fork_begins_where_another_one_was(house: House, shop: Shop) -> None:
    @house.app.workflow(name="w")
    def work(flow: Flow, n: int) -> str:
        first = flow.step(shop.do, "a", name="first")
        return first + flow.step(shop.do, str(n), name="second")

    house.start()
    job = work.enqueue(1)
    assert job.result(60) == "A1"
    fork = house.app.fork(job.id, "second", args=[2])
    assert fork.result(60) == "A2"
    same = house.app.fork(job.id, "second")
    assert same.result(60) == "A1"
    assert shop.lines == ["do a", "do 1", "do 2", "do 1"]
    waiting = work.using(run_after=60).enqueue(1)
    with pytest.raises(Refused, match="has ended"):
        house.app.fork(waiting.id, "second")
