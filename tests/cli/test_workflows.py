"""`holdfast workflows`, and what `held` says and does of workflows."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.core.machine import State
from holdfast.core.records import Job
from holdfast.core.verdict import Failed, Lost, Parked, Succeeded
from holdfast.stores.protocol import Answer, Store
from holdfast.testing import FakeClock
from tests.cli.conftest import Run
from tests.factory import a_step, add, record, row, settle, start

APP = """
from holdfast import App, Flow
app = App()

@app.workflow(name="order")
def order(flow: Flow, number: int) -> int:
    return number
"""


def parked(store: Store, *awaits: str, question: str | None = None, wake_at: float | None = None) -> Job:
    job = start(store, workflow=True, task="order")
    record(store, job, a_step(1, name="reserve", result='"r1"'), a_step(2, name="wait", state="started", result=None))
    assert settle(store, job, Parked("waits", wake_at, awaits, question, job.inbox)) is Answer.ACCEPTED
    return row(store, job.id)


def held(store: Store) -> Job:
    job = start(store, workflow=True, task="order")
    begun = a_step(2, name="charge", state="started", repeatable=False, result=None, ended_at=None)
    record(store, job, a_step(1, name="reserve"), begun, open_step="charge", undoable=True)
    settle(store, row(store, job.id), Lost("exit", "killed"))
    return row(store, job.id)


def test_list_shows_workflows_only_and_what_they_wait_for(run: Run, store: Store, clock: FakeClock) -> None:
    add(store)
    waiting = parked(store, "signal:go", wake_at=clock.wall() + 10_000)
    shown = run.json("workflows", "list")
    assert [job["id"] for job in shown] == [waiting.id]
    assert run.json("workflows", "list", "--state", "held") == []
    assert "for signal go, at most" in run("workflows", "list", terminal_width=200).stdout


def test_show_has_the_steps_as_data_and_as_a_tree(run: Run, store: Store) -> None:
    job = start(store, workflow=True)
    record(store, job, a_step(1, name="a", result='{"n":1}', started_at=1.0, ended_at=3.0))
    record(store, job, a_step(2, name="b", path="2.1.1", error="ValueError: no", error_kind="ValueError", result=None))
    shown = run.json("workflows", "show", job.id)
    assert shown["steps"][0] == {
        "name": "a", "state": "recorded", "attempt": 1, "started_at": "1970-01-01T00:00:01.000Z",
        "ended_at": "1970-01-01T00:00:03.000Z", "result": {"n": 1}, "error": None, "kind": "step", "path": "1",
        "has_undo": False, "repeatable": True, "set_aside": False,
    }  # fmt: skip
    assert run.json("jobs", "show", job.id)["steps"] == shown["steps"]
    text = run("workflows", "show", job.id).stdout
    assert "Steps  (step 2 of 2 known)" in text
    assert "1 a  recorded, 2.0 s, attempt 1" in text
    assert "    2.1.1 b  failed" in text
    assert "ValueError: no" in text


def test_a_plain_job_is_no_workflow(run: Run, store: Store) -> None:
    job = add(store)
    for command in (["show"], ["retry"], ["cancel"], ["rollback"]):
        run("workflows", *command, job.id, code=6)
    run("workflows", "signal", job.id, "go", code=6)
    run("workflows", "show", "nobody", code=5)
    run("workflows", "signal", "nobody", "go", code=5)


def test_a_signal_wakes_who_waits_for_it(run: Run, store: Store) -> None:
    job = parked(store, "signal:go")
    run("workflows", "signal", job.id, "other", "1", "--by", "ann")
    assert row(store, job.id).state is State.WAITING
    assert run("workflows", "signal", job.id, "go", '{"n": 2}').stdout == f"{job.id}  ready\n"
    assert [(each.name, each.value) for each in store.inbox(job.id).signals] == [("other", "1"), ("go", '{"n":2}')]


def test_retry_from_a_step_sets_the_rest_aside(run: Run, store: Store) -> None:
    job = start(store, workflow=True, attempts_max=1)
    record(store, job, *(a_step(number) for number in (1, 2, 3)))
    settle(store, job, Failed("no"))
    run("workflows", "retry", job.id, "--from-step", "nothing", code=5)
    assert run("workflows", "retry", job.id, "--from-step", "step 2", "--by", "ann").stdout == f"{job.id}  ready\n"
    assert [step.position for step in store.steps(job.id)] == [1]
    assert [step["set_aside"] for step in run.json("workflows", "show", job.id)["steps"]] == [False, True, True]


def test_rollback_and_cancel(run: Run, store: Store) -> None:
    first, second, third = (parked(store, "signal:go") for _ in range(3))
    run("workflows", "rollback", first.id, "--note", "not wanted")
    run("workflows", "cancel", second.id, "--rollback")
    run("workflows", "cancel", third.id)
    rows = [row(store, job.id) for job in (first, second, third)]
    assert [(job.state.value, job.rolling_back) for job in rows] == [
        *(("ready", True), ("ready", True), ("cancelled", False)),
    ]
    assert rows[0].error == "not wanted"


def test_an_open_step_is_named_and_answered(run: Run, store: Store) -> None:
    job = held(store)
    text = run("jobs", "show", job.id).stdout
    assert "step 'charge' was started and not recorded" in " ".join(text.split())
    assert f"holdfast held done {job.id} --fence {job.fence} --result JSON" in " ".join(text.split())
    assert f"holdfast workflows rollback {job.id} --fence {job.fence}" in " ".join(text.split())
    run("held", "done", job.id, code=6)
    assert run("held", "done", job.id, "--result", '"paid"', "--by", "ann").stdout == f"{job.id}  ready\n"
    assert [(step.state, step.result) for step in store.steps(job.id)] == [("recorded", "1"), ("recorded", '"paid"')]
    assert row(store, job.id).open_step is None


@pytest.mark.parametrize(("command", "value"), [("approve", "true"), ("fail", "false")])
def test_a_question_is_in_the_list_of_what_waits_for_people(run: Run, store: Store, command: str, value: str) -> None:
    job = parked(store, "signal:approve:2", question="Ship it?")
    assert [each["id"] for each in run.json("held", "list")] == [job.id]
    assert "asks: Ship it?" in run("held", "list", terminal_width=200).stdout
    run("held", command, job.id, "--by", "ann")
    assert row(store, job.id).state is State.READY
    [signal] = store.inbox(job.id).signals
    assert (signal.name, signal.value, signal.actor) == ("approve:2", value, "ann")
    assert run.json("held", "list") == []


def test_fork(run: Run, store: Store, folder: Path, url: str) -> None:
    (folder / "forkshop.py").write_text(APP)
    job = start(store, workflow=True, task="order", payload='{"number":1}', priority=3)
    record(store, job, a_step(1, name="a"), a_step(2, name="b"))
    run("workflows", "fork", job.id, "--from-step", "b", code=6)
    settle(store, job, Succeeded())
    same = run.json("workflows", "fork", job.id, "--from-step", "b")
    assert [step.name for step in store.steps(same["id"])] == ["a"]
    assert (row(store, same["id"]).payload, row(store, same["id"]).priority) == ('{"number":1}', 3)
    other = run.json("--db", url, "workflows", "fork", job.id, "[2]", "--from-step", "b", "--app", "forkshop:app")
    assert row(store, other["id"]).payload == '{"number":2}'
    run("workflows", "fork", job.id, "[2]", "--from-step", "b", code=2)
    run("workflows", "fork", job.id, "--from-step", "nothing", code=5)
