"""The verbs of schedules: each instant once, the mark only rises, an old term is refused."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core.machine import State
from holdfast.core.records import Duty, Filter, Firing, Schedule
from holdfast.core.transitions import ABANDONED_S, DECLARED_S, RENEW_S
from holdfast.core.verdict import Succeeded
from holdfast.errors import DutyLost
from holdfast.stores.protocol import Added, Fired, Reply, Store
from holdfast.testing import FakeClock
from tests.factory import add, again, delete, make_job, picture, row, settle

DAY_S = 86_400.0


def a_schedule(key: str = "k", **given: Any) -> Schedule:
    job = make_job(id="", **given.pop("job", {}))
    return Schedule(**{"key": key, "spec": "0 3 * * *", "tz": "UTC", "job": job} | given)


def declared(store: Store, key: str = "k", **given: Any) -> Schedule:
    store.declare([a_schedule(key, **given)])
    return known(store, key)


def known(store: Store, key: str = "k") -> Schedule:
    [found] = [schedule for schedule in store.schedules() if schedule.key == key]
    return found


def the_duty(store: Store, holder: str = "a") -> Duty:
    duty = store.acquire("scheduler", holder, 30.0)
    assert duty is not None
    return duty


def fire(store: Store, instant: float, duty: Duty, schedule: str = "k", **job: Any) -> Fired:
    [fired] = store.fire([Firing(schedule, instant, make_job(run_at=instant, **job))], duty)
    return fired


def everything(store: Store) -> Any:
    return picture(store), store.schedules()


# --- declare ---------------------------------------------------------------------------------------------


def test_a_new_schedule_counts_from_now_and_keeps_all_that_was_declared(store: Store, clock: FakeClock) -> None:
    wanted = a_schedule(
        missed="skip",
        tz="Europe/Berlin",
        job={"queue": "mail", "payload": '{"a": "é"}', "on_crash": "hold", "key": "x"},
    )
    store.declare([wanted])
    assert store.schedules() == [replace(wanted, mark=clock.wall(), declared_at=clock.wall())]


def test_schedules_come_by_key_and_others_stay_when_some_are_declared(store: Store) -> None:
    store.declare([a_schedule("b"), a_schedule("B"), a_schedule("a")])
    store.declare([a_schedule("ä")])
    assert [schedule.key for schedule in store.schedules()] == ["B", "a", "b", "ä"]


def test_a_repeated_declaration_leaves_the_mark_and_what_was_fired(store: Store, clock: FakeClock) -> None:
    first = declared(store)
    fire(store, first.mark + 10, the_duty(store), id="j")
    store.pause_schedule("k", True)
    clock.advance(DAY_S)
    after = declared(store, missed="skip", job={"task": "other"})
    assert (after.mark, after.fired_at, after.job_id) == (first.mark + 10, first.mark + 10, "j")
    assert (after.paused, after.missed, after.job.task, after.declared_at) == (True, "skip", "other", clock.wall())


CHANGES: list[dict[str, Any]] = [
    {"spec": "0 4 * * *"},
    {"tz": "Asia/Tokyo"},
    {"missed": "skip"},
    {"job": {"queue": "other"}},
]


@pytest.mark.parametrize("change", CHANGES[:2])
def test_another_expression_counts_from_when_the_old_one_was_last_declared(
    store: Store, clock: FakeClock, change: dict[str, str]
) -> None:
    declared(store)
    clock.advance(DAY_S)
    last = declared(store).declared_at
    clock.advance(DAY_S)
    after = declared(store, **change)
    assert (after.mark, after.declared_at) == (last, clock.wall())
    assert {name: getattr(after, name) for name in change} == change


def test_another_expression_never_takes_the_mark_back(store: Store, clock: FakeClock) -> None:
    mark = declared(store).mark + DAY_S
    fire(store, mark, the_duty(store))
    assert declared(store, spec="0 4 * * *").mark == mark


def test_another_expression_counts_from_now_after_the_clock_was_set_back(store: Store, clock: FakeClock) -> None:
    mark = declared(store).mark
    clock.advance(DAY_S)
    declared(store)
    clock.set_wall(mark + 60)
    assert declared(store, spec="0 4 * * *").mark == clock.wall()


@pytest.mark.parametrize("change", CHANGES)
def test_saying_it_again_leaves_what_another_program_declares(
    store: Store, clock: FakeClock, change: dict[str, Any]
) -> None:
    before = declared(store)
    clock.advance(ABANDONED_S)
    store.declare([a_schedule(**change)], again=True)
    assert store.schedules() == [before]


def test_saying_it_again_stores_what_is_not_known(store: Store, clock: FakeClock) -> None:
    """As after a restore of an old backup."""
    before, wanted = declared(store), a_schedule("new", missed="skip", job={"queue": "other"})
    clock.advance(1)
    store.declare([a_schedule(), wanted], again=True)
    assert store.schedules() == [before, replace(wanted, mark=clock.wall(), declared_at=clock.wall())]


@pytest.mark.parametrize("change", CHANGES)
def test_saying_it_again_takes_over_what_nobody_else_has_declared_for_long(
    store: Store, clock: FakeClock, change: dict[str, Any]
) -> None:
    before, other = declared(store), declared(store, "other")
    duty = the_duty(store)
    fire(store, other.mark + 10, duty, schedule="other", id="j")
    store.pause_schedule("other", True)
    other = known(store, "other")
    clock.advance(ABANDONED_S + 0.001)
    mine = [a_schedule(key, **change) for key in ("k", "other")]
    store.declare(mine, again=True)
    wall = clock.wall()
    kept = {name: getattr(other, name) for name in ("mark", "fired_at", "job_id", "paused")}
    assert store.schedules() == [
        replace(mine[0], mark=before.mark, declared_at=wall),
        replace(mine[1], declared_at=wall, **kept),
    ]


@pytest.mark.parametrize("change", CHANGES[:2])
def test_an_expression_that_takes_over_counts_from_when_the_old_one_was_last_declared(
    store: Store, clock: FakeClock, change: dict[str, str]
) -> None:
    declared(store)
    clock.advance(DAY_S)
    store.declare([a_schedule()], again=True)
    last = clock.wall()
    clock.advance(DAY_S)
    store.declare([a_schedule(**change)], again=True)
    assert known(store).mark == last


def test_saying_it_again_writes_at_most_twice_a_minute(store: Store, clock: FakeClock) -> None:
    first = declared(store)
    clock.advance(RENEW_S)
    store.declare([a_schedule()], again=True)
    assert known(store) == first
    clock.advance(0.001)
    store.declare([a_schedule()], again=True)
    assert known(store) == replace(first, declared_at=clock.wall())


@pytest.mark.parametrize("change", [{"missed_max": 3}, {"jitter_s": 5.0}])
def test_more_missed_instants_or_jitter_are_another_declaration(
    store: Store, clock: FakeClock, change: dict[str, Any]
) -> None:
    before = declared(store)
    clock.advance(ABANDONED_S)
    store.declare([a_schedule(**change)], again=True)
    assert store.schedules() == [before]
    clock.advance(0.001)
    store.declare([a_schedule(**change)], again=True)
    assert known(store) == replace(before, declared_at=clock.wall(), **change)
    assert declared(store) == replace(before, declared_at=clock.wall())


# --- schedule --------------------------------------------------------------------------------------------


def test_a_schedule_of_run_time_counts_from_now_and_keeps_all_that_was_asked(store: Store, clock: FakeClock) -> None:
    wanted = a_schedule(
        missed_max=24, jitter_s=2.5, tz="Europe/Berlin", job={"queue": "mail", "payload": '{"a": "é"}', "key": "x"}
    )
    assert store.schedule([wanted]) == [Reply.ACCEPTED]
    assert store.schedules() == [replace(wanted, mark=clock.wall(), declared_at=clock.wall(), kept=True)]


def test_a_schedule_of_run_time_that_is_repeated_keeps_its_mark_and_its_pause(store: Store, clock: FakeClock) -> None:
    store.schedule([a_schedule()])
    before = known(store)
    fire(store, before.mark + 10, the_duty(store), id="j")
    store.pause_schedule("k", True)
    clock.advance(DAY_S)
    assert store.schedule([a_schedule(missed="skip", job={"queue": "other"})]) == [Reply.ACCEPTED]
    after = known(store)
    assert (after.mark, after.fired_at, after.job_id, after.paused) == (before.mark + 10, before.mark + 10, "j", True)
    assert (after.missed, after.job.queue, after.declared_at, after.kept) == ("skip", "other", clock.wall(), True)


@pytest.mark.parametrize("change", CHANGES[:2])
def test_another_expression_at_run_time_counts_from_now(store: Store, clock: FakeClock, change: dict[str, Any]) -> None:
    store.schedule([a_schedule()])
    clock.advance(DAY_S)
    store.schedule([a_schedule(**change)])
    assert known(store).mark == clock.wall()
    fire(store, clock.wall() + DAY_S, the_duty(store))
    store.schedule([a_schedule()])
    assert known(store).mark == clock.wall() + DAY_S, "it only rises"


def test_what_a_living_program_declares_is_refused_and_others_of_the_call_are_stored(
    store: Store, clock: FakeClock
) -> None:
    before = declared(store)
    clock.advance(DECLARED_S - 0.001)
    wanted = [a_schedule("a"), a_schedule(spec="0 4 * * *"), a_schedule("z")]
    assert store.schedule(wanted) == [Reply.ACCEPTED, Reply.REFUSED, Reply.ACCEPTED]
    assert [(each.key, each.kept) for each in store.schedules()] == [("a", True), ("k", False), ("z", True)]
    assert known(store) == before
    clock.advance(0.001)
    assert store.schedule([a_schedule()]) == [Reply.ACCEPTED]
    after = known(store)
    assert (after.kept, after.mark) == (True, clock.wall()), "what the program missed is not made up for"
    assert store.schedule([]) == []


@pytest.mark.parametrize("again", [False, True])
def test_a_declaration_leaves_a_schedule_of_run_time_alone(store: Store, clock: FakeClock, again: bool) -> None:
    store.schedule([a_schedule()])
    before = known(store)
    clock.advance(10 * ABANDONED_S)
    store.declare([a_schedule(spec="0 4 * * *", missed="skip"), a_schedule("new")], again=again)
    assert known(store) == before
    assert known(store, "new").kept is False


def test_schedules_are_read_by_their_keys(store: Store) -> None:
    store.schedule([a_schedule(key) for key in ("a", "b", "c")])
    assert [each.key for each in store.schedules(["c", "a", "unknown"])] == ["a", "c"]
    assert store.schedules([]) == []


# --- fire ------------------------------------------------------------------------------------------------


def test_a_batch_is_answered_in_order_and_each_instant_stands_for_itself(store: Store) -> None:
    store.declare([a_schedule(key) for key in "abcd"])
    store.pause_schedule("b", True)
    instant = known(store, "a").mark + 10
    keys = [("c", "K"), ("b", None), ("a", "K"), ("unknown", None), ("d", None), ("d", None)]
    batch = [
        Firing(schedule, instant, make_job(id=f"{schedule}-{number}", run_at=instant, key=key))
        for number, (schedule, key) in enumerate(keys)
    ]
    answers = store.fire(batch, the_duty(store))
    assert answers == [Added("c-0", False), None, Added("c-0", True), None, Added("d-4", False), None]
    assert [known(store, key).job_id for key in "abcd"] == ["c-0", None, "c-0", "d-4"]
    assert store.counts() == {"default": {State.READY: 2}}
    assert store.fire([], the_duty(store)) == []


def test_firing_stores_the_job_and_moves_the_mark(store: Store) -> None:
    instant = declared(store).mark + 10
    other = declared(store, "other")
    add(store, key="another's")
    assert fire(store, instant, the_duty(store), id="j", payload='{"a": "é"}', on_crash="hold") == Added("j", False)
    schedule, job = known(store), row(store, "j")
    assert (schedule.mark, schedule.fired_at, schedule.job_id) == (instant, instant, "j")
    assert (job.state, job.run_at, job.payload, job.on_crash) == (State.READY, instant, '{"a": "é"}', "hold")
    assert known(store, "other") == other


@pytest.mark.parametrize("instant", [-1.0, 0.0])
def test_an_instant_at_or_before_the_mark_is_not_fired(store: Store, instant: float) -> None:
    schedule, duty = declared(store), the_duty(store)
    before = everything(store)
    assert fire(store, schedule.mark + instant, duty) is None
    assert everything(store) == before


def test_an_instant_is_fired_once_also_when_its_job_is_gone(store: Store) -> None:
    instant, duty = declared(store).mark + 10, the_duty(store)
    assert fire(store, instant, duty, id="j") is not None
    job = row(store, "j")
    assert delete(store, "j", job.state, job.fence)
    assert fire(store, instant, duty, id="j") is None
    assert fire(store, instant, duty, id="other") is None
    assert store.get("j") is None
    assert store.get("other") is None


def test_a_job_with_the_id_of_the_instant_is_not_stored_twice(store: Store) -> None:
    there = add(store)
    instant = declared(store).mark + 10
    assert fire(store, instant, the_duty(store), id=there.id, payload='{"new": 1}') == Added(there.id, True)
    assert row(store, there.id) == there
    assert known(store).job_id == there.id


def test_an_instant_whose_key_is_taken_counts_as_fired(store: Store) -> None:
    there = add(store, key="x")
    mark, duty = declared(store).mark, the_duty(store)
    assert fire(store, mark + 10, duty, key="x") == Added(there.id, True)
    assert (known(store).mark, known(store).job_id) == (mark + 10, there.id)
    settle(store, again(store, there), Succeeded())
    assert fire(store, mark + 20, duty, id="j", key="x") == Added("j", False)


def test_what_is_paused_or_unknown_is_not_fired(store: Store) -> None:
    instant, duty = declared(store).mark + 10, the_duty(store)
    store.pause_schedule("k", True)
    before = everything(store)
    assert fire(store, instant, duty) is None
    assert fire(store, instant, duty, schedule="unknown") is None
    assert everything(store) == before


@pytest.mark.parametrize("end", ["taken over", "resigned", "taken over and back", "of another name"])
def test_the_act_of_an_old_term_is_refused_and_changes_nothing(store: Store, clock: FakeClock, end: str) -> None:
    instant, duty = declared(store).mark + 10, the_duty(store)
    if end == "resigned":
        store.resign(duty)
    elif end == "of another name":
        store.resign(duty)
        other = store.acquire("pruner", duty.holder, 30.0)
        assert other is not None
        assert other.term == duty.term
    else:
        clock.advance(30)
        the_duty(store, "b")
    if end == "taken over and back":
        clock.advance(30)
        assert the_duty(store).term == 3
    before = everything(store)
    with pytest.raises(DutyLost, match=r"scheduler.*term 1"):
        fire(store, instant, duty)
    assert everything(store) == before


def test_the_current_term_may_fire_also_when_its_time_has_run_out(store: Store, clock: FakeClock) -> None:
    instant, duty = declared(store).mark + 10, the_duty(store)
    clock.advance(60)
    assert fire(store, instant, duty) is not None


# --- pause_schedule --------------------------------------------------------------------------------------


def test_instants_in_a_pause_are_not_made_up_for(store: Store, clock: FakeClock) -> None:
    mark, other = declared(store).mark, declared(store, "other")
    assert store.pause_schedule("k", True) is True
    assert (known(store).paused, known(store).mark) == (True, mark)
    clock.advance(60)
    assert store.pause_schedule("k", True) is True
    assert known(store).mark == mark
    assert store.pause_schedule("k", False) is True
    assert (known(store).paused, known(store).mark) == (False, clock.wall())
    clock.advance(60)
    assert store.pause_schedule("k", False) is True
    assert known(store).mark == clock.wall() - 60, "it was not paused: nothing may be left out"
    assert known(store, "other") == other


def test_a_pause_never_takes_the_mark_back(store: Store) -> None:
    instant = declared(store).mark + DAY_S
    fire(store, instant, the_duty(store))
    store.pause_schedule("k", True)
    store.pause_schedule("k", False)
    assert known(store).mark == instant


def test_there_is_nothing_to_pause_where_there_is_no_schedule(store: Store) -> None:
    assert store.pause_schedule("unknown", True) is False
    assert store.schedules() == []


def test_a_workflow_is_stored_as_one(store: Store, clock: FakeClock) -> None:
    declared(store)
    clock.advance(DAY_S)
    fire(store, clock.wall(), the_duty(store), id="flow", workflow=True)
    assert row(store, "flow").workflow is True


# --- forget_schedule -------------------------------------------------------------------------------------


def test_a_schedule_that_is_forgotten_is_gone_and_the_others_stay(store: Store) -> None:
    declared(store)
    other = declared(store, "other")
    assert store.forget_schedule("k") is True
    assert store.schedules() == [other]
    assert store.forget_schedule("k") is False
    assert store.schedules() == [other]


def test_a_schedule_that_is_declared_again_begins_with_that_and_fires_no_instant_twice(
    store: Store, clock: FakeClock
) -> None:
    instant, duty = declared(store).mark + 10, the_duty(store)
    clock.advance(20)
    fired = fire(store, instant, duty)
    assert fired is not None
    store.forget_schedule("k")
    assert fire(store, instant, duty) is None, "there is none"
    assert declared(store).mark == clock.wall()
    assert fire(store, instant, duty) is None, "it came before the declaration"
    assert [job.id for job in store.find(Filter())] == [fired.id]
