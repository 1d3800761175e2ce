"""What people say of steps: answers that cannot be read, steps that may have happened, undos that were done by hand."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast import AsyncFlow, Flow, IllegalMove, Refused, Retry, Rollback
from holdfast.cli.commands import command_of
from holdfast.core.stop_reason import full_reason
from holdfast.core.verdict import Parked, Released
from holdfast.insight.explain import FIX_CODE, explain
from holdfast.stores.protocol import Filter
from tests.factory import a_step, awaiting, record, row, settle, start_flow
from tests.worker.house import House, until
from tests.workflow.test_undo import Gate, Shop, ended, lose

TWICE = Retry(attempts_max=2, base_s=0.0, cap_s=0.0)


@pytest.fixture
def shop() -> Shop:
    return Shop()


def state_of(house: House, job_id: str, name: str) -> tuple[str, str | None]:
    [step] = [step for step in house.app.steps(job_id) if step.name == name]
    return step.state, step.result


def checkout(house: House, shop: Shop, gate: Gate, kind: str = "sync") -> Any:
    """A workflow whose second step, which returns text, must not be repeated."""

    def sync(flow: Flow) -> str:
        flow.step(shop.do, "a", undo=shop.undo)
        paid = flow.step(gate, "pay", undo=shop.undo, repeatable=False, name="charge")
        return flow.step(shop.do, paid, name="ship")

    async def loop(flow: AsyncFlow) -> str:
        await flow.step(shop.do, "a", undo=shop.undo)
        paid = await flow.step(gate, "pay", undo=shop.undo, repeatable=False, name="charge")
        return await flow.step(shop.do, paid, name="ship")

    return house.app.workflow(name="w", retry=TWICE, crashes_max=9)(sync if kind == "sync" else loop)


def held_in_charge(house: House, shop: Shop, gate: Gate, kind: str = "sync") -> Any:
    """Such a one, held because its worker died in that step."""
    job = checkout(house, shop, gate, kind).enqueue()
    house.start(slots=4)
    assert gate.inside.wait(60)
    lose(house, job.id)
    ended(house, job.id, "held")
    return job


def answer_wrongly(house: House, job: Any) -> Any:
    """Say that the step returned a number, and wait until that was read."""
    before = house.row(job.id)
    house.app.resolve(job.id, "done", result=7, by="ann")
    return until(lambda: (row := house.row(job.id)).state == "held" and row.fence > before.fence + 1 and row, "asked")


# ------------------------------------------------------------------------------------- wrong answers


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_an_answer_that_cannot_be_read_is_asked_for_again(house: House, shop: Shop, kind: str) -> None:
    gate = Gate()
    job = held_in_charge(house, shop, gate, kind)
    for _ in range(3):  # more often than it may fail
        row = answer_wrongly(house, job)
        assert "7 was given for the step 'charge'" in row.error
        assert "Expected `str`, got `int`" in row.error
        assert row.stop_reason == "open_step"
        assert (row.open_step, row.failures, row.crashes, row.rolling_back) == ("charge", 0, 0, False)
        assert state_of(house, job.id, "charge") == ("started", None)
    house.app.resolve(job.id, "done", result="paid", by="ann")
    assert job.result(60) == "PAID"
    assert house.row(job.id).error is None, "what the error asked was answered"
    assert state_of(house, job.id, "charge") == ("recorded", '"paid"')
    gate.open.set()
    assert gate.runs == 1
    assert shop.lines == ["do a", "do paid"]


def test_after_a_wrong_answer_every_other_one_is_still_possible(house: House, shop: Shop) -> None:
    gate = Gate()
    job = held_in_charge(house, shop, gate)
    answer_wrongly(house, job)
    gate.open.set()
    house.app.resolve(job.id, "retry", by="ann")
    assert job.result(60) == "PAY"
    assert gate.runs == 2


@pytest.mark.parametrize(("answer", "state"), [("rollback", "rolled_back"), ("fail", "dead")])
def test_after_a_wrong_answer_it_can_be_given_up(house: House, shop: Shop, answer: Any, state: str) -> None:
    gate = Gate()
    job = held_in_charge(house, shop, gate)
    answer_wrongly(house, job)
    house.app.resolve(job.id, answer, by="ann")
    ended(house, job.id, state)
    gate.open.set()
    undos = ["undo pay None", "undo a A"] if answer == "rollback" else []
    assert shop.lines == ["do a", *undos]


def test_an_answer_that_nobody_has_read_goes_to_the_undo(house: House, shop: Shop) -> None:
    gate = Gate()
    job = held_in_charge(house, shop, gate)
    house.store.pause("default", True)
    house.app.resolve(job.id, "done", result="receipt", by="ann")
    assert state_of(house, job.id, "charge") == ("started", '"receipt"')
    house.app.rollback(job.id)
    house.store.pause("default", False)
    ended(house, job.id, "rolled_back")
    gate.open.set()
    assert shop.lines == ["do a", "undo pay receipt", "undo a A"]


def test_of_two_answers_the_wrong_one_is_asked_for_again(house: House) -> None:
    first, second = Gate(), Gate()

    @house.app.workflow(name="w", crashes_max=9)
    async def work(flow: AsyncFlow) -> list[str]:
        charge, mail = (
            flow.step(first, repeatable=False, name="charge"),
            flow.step(second, repeatable=False, name="mail"),
        )
        return await flow.gather(charge, mail)

    house.start(slots=2)
    job = work.enqueue()
    assert first.inside.wait(60)
    assert second.inside.wait(60)
    lose(house, job.id)
    opened = ended(house, job.id, "held").open_step
    assert house.app.resolve(job.id, "done", result=7).row.open_step != opened
    row = answer_wrongly(house, job)
    while row.state == "held":
        house.app.resolve(job.id, "done", result="yes")
        row = until(lambda: (row := house.row(job.id)).state in ("held", "done") and row, "it was read")
    assert job.result(60) == ["yes", "yes"]
    first.open.set()
    second.open.set()
    assert (first.runs, second.runs) == (1, 1)


# ---------------------------------------------------------------------------- approved once, begun once


def test_an_abandoned_open_step_runs_again_only_on_explicit_request(house: House, shop: Shop) -> None:
    gate = Gate()
    job = held_in_charge(house, shop, gate)
    house.app.resolve(job.id, "fail", by="ann")
    with pytest.raises(IllegalMove, match="must not be repeated"):
        house.app.revive(job.id, by="bob")
    assert house.row(job.id).state == "dead"
    for runs in (2, 3):  # each approval is good for one start
        gate.inside.clear()
        house.app.revive(job.id, by="bob", repeat_step=True)
        assert gate.inside.wait(60)
        assert gate.runs == runs
        lose(house, job.id)
        ended(house, job.id, "held")
        with pytest.raises(IllegalMove, match="must not be repeated"):
            house.app.revive(job.id, by="bob")
    house.app.resolve(job.id, "done", result="paid")
    assert job.result(60) == "PAID"
    gate.open.set()
    said = [(event.actor, event.detail["repeat_step"]) for event in house.events(job.id, "revived")]
    assert said == [("bob", "charge")] * 2


def test_each_of_two_open_steps_is_approved_by_itself(house: House) -> None:
    first, second = Gate(), Gate()

    @house.app.workflow(name="w", crashes_max=9)
    def work(flow: Flow) -> list[str]:
        return flow.gather(
            lambda: flow.step(first, "a", repeatable=False, name="charge"),
            lambda: flow.step(second, "b", repeatable=False, name="mail"),
        )

    house.start(slots=2)
    job = work.enqueue()
    assert first.inside.wait(60)
    assert second.inside.wait(60)
    lose(house, job.id)
    opened = ended(house, job.id, "held").open_step
    first.open.set()
    second.open.set()
    row = house.app.resolve(job.id, "retry").row
    assert (row.state, row.open_step) == ("held", "mail" if opened == "charge" else "charge")
    house.app.resolve(job.id, "done", result="by post")
    approved, other = (first, second) if opened == "charge" else (second, first)
    assert job.result(60) == (["a", "by post"] if approved is first else ["by post", "b"])
    assert (approved.runs, other.runs) == (2, 1)


# -------------------------------------------------------------------------- records that do not fit any more


class Code:
    """A deploy: which function the workflow calls."""

    def __init__(self) -> None:
        self.is_new = False

    @property
    def fn(self) -> Any:
        def old(what: str = "") -> int:
            return 7

        def new(what: str = "") -> str:
            return "seven"

        return new if self.is_new else old


def test_a_result_that_the_code_cannot_read_any_more_is_no_failure(house: House, shop: Shop) -> None:
    code = Code()

    @house.app.workflow(name="w", retry=TWICE)
    def work(flow: Flow) -> Any:
        flow.step(shop.do, "a", undo=shop.undo)
        found = flow.step(code.fn, name="count")
        flow.wait("go")
        return found

    house.start()
    job = work.enqueue()
    ended(house, job.id, "waiting")
    code.is_new = True
    house.app.signal(job.id, "go")
    row = ended(house, job.id, "held")
    assert "7 is recorded as number 2" in row.error
    assert "Expected `str`, got `int`" in row.error
    assert (row.failures, row.rolling_back) == (0, False)
    code.is_new = False
    house.app.resolve(job.id, "retry")
    assert job.result(60) == 7
    assert shop.lines == ["do a"]


@pytest.mark.parametrize("way", ["by hand", "mended"])
def test_an_undo_whose_result_cannot_be_read_holds_and_there_are_ways_out(house: House, shop: Shop, way: str) -> None:
    code = Code()

    @house.app.workflow(name="w", retry=TWICE)
    def work(flow: Flow) -> None:
        flow.step(shop.do, "a", undo=shop.undo)
        flow.step(code.fn, "count", undo=shop.undo, name="count")
        if not flow.job.rolling_back:
            code.is_new = True
        raise Rollback("why")

    house.start()
    job = work.enqueue()
    row = ended(house, job.id, "held")
    assert row.rolling_back
    for part in ("7 is recorded as number 2", "Expected `str`", "because of: Rollback: why"):
        assert part in str(full_reason(row))
    assert "holdfast" not in str(row.error), "what a person can do is not part of the error"
    shown = explain(house.store, row)
    assert FIX_CODE in shown.sentence
    assert f"holdfast held done {job.id} --fence {row.fence}" in [command_of(choice) for choice in shown.choices]
    assert shop.lines == ["do a"]
    if way == "by hand":
        house.app.resolve(job.id, "done", by="ann", note="paid back by hand")
        ended(house, job.id, "rolled_back")
        assert shop.lines == ["do a", "undo a A"]
        [said] = house.events(job.id, "resolved")
        assert (said.actor, said.detail["undone"], said.detail["note"]) == ("ann", "count", "paid back by hand")
    else:
        code.is_new = False
        house.app.resolve(job.id, "retry")
        ended(house, job.id, "rolled_back")
        assert shop.lines == ["do a", "undo count 7", "undo a A"]
    assert [step.state for step in house.app.steps(job.id)] == ["undone", "undone"]


def test_an_undo_that_keeps_failing_may_be_done_by_hand(house: House, shop: Shop) -> None:
    @house.app.workflow(name="w", retry=TWICE)
    def work(flow: Flow) -> None:
        flow.step(shop.do, "a", undo=shop.undo)
        flow.step(shop.do, "b", undo=shop.undo, name="second")
        raise Rollback("why")

    shop.broken = 2
    house.start()
    job = work.enqueue()
    ended(house, job.id, "held")
    with pytest.raises(IllegalMove, match="'second' was undone by hand"):
        house.app.resolve(job.id, "done", result="x")
    house.app.resolve(job.id, "done", by="ann")
    assert "Rollback: why" in ended(house, job.id, "rolled_back").error
    assert shop.lines == ["do a", "do b", "undo b B", "undo b B", "undo a A"]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_arguments_that_do_not_fit_fail_and_hold_what_could_not_be_undone(house: House, shop: Shop, kind: str) -> None:
    def sync(flow: Flow, order: int) -> None:
        flow.step(shop.do, "a", undo=shop.undo)

    async def loop(flow: AsyncFlow, order: int) -> None:
        await flow.step(shop.do, "a", undo=shop.undo)

    work: Any = house.app.workflow(name="w", retry=TWICE)(sync if kind == "sync" else loop)
    odd = replace(work.job(1).new, payload='{"oder":1}')
    store = house.store.real
    begun = start_flow(store, task="w", payload=odd.payload)
    record(store, begun, a_step(1, name="do", has_undo=True, result='"A"'), undoable=True)
    settle(store, row(store, begun.id), Released(started=True, cause="stopped"))
    store.add([odd])
    house.start()
    fresh = ended(house, odd.id, "dead")
    assert (fresh.failures, "unexpected argument 'oder'" in fresh.error) == (2, True)
    held = ended(house, begun.id, "held")
    assert (held.failures, held.rolling_back) == (0, False)
    assert "the code does not fit the arguments" in held.error
    house.app.rollback(begun.id)  # for that it needs the arguments, too
    again = until(lambda: (now := house.row(begun.id)).state == "held" and now.rolling_back and now, "it is held")
    assert again.failures == 0
    house.app.resolve(begun.id, "done", by="ann")  # but not if nothing is left
    ended(house, begun.id, "rolled_back")
    assert shop.lines == []


# ------------------------------------------------------------- what changed between the look and the answer


def before_the_call(house: House, patch: pytest.MonkeyPatch, verb: str, first: Callable[[], object]) -> None:
    """Let something happen after a caller has looked and before the store does what it asks for."""
    real = getattr(house.app.store, verb)

    def late(*given: Any) -> Any:
        first()
        return real(*given)

    patch.setattr(house.app.store, verb, late)


def test_an_answer_that_comes_when_the_question_was_given_up_is_not_called_accepted(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    asking = start_flow(house.store, queue="asks")
    awaits = awaiting("signal:approve:1")
    assert settle(house.store, asking, Parked("waits", house.store.now().wall - 1, awaits, "Ship it?")) == "accepted"
    before_the_call(house, monkeypatch, "signal", lambda: house.store.wake_due())
    with pytest.raises(Refused, match="ready and does not ask that any more; look again"):
        house.app.approve(asking.id)
    assert house.store.inbox(asking.id).signals == []


def test_a_workflow_that_runs_again_during_a_fork_is_not_copied_in_part(
    house: House, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    @house.app.workflow(name="w", retry=Retry(attempts_max=1))
    def work(flow: Flow) -> None:
        flow.step(shop.do, "a", name="first", repeatable=False)
        flow.step(shop.do, "b", name="second")
        raise ValueError("no luck")

    runner = house.start()
    job = work.enqueue()
    ended(house, job.id, "dead")
    house.stop(runner)
    before_the_call(house, monkeypatch, "fork", lambda: house.app.retry_from(job.id, "first", repeat_step=True))
    with pytest.raises(Refused, match="was run again meanwhile"):
        house.app.fork(job.id, "second")
    assert [row.id for row in house.store.find(Filter())] == [job.id]
