"""dependents: jobs that run after others. No claim gives them, and looks and sweeps decide about them."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.core import acts
from holdfast.core.batches import Batch
from holdfast.core.dependencies import Dependent, decide, things
from holdfast.core.machine import State
from holdfast.core.records import Job, KeyRule
from holdfast.core.verdict import Failed, Succeeded
from holdfast.stores.protocol import Reply, Store
from holdfast.testing import FakeClock
from holdfast.upkeep.dependents import SWEEP_S, DependentSweep, start_dependents
from holdfast.upkeep.reaper import Reaper
from tests.factory import add, again, claim, job_in, make_job, move, revive, row, settle, start


def after(*jobs: Job | str, if_failed: str = "cancel") -> dict[str, object]:
    return {"awaits": things([each if isinstance(each, str) else each.id for each in jobs], if_failed)}


def ids(store: Store) -> list[str]:
    return [each.id for each in store.dependents()]


def cancel(store: Store, job: Job) -> None:
    assert move(store, job.id, job.state, job.fence, acts.cancel(job, actor="ann"))


def test_a_job_that_runs_after_another_is_not_claimed(store: Store) -> None:
    first = add(store, task="first")
    then = add(store, **after(first))
    assert (then.state, then.awaits) == (State.WAITING, things([first.id]))
    assert claim(store, tasks=["t"]) == []
    assert store.due(["default"], ["t"]) is None
    settle(store, again(store, first), Succeeded())
    assert claim(store, tasks=["t"]) == []
    assert start_dependents(store, [then.id]) == 1
    started = row(store, then.id)
    assert (started.state, started.awaits, started.fence) == (State.READY, None, 0)
    [event] = store.journal(then.id)
    assert (event.kind, event.actor, event.detail) == ("moved", None, {"after": [first.id]})
    settle(store, again(store, started), Succeeded())
    assert store.counts() == {"default": {State.DONE: 2}}


@pytest.mark.parametrize("many", [2, 150])
def test_every_way_to_store_jobs_keeps_what_they_wait_for(store: Store, many: int) -> None:
    first = add(store)
    jobs = [make_job(id=f"n-{number:03}", **after(first) if number % 2 else {}) for number in range(many)]
    assert not any(each.existed for each in store.add(jobs))
    waiting = [job.id for job in jobs[1::2]]
    assert ids(store) == waiting
    assert len(claim(store, limit=1000)) == 1 + many // 2
    again_stored = store.add(jobs)
    assert all(each.existed for each in again_stored)
    assert ids(store) == waiting


def test_a_job_that_is_stored_again_keeps_its_state(store: Store) -> None:
    first = add(store)
    new = make_job(**after(first))
    store.add([new])
    settle(store, again(store, first), Succeeded())
    start_dependents(store, [new.id])
    [added] = store.add([new])
    assert added.existed
    assert row(store, new.id).state is State.READY


def test_a_job_that_waits_has_its_key(store: Store) -> None:
    first = add(store)
    new = make_job(key="k", **after(first))
    store.add([new])
    [added] = store.add([make_job(key="k")])
    assert (added.id, added.existed) == (new.id, True)
    [keyed] = store.add([make_job(key="q", key_rule=KeyRule("queued"), **after(first))])
    assert row(store, keyed.id).state is State.WAITING


def test_jobs_of_a_batch_run_after_others(store: Store) -> None:
    store.batches.open(Batch(id="b"))
    store.batches.add("b", [make_job(id="x"), make_job(id="y", **after("x"))])
    store.batches.close("b", complete=True)
    [claimed] = claim(store)
    settle(store, claimed, Succeeded())
    assert store.batches.get(["b"])[0].live
    assert start_dependents(store, ["y"]) == 1
    [claimed] = claim(store)
    assert claimed.id == "y"


def test_they_are_found_by_the_jobs_that_they_run_after(store: Store) -> None:
    x, y = (start(store, id=name) for name in "xy")
    add(store, id="1", **after(x))
    add(store, id="2", **after(y, x))
    add(store, id="3", **after(y))
    add(store, id="4")
    assert store.dependents() == [Dependent(name, False) for name in "123"]
    assert store.dependents(["x"]) == [Dependent("1", False), Dependent("2", False)]
    assert store.dependents(["x", "y"], after="1", limit=1) == [Dependent("2", False)]
    assert store.dependents(["cancel", "1", "4"]) == []
    assert store.dependents([]) == []
    settle(store, x, Succeeded())
    assert store.dependents(["x"]) == [Dependent("1", True), Dependent("2", False)]
    settle(store, y, Failed("no luck", final=True))
    assert store.dependents() == [Dependent(name, True) for name in "123"]


def test_a_workflow_that_waits_is_not_among_them(store: Store) -> None:

    job_in(store, State.WAITING, workflow=True)
    assert store.dependents() == []


@pytest.mark.parametrize("state", [State.READY, State.RUNNING, State.HELD])
def test_a_job_that_is_live_is_waited_for(store: Store, state: State) -> None:

    first = job_in(store, state)
    then = add(store, **after(first))
    assert store.dependents() == [Dependent(then.id, False)]
    assert start_dependents(store, [then.id]) == 0
    assert row(store, then.id).state is State.WAITING


@pytest.mark.parametrize("state", [State.DEAD, State.CANCELLED, State.ROLLED_BACK])
@pytest.mark.parametrize(
    ("if_failed", "then"), [("cancel", State.CANCELLED), ("hold", State.HELD), ("run", State.READY)]
)
def test_one_that_did_not_succeed_decides(store: Store, state: State, if_failed: str, then: State) -> None:

    good, bad = job_in(store, State.DONE), job_in(store, state, workflow=state is State.ROLLED_BACK)
    job = add(store, **after(good, bad, if_failed=if_failed))
    assert start_dependents(store, [job.id]) == 1
    ended = row(store, job.id)
    assert ended.state is then
    [event] = store.journal(job.id)
    if then is State.READY:
        assert ended.error is None
    else:
        assert ended.error == f"it was to run after job {bad.id}, which is {state.value}"
        assert (event.kind, event.detail) == (then.value, {"after": bad.id, "state": state.value})


@pytest.mark.parametrize("if_failed", ["cancel", "hold"])
def test_a_job_that_was_deleted_leaves_the_decision_to_a_person(store: Store, if_failed: str) -> None:
    first = add(store)
    then, other = (add(store, **after(first, if_failed=policy)) for policy in (if_failed, "run"))
    assert store.delete([first.seen]) == [Reply.ACCEPTED]
    assert store.dependents(["nobody", first.id]) == [Dependent(each.id, True) for each in (then, other)]
    start_dependents(store, [then.id, other.id])
    assert row(store, then.id).state is State.HELD
    assert "was deleted" in (row(store, then.id).error or "")
    assert row(store, other.id).state is State.READY


def test_a_chain_is_cancelled_to_its_end(store: Store, clock: FakeClock) -> None:
    jobs = [start(store)]
    for _ in range(3):
        jobs.append(add(store, **after(jobs[-1])))
    settle(store, jobs[0], Failed("no luck", final=True))
    sweep = DependentSweep(store, clock)
    for _ in range(3):
        sweep.once()
        clock.advance(SWEEP_S)
    assert [row(store, job.id).state for job in jobs[1:]] == [State.CANCELLED] * 3


def test_it_runs_at_its_time_and_not_before_it_is_due(store: Store, clock: FakeClock) -> None:
    first = start(store)
    later = add(store, delay_s=100.0, **after(first))
    soon = add(store, **after(first))
    clock.advance(10)
    settle(store, first, Succeeded())
    assert start_dependents(store, [later.id, soon.id]) == 2
    assert row(store, later.id).run_at == later.run_at
    assert row(store, soon.id).run_at == clock.wall()
    assert [job.id for job in claim(store)] == [soon.id]


def test_a_job_that_waits_for_others_expires_when_they_took_too_long(store: Store, clock: FakeClock) -> None:
    first = start(store)
    job = add(store, expires_s=5.0, **after(first))
    clock.advance(5)
    assert store.expired() == []
    settle(store, first, Succeeded())
    start_dependents(store, [job.id])
    assert [each.id for each in store.expired()] == [job.id]
    assert claim(store) == []


def test_people_may_cancel_hold_and_bring_it_back(store: Store) -> None:
    first = start(store)
    one, other = (add(store, **after(first)) for _ in range(2))
    cancel(store, one)
    assert move(store, other.id, other.state, other.fence, acts.hold(other, actor="ann"))
    assert ids(store) == []
    for job in (one, other):
        assert revive(store, row(store, job.id))
    assert {job.id for job in claim(store)} == {one.id, other.id}


def test_a_decision_that_comes_late_changes_nothing(store: Store) -> None:
    first = start(store)
    job = add(store, **after(first))
    settle(store, first, Succeeded())
    assert start_dependents(store, [job.id]) == 1
    claimed = again(store, row(store, job.id))
    assert start_dependents(store, [job.id]) == 0
    assert row(store, job.id).lease == claimed.lease


def test_the_sweep_goes_on_behind_the_jobs_that_wait_on(
    store: Store, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.upkeep.dependents.PAGE", 2)
    monkeypatch.setattr("holdfast.upkeep.dependents.PAGES_MAX", 2)
    slow, quick = start(store), start(store)
    for number in range(6):
        add(store, id=f"n{number}", **after(slow))
    add(store, id="n9", **after(quick))
    settle(store, quick, Succeeded())
    sweep = DependentSweep(store, clock)
    assert sweep.once() == 0
    assert sweep.once() == 0  # not before its time
    clock.advance(SWEEP_S)
    assert sweep.once() == 1
    assert row(store, "n9").state is State.READY
    settle(store, slow, Succeeded())
    clock.advance(SWEEP_S)
    assert sweep.once() == 4  # from the first on
    clock.advance(SWEEP_S)
    assert sweep.once() == 2


def test_the_pass_of_a_reaper_starts_them(store: Store, clock: FakeClock) -> None:
    if store.is_served:
        pytest.skip("the reaper is the server's")
    first = start(store)
    job = add(store, **after(first))
    settle(store, first, Succeeded())
    Reaper(store, clock).once(fix=False)
    assert row(store, job.id).state is State.WAITING
    Reaper(store, clock).once()
    assert row(store, job.id).state is State.READY


def test_a_row_without_what_it_waits_for_is_left_alone(store: Store) -> None:
    job = add(store, **after(add(store)))
    assert decide(msgspec.structs.replace(job, awaits=None), {}, 0.0) is None


def test_a_child_that_was_to_run_after_a_failed_job_tells_its_workflow(store: Store) -> None:
    add(store, id="p", workflow=True, task="w")
    first = start(store)
    job = add(store, parent="p", **after(first))
    settle(store, first, Failed("no luck", final=True))
    start_dependents(store, [job.id])
    assert store.inbox("p").count == 1
