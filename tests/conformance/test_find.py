"""find: jobs by state, queue, task, worker, key; newest first; in pages."""

import pytest
from msgspec.structs import replace

from holdfast.core import acts
from holdfast.core.machine import State
from holdfast.core.records import Filter, Job
from holdfast.core.settlement import settlement
from holdfast.core.verdict import Failed, Outcome, Succeeded, judge
from holdfast.stores.protocol import Store
from holdfast.testing import FakeClock
from tests.factory import EXPIRED, add, again, enrol, job_in, make_job, move, park, row, settle, start, start_flow


def ids(jobs: list[Job]) -> list[str]:
    return [job.id for job in jobs]


def test_newest_means_added_last_whatever_the_ids_and_times_say(store: Store, clock: FakeClock) -> None:
    store.add([make_job(id="z", run_at=clock.wall() + 99), make_job(id="a", run_at=0.0)])
    clock.set_wall(clock.wall() - 3600)
    store.add([make_job(id="m")])
    assert ids(store.find(Filter())) == ["m", "a", "z"]


@pytest.mark.parametrize("state", list(State))
def test_by_state(store: Store, state: State) -> None:
    jobs = {name: job_in(store, name) for name in State}
    assert store.find(Filter(states=(state,))) == [jobs[state]]


def test_by_several_states(store: Store) -> None:
    jobs = {name: job_in(store, name) for name in State}
    found = store.find(Filter(states=(State.DEAD, State.HELD, State.RUNNING, State.DONE)))
    wanted = [jobs[name] for name in State if name in (State.DEAD, State.HELD, State.RUNNING, State.DONE)]
    assert found == wanted[::-1]


@pytest.mark.parametrize("state", [None, *State])
def test_by_queue_task_and_key_in_every_state(store: Store, state: State | None) -> None:
    states = (state,) if state else ()
    wanted = job_in(store, state or State.READY, queue="a", task="mail", key="k")
    job_in(store, state or State.READY, queue="b", task="mail", key="l")
    job_in(store, state or State.READY, queue="b", task="other", key="m")
    assert ids(store.find(Filter(states=states, queue="a"))) == [wanted.id]
    assert ids(store.find(Filter(states=states, key="k"))) == [wanted.id]
    assert ids(store.find(Filter(states=states, queue="a", task="mail", key="k"))) == [wanted.id]
    assert len(store.find(Filter(states=states, task="mail"))) == 2
    assert store.find(Filter(states=states, queue="a", task="other")) == []
    assert store.find(Filter(states=states, key="K")) == []


@pytest.mark.parametrize("state", [None, *State])
def test_by_group_in_every_state(store: Store, state: State | None) -> None:
    states = (state,) if state else ()
    wanted = job_in(store, state or State.READY, group="acme", key="k")
    job_in(store, state or State.READY, group="globex")
    job_in(store, state or State.READY)
    for more in ({}, {"queue": wanted.queue}, {"key": "k"}, {"task": wanted.task}):
        assert ids(store.find(Filter(states=states, group="acme", **more))) == [wanted.id]
    assert store.find(Filter(states=states, group="ACME")) == []


def test_by_key_all_jobs_that_ever_had_it(store: Store) -> None:
    old, new = job_in(store, State.DONE, key="k"), add(store, key="k")
    assert ids(store.find(Filter(key="k"))) == [new.id, old.id]


@pytest.mark.parametrize("states", [(), (State.RUNNING,), (State.RUNNING, State.READY)])
def test_by_worker_what_it_runs_now(store: Store, states: tuple[State, ...]) -> None:
    worker = enrol(store)
    mine = [start(store, worker).id for _ in range(2)]
    job_in(store, State.DONE)
    start(store)
    assert ids(store.find(Filter(worker=worker, states=states))) == mine[::-1]
    assert store.find(Filter(worker="nobody", states=states)) == []
    assert ids(store.find(Filter(worker=worker, states=states, limit=1))) == mine[1:]
    assert ids(store.find(Filter(worker=worker, states=states, before=mine[1]))) == mine[:1]
    assert store.find(Filter(worker=worker, states=(State.DONE,))) == []


