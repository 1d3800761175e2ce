"""Open steps: what the row says of them, whatever threads and people do at the worst moment."""

import threading
from typing import Any

import pytest

from holdfast import Flow, Refused
from holdfast.core.records import Record, Step
from holdfast.core.replay import FlowCall
from holdfast.core.verdict import Lost
from holdfast.workflow.recorder import Recorder
from holdfast.workflow.run import Run
from tests.factory import a_step, again, record, row, settle, start_flow
from tests.worker.house import House, until
from tests.workflow.test_undo import Gate, ended, lose


def test_what_the_row_says_is_open_comes_in_the_order_in_which_it_was_so(
    one_house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One branch ends its step while another one begins one: the last word must be that something is open."""
    house, put = one_house, Recorder.put
    first, second, closing, begun = Gate(), Gate(), threading.Event(), threading.Event()

    def slow_put(recorder: Recorder, record: Record, done: Any) -> None:
        if record.open_step == "" and record.steps[0].name == "charge":
            closing.set()
            begun.wait(1.0)  # whoever begins meanwhile comes first, if he can
        put(recorder, record, done)
        if record.open_step == "mail":
            begun.set()

    monkeypatch.setattr(Recorder, "put", slow_put)

    @house.app.workflow(name="w", crashes_max=9)
    def work(flow: Flow) -> list[str]:
        def other() -> str:
            closing.wait(60)
            return flow.step(second, "b", repeatable=False, name="mail")

        return flow.gather(lambda: flow.step(first, "a", repeatable=False, name="charge"), other)

    first.open.set()
    house.start(slots=2)
    job = work.enqueue()
    assert second.inside.wait(60)
    until(lambda: [step.state for step in house.app.steps(job.id)] == ["recorded", "started"], "one is recorded")
    assert house.row(job.id).open_step == "mail"
    lose(house, job.id)
    assert ended(house, job.id, "held").open_step == "mail"
    second.open.set()


def test_a_person_is_asked_about_the_step_that_stands_first(one_house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever branch is faster: what is shown on the row is what an answer is taken for."""
    house, put = one_house, Recorder.put
    first, second, begun = Gate(), Gate(), threading.Event()

    def slow_put(recorder: Recorder, record: Record, done: Any) -> None:
        put(recorder, record, done)
        if record.steps[0].name == "mail":
            begun.set()

    base = Run._base

    def slow_base(run: Run, call: FlowCall, **given: Any) -> Step:
        step = base(run, call, **given)
        if call.name == "charge":
            took.set()
            assert begun.wait(60)  # it has its place, and the other one begins before it
        return step

    took = threading.Event()
    monkeypatch.setattr(Recorder, "put", slow_put)
    monkeypatch.setattr(Run, "_base", slow_base)

    @house.app.workflow(name="w", crashes_max=9)
    def work(flow: Flow) -> list[str]:
        def other() -> str:
            assert took.wait(60)
            return flow.step(second, "b", repeatable=False, name="mail")

        return flow.gather(lambda: flow.step(first, "a", repeatable=False, name="charge"), other)

    house.start(slots=2)
    job = work.enqueue()
    assert first.inside.wait(60)
    assert second.inside.wait(60)
    lose(house, job.id)
    assert ended(house, job.id, "held").open_step == "charge"
    assert house.app.resolve(job.id, "done", result="a").row.open_step == "mail"
    first.open.set()
    second.open.set()


def test_a_retry_from_a_step_is_refused_after_a_newer_start(one_house: House) -> None:
    """The steps are read after the row: else what another person let begin meanwhile would be run a second time."""
    app, store = one_house.app, one_house.store.real
    job = start_flow(store)
    record(store, job, a_step(1))
    settle(store, row(store, job.id), Lost("exit", "killed"))
    held = app.cancel(job.id)
    read = store.steps

    def meanwhile(*given: Any, **named: Any) -> list[Step]:
        steps = read(*given, **named)
        if row(store, job.id).fence == held.row.fence:
            app.revive(job.id)
            begun = again(store, row(store, job.id))
            record(store, begun, a_step(2, "started", repeatable=False), open_step="charge")
            settle(store, row(store, job.id), Lost("exit", "killed"))
        return steps

    one_house.store.steps = meanwhile  # type: ignore[attr-defined]
    with pytest.raises(Refused):
        app.retry_from(job.id, "step-1")
    now = row(store, job.id)
    assert (now.state, now.open_step) == ("held", "charge")
    assert [step.aside for step in read(job.id, aside=True)] == [0, 0]