@pytest.mark.parametrize("states", [(), (State.RUNNING,)])
def test_by_whether_it_was_asked_to_stop(store: Store, states: tuple[State, ...]) -> None:
    asked, other = start(store), start(store)
    move(store, asked.id, State.RUNNING, asked.fence, acts.cancel(asked, actor="ann"))
    assert store.find(Filter(cancel_requested=True, states=states)) == [row(store, asked.id)]
    assert ids(store.find(Filter(cancel_requested=False, states=states))) == [other.id]
    assert len(store.find(Filter(states=states))) == 2


@pytest.mark.parametrize("state", [None, State.READY, State.RUNNING, State.HELD, State.DONE])
def test_pages_follow_each_other_without_gap_or_overlap(store: Store, state: State | None) -> None:
    jobs = [job_in(store, state or State.READY).id for _ in range(7)]
    states = (state,) if state else ()
    pages: list[list[str]] = []
    before = None
    while page := store.find(Filter(states=states, limit=3, before=before)):
        pages.append(ids(page))
        before = page[-1].id
        add(store, queue="another")  # new jobs do not move the pages that follow
    assert [len(page) for page in pages] == [3, 3, 1]
    assert [job_id for page in pages for job_id in page] == jobs[::-1]


def test_a_hundred_unless_asked_for_more(store: Store) -> None:
    store.add([make_job() for _ in range(120)])
    assert len(store.find(Filter())) == 100
    assert len(store.find(Filter(limit=110))) == 110
    assert store.find(Filter(limit=0)) == []


def test_nothing_is_found_in_an_empty_store(store: Store) -> None:
    for states in ((), *((state,) for state in State)):
        assert store.find(Filter(states=states)) == []


def test_by_id(store: Store) -> None:
    held, done, ready = job_in(store, State.HELD), job_in(store, State.DONE), add(store, queue="mail")
    assert store.find(Filter(ids=(held.id, ready.id, "nobody", held.id))) == [ready, held]
    assert store.find(Filter(ids=(held.id, done.id, ready.id), states=(State.DONE, State.HELD))) == [done, held]
    assert store.find(Filter(ids=(held.id, ready.id), queue="mail")) == [ready]
    assert ids(store.find(Filter(ids=(held.id, done.id, ready.id), limit=1, before=ready.id))) == [done.id]
    assert store.find(Filter(ids=())) == []


@pytest.mark.parametrize("state", [None, *State])
def test_workflows_and_other_jobs_in_every_state(store: Store, state: State | None) -> None:
    states = (state,) if state else ()
    made = [job_in(store, state or State.READY, workflow=number % 2 == 0, queue="a") for number in range(4)]
    flows, plain = ids([made[2], made[0]]), ids([made[3], made[1]])
    for given in (Filter(states=states), Filter(states=states, ids=tuple(job.id for job in made))):
        assert ids(store.find(replace(given, workflow=True))) == flows
        assert ids(store.find(replace(given, workflow=False))) == plain
    assert ids(store.find(Filter(states=states, workflow=True, queue="b"))) == []
    assert ids(store.find(Filter(states=states, workflow=True, limit=1))) == flows[:1]
    assert ids(store.find(Filter(states=states, workflow=True, before=made[2].id))) == flows[1:]


def test_jobs_that_ask_a_person_are_found(store: Store) -> None:
    asks, waits = park(store, start_flow(store), "signal:a", question="Ship it?"), park(store, start_flow(store))
    runs = start_flow(store)
    for given in (Filter(), Filter(workflow=True), Filter(ids=(asks.id, waits.id, runs.id))):
        assert ids(store.find(replace(given, asking=True))) == [asks.id]
        assert ids(store.find(replace(given, asking=False))) == [runs.id, waits.id]
    assert ids(store.find(Filter(states=(State.WAITING,), asking=True))) == [asks.id]
    assert ids(store.find(Filter(states=(State.WAITING,), asking=False))) == [waits.id]
    assert ids(store.find(Filter(states=(State.RUNNING,), asking=False))) == [runs.id]
    assert store.find(Filter(worker=runs.worker, asking=True)) == []


def test_a_job_that_crashed_was_tried(store: Store) -> None:
    job = start(store, crashes_max=3)
    settle(store, job, EXPIRED)
    seen = row(store, job.id)
    assert (seen.state, seen.failures, seen.crashes) == (State.READY, 0, 1)
    assert ids(store.find(Filter(states=(State.READY,), tried=True))) == [job.id]
    assert ids(store.find(Filter(states=(State.READY,), tried=False))) == []


def test_jobs_that_are_not_due_are_found_in_every_queue_priority_and_group(store: Store, clock: FakeClock) -> None:
    lanes = [(queue, priority, group) for queue in "ab" for priority in (0, 7) for group in (None, "g")]
    wanted = []
    for queue, priority, group in lanes:
        lane = {"queue": queue, "priority": priority, "group": group}
        add(store, **lane)
        wanted.insert(0, add(store, **lane, delay_s=60.0).id)
    where = Filter(states=(State.READY,), later=clock.wall())
    assert ids(store.find(where)) == wanted
    assert ids(store.find(replace(where, limit=3))) == wanted[:3]
    assert ids(store.find(replace(where, limit=3, before=wanted[2]))) == wanted[3:6]
    assert ids(store.find(replace(where, queue="a", group="g"))) == [wanted[4], wanted[6]]


def test_ready_jobs_are_found_by_later_run_at_and_by_earlier_tries(store: Store, clock: FakeClock) -> None:
    due, scheduled = add(store), add(store, delay_s=60.0)
    pause = {"base_s": 60.0, "cap_s": 60.0, "jitter": False}
    retrying, flow = start(store, **pause), start_flow(store, **pause)
    for job in (retrying, flow):
        settle(store, job, Failed("boom"))
    held, now = job_in(store, State.HELD), clock.wall()
    everybody = (due.id, scheduled.id, retrying.id, flow.id, held.id)
    ready = (State.READY,)
    for given in (Filter(states=ready), Filter(states=ready, ids=everybody)):
        assert ids(store.find(replace(given, later=now))) == [flow.id, retrying.id, scheduled.id]
        assert ids(store.find(replace(given, later=now, tried=True))) == [flow.id, retrying.id]
        assert ids(store.find(replace(given, later=now, tried=False))) == [scheduled.id]
        assert ids(store.find(replace(given, tried=False))) == [scheduled.id, due.id]
        assert ids(store.find(replace(given, later=now, tried=True, workflow=True))) == [flow.id]
        assert ids(store.find(replace(given, later=now, tried=False, workflow=True))) == []
        assert ids(store.find(replace(given, later=now + 61.0))) == []
    some = Filter(states=(State.READY, State.HELD), later=now, tried=True)
    assert ids(store.find(some)) == [held.id, flow.id, retrying.id]
    assert ids(store.find(replace(some, ids=everybody))) == [held.id, flow.id, retrying.id]


# ----------------------------------------------------------------------------- by error, time and part of the id

NO_LUCK = Failed("ValueError: no luck", error_kind="ValueError", origin="shop.pay")
NO_KEY = Failed("KeyError: no key", error_kind="KeyError", origin="shop.pay")


def fails(store: Store, outcome: Outcome = NO_LUCK, release: str | None = None, **given: object) -> Job:
    """Return a job whose attempt has failed."""
    job = start(store, **{"attempts_max": 1} | given)  # type: ignore[arg-type]
    store.settle([settlement(job, judge(outcome, job, store.now().wall, chance=0.5, release=release))])
    return row(store, job.id)


@pytest.mark.parametrize("states", [(), (State.DEAD,), (State.DEAD, State.READY)])
def test_by_the_fingerprint_of_the_last_error(store: Store, clock: FakeClock, states: tuple[State, ...]) -> None:
    old, other, new, healed = fails(store), fails(store, NO_KEY), fails(store), fails(store, attempts_max=2)
    clock.advance(6000)
    settle(store, again(store, healed), Succeeded("7"))
    wanted = [healed.id] if not states else []
    assert ids(store.find(Filter(fingerprint=old.fingerprint, states=states))) == [*wanted, new.id, old.id]
    assert ids(store.find(Filter(fingerprint=other.fingerprint, states=states))) == [other.id]
    assert ids(store.find(Filter(fingerprint=old.fingerprint, states=(State.DEAD,), before=new.id))) == [old.id]
    assert store.find(Filter(fingerprint=old.fingerprint, task="another")) == []
    assert store.find(Filter(fingerprint="unknown", states=states)) == []


@pytest.mark.parametrize("states", [(), (State.DEAD,), (State.DEAD, State.READY)])
def test_by_the_release_that_the_last_error_came_from(store: Store, states: tuple[State, ...]) -> None:
    first, second, unknown = fails(store, release="1.0"), fails(store, release="1.1"), fails(store)
    assert ids(store.find(Filter(release="1.0", states=states))) == [first.id]
    assert ids(store.find(Filter(release="1.1", states=states, fingerprint=unknown.fingerprint))) == [second.id]
    assert ids(store.find(Filter(release="1.1", states=states, queue="another"))) == []


@pytest.mark.parametrize("state", [None, *State])
def test_by_the_time_of_the_end_or_else_of_the_enqueue(store: Store, clock: FakeClock, state: State | None) -> None:
    states = (state,) if state else ()
    old = job_in(store, state or State.READY)
    clock.advance(600)
    between = clock.wall()
    new = job_in(store, state or State.READY)
    assert ids(store.find(Filter(states=states, since=between))) == [new.id]
    assert ids(store.find(Filter(states=states, until=between))) == [old.id]
    assert ids(store.find(Filter(states=states, since=between, until=clock.wall() + 1))) == [new.id]
    assert store.find(Filter(states=states, since=between, until=between)) == []


def test_the_time_of_a_job_that_has_not_ended_is_that_of_its_last_error(store: Store, clock: FakeClock) -> None:
    job = add(store, attempts_max=5)
    clock.advance(600)
    failed_at = clock.wall()
    settle(store, again(store, job), NO_LUCK)
    assert ids(store.find(Filter(since=failed_at))) == [job.id]
    assert ids(store.find(Filter(since=failed_at, states=(State.READY,), tried=True))) == [job.id]
    assert store.find(Filter(until=failed_at)) == []


def test_with_an_error_the_time_is_that_of_the_error_and_not_of_the_end(store: Store, clock: FakeClock) -> None:
    failed = fails(store, attempts_max=5, release="1.0")
    failed_at = store.now().wall
    clock.advance(6000)
    settle(store, again(store, failed), Succeeded("7"))
    for more in ({"fingerprint": failed.fingerprint}, {"release": "1.0"}):
        assert ids(store.find(Filter(until=failed_at + 1, **more))) == [failed.id]
        assert store.find(Filter(since=failed_at + 1, **more)) == []
    assert ids(store.find(Filter(since=failed_at + 1))) == [failed.id], "it ended later"


def test_by_the_first_part_of_the_id(store: Store) -> None:
    one, two, other = (add(store, id=name).id for name in ("0193abcd-1", "0193abcd-2", "0194"))
    add(store, id="%")
    assert ids(store.find(Filter(prefix="0193abcd"))) == [two, one]
    assert ids(store.find(Filter(prefix="0193abcd-1"))) == [one]
    assert ids(store.find(Filter(prefix="0193abcd", limit=1))) == [two]
    assert ids(store.find(Filter(prefix="0193abcd", states=(State.READY,), ids=(one, other)))) == [one]
    assert store.find(Filter(prefix="0193abcd", states=(State.DONE,))) == []
    assert store.find(Filter(prefix="0193ABCD")) == []
    assert ids(store.find(Filter(prefix="%"))) == ["%"]
    assert store.find(Filter(prefix="019_")) == []
