"""claim, from queues with limits, rates and groups: who may start, whose turn it is, and what is passed over."""

import itertools
import math
from collections import Counter

import pytest

from holdfast.core.limits import Places, Setting, setting
from holdfast.core.records import Job
from holdfast.core.verdict import Failed, Outcome, Parked, Released, Snoozed, Succeeded
from holdfast.stores.protocol import Reply, Store
from holdfast.testing import FakeClock
from tests.factory import EXPIRED, add, add_many, awaiting, claim, enrol, make_job, row, settle

_claims = itertools.count(1)


def fill(store: Store, many: int, **given: object) -> list[str]:
    """Store this many jobs and return their ids."""
    jobs = [make_job(**given) for _ in range(many)]
    store.add(jobs)
    return [job.id for job in jobs]


def taken(store: Store, worker: str, limit: int = 10, **given: object) -> list[Job]:
    return store.claim(worker, f"limits-{next(_claims)}", ["default"], ["t"], limit, **given)  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------------------- limits


def test_no_more_than_the_limit_run_at_once(store: Store) -> None:
    store.limit("default", setting(limit=3))
    fill(store, 10)
    first, second = enrol(store), enrol(store)
    jobs = taken(store, first, 2)
    assert len(jobs) == 2
    jobs += taken(store, second)
    assert len(jobs) == 3
    assert taken(store, first) == []
    assert store.places("default") == Places(3, 0)


@pytest.mark.parametrize(
    ("outcome", "state"),
    [
        (Succeeded(), "done"),
        (Failed("no"), "ready"),
        (Snoozed(5.0), "ready"),
        (Released(True, "stopping"), "ready"),
        (EXPIRED, "ready"),
        (EXPIRED, "held"),
        (Failed("no"), "dead"),
        (Parked("for a signal", awaits=awaiting("signal:go")), "waiting"),
    ],
)
def test_every_ending_gives_the_place_back_in_its_own_commit(store: Store, outcome: Outcome, state: str) -> None:
    store.limit("default", setting(limit=1, group_limit=1))
    policies = {"held": {"on_crash": "hold"}, "dead": {"attempts_max": 1}, "waiting": {"workflow": True}}
    ids = fill(store, 3, group="a", **policies.get(state, {}))
    worker = enrol(store)
    [job] = taken(store, worker)
    assert store.places("default", "a") == Places(1, 1)
    assert settle(store, job, outcome) is Reply.ACCEPTED
    assert store.places("default", "a") == Places(0, 0)
    assert row(store, job.id).state == state
    [following] = taken(store, worker)
    assert following.id in ids


def test_a_job_that_runs_again_needs_a_place_again(store: Store) -> None:
    store.limit("default", setting(limit=1))
    fill(store, 2, base_s=0.0, cap_s=0.0)
    worker = enrol(store)
    [job] = taken(store, worker)
    settle(store, job, Failed("again"))
    [next_one] = taken(store, worker)
    assert taken(store, worker) == []
    settle(store, next_one, Succeeded())
    assert len(taken(store, worker)) == 1


def test_what_ran_before_the_limit_was_set_counts(store: Store) -> None:
    fill(store, 6)
    worker = enrol(store)
    running = taken(store, worker, 3)
    store.limit("default", setting(limit=4))
    assert len(taken(store, worker)) == 1
    settle(store, running[0], Succeeded())
    assert len(taken(store, worker)) == 1


def test_a_limit_that_was_lowered_stops_nobody_and_starts_nothing_until_enough_have_ended(store: Store) -> None:
    store.limit("default", setting(limit=3))
    fill(store, 6)
    worker = enrol(store)
    running = taken(store, worker)
    store.limit("default", setting(limit=1))
    assert store.places("default").queue == 3
    for job in running[:2]:
        settle(store, job, Succeeded())
        assert taken(store, worker) == []
    settle(store, running[2], Succeeded())
    assert len(taken(store, worker)) == 1


def test_a_limit_of_nothing_starts_nothing_and_no_limit_starts_all(store: Store) -> None:
    store.limit("default", setting(limit=0))
    fill(store, 2)
    worker = enrol(store)
    assert taken(store, worker) == []
    store.limit("default", Setting())
    assert len(taken(store, worker)) == 2


def test_a_repeated_claim_takes_no_further_place(store: Store) -> None:
    store.limit("default", setting(limit=3))
    fill(store, 5)
    worker = enrol(store)
    first = store.claim(worker, "same", ["default"], ["t"], 2)
    second = store.claim(worker, "same", ["default"], ["t"], 2)
    assert {job.id for job in first} == {job.id for job in second}
    assert store.places("default").queue == 2


def test_nothing_is_claimed_ahead_from_a_queue_with_a_limit_or_a_rate(store: Store) -> None:
    worker = enrol(store)
    fill(store, 9)
    for held in (setting(limit=8), setting(group_limit=8), setting(rate="9/1s", burst=9)):
        store.limit("default", held)
        assert [job.started for job in taken(store, worker, 1, ahead=5)] == [True]
    store.limit("default", Setting())
    assert len(taken(store, worker, 1, ahead=5)) == 6


def test_a_full_queue_leaves_its_share_to_others(store: Store) -> None:
    store.limit("full", setting(limit=1))
    fill(store, 5, queue="full")
    fill(store, 5, queue="open")
    worker = enrol(store)
    got = Counter(job.queue for job in claim(store, worker, queues=["full", "open"], limit=4))
    assert got == {"full": 1, "open": 3}
    got = Counter(job.queue for job in claim(store, worker, queues=["full", "open"], limit=4))
    assert got == {"open": 2}


def test_a_lost_holder_keeps_its_place_until_its_verdict_is_written(store: Store, clock: FakeClock) -> None:
    store.limit("default", setting(limit=1))
    fill(store, 2, lease_s=5.0)
    [job] = taken(store, enrol(store))
    other = enrol(store)
    assert store.ghosts(["default"]) == []
    clock.advance(5)
    assert taken(store, other) == []
    assert [ghost.id for ghost in store.ghosts(["default"])] == [job.id]
    assert settle(store, job, EXPIRED, seen_lease=True) is Reply.ACCEPTED
    assert store.ghosts(["default"]) == []
    assert len(taken(store, other)) == 1


def test_a_returned_zombie_gives_no_place_back_twice(store: Store) -> None:
    store.limit("default", setting(limit=1))
    fill(store, 3)
    [zombie] = taken(store, enrol(store))
    settle(store, zombie, EXPIRED)
    other = enrol(store)
    assert len(taken(store, other)) == 1
    assert settle(store, zombie, Succeeded()) is Reply.REFUSED
    assert taken(store, other) == []
    assert store.places("default").queue == 1


def test_ghosts_are_of_queues_with_limits_only(store: Store, clock: FakeClock) -> None:
    store.limit("limited", setting(group_limit=5))
    store.limit("rated", setting(rate="5/1s", burst=5))
    for queue in ("limited", "rated", "plain"):
        add(store, queue=queue, lease_s=1.0)
    claim(store, queues=["limited", "rated", "plain"])
    clock.advance(2)
    assert [job.queue for job in store.ghosts(["limited", "rated", "plain"])] == ["limited"]
    assert store.ghosts(["plain"]) == []


# ------------------------------------------------------------------------------------------ group limits


def test_no_group_runs_more_than_the_group_limit_and_a_full_one_blocks_nobody(store: Store) -> None:
    store.limit("default", setting(group_limit=2))
    fill(store, 30, group="a")
    fill(store, 1, group="b")
    fill(store, 3)
    worker = enrol(store)
    got = Counter(job.group for job in taken(store, worker, 5) + taken(store, worker, 20) + taken(store, worker, 20))
    assert got == {"a": 2, "b": 1, None: 3}
    assert store.places("default", "a") == Places(6, 2)


def test_jobs_without_a_group_have_no_group_limit(store: Store) -> None:
    store.limit("default", setting(group_limit=1))
    fill(store, 4)
    assert len(taken(store, enrol(store))) == 4


def test_both_limits_hold_at_once(store: Store) -> None:
    store.limit("default", setting(limit=5, group_limit=2))
    for group in "abcd":
        fill(store, 5, group=group)
    worker = enrol(store)
    running = taken(store, worker, 3)
    running += taken(store, worker, 20)
    groups = Counter(job.group for job in running)
    assert (sum(groups.values()), max(groups.values())) == (5, 2)
    settle(store, running[0], Succeeded())
    assert len(taken(store, worker)) == 1


def test_the_group_limit_holds_over_priorities(store: Store) -> None:
    store.limit("default", setting(group_limit=2))
    for priority in (0, 5, 9):
        fill(store, 2, group="a", priority=priority)
    worker = enrol(store)
    assert sorted(job.priority for job in taken(store, worker)) == [9, 9]


def test_groups_of_one_name_in_two_queues_are_two(store: Store) -> None:
    for queue in ("one", "two"):
        store.limit(queue, setting(group_limit=1))
        fill(store, 2, queue=queue, group="a")
    got = Counter(job.queue for job in claim(store, queues=["one", "two"]))
    assert got == {"one": 1, "two": 1}


# ------------------------------------------------------------------------------------------------ turns


@pytest.mark.parametrize("held", [setting(limit=1), setting(limit=50), setting(limit=7, group_limit=3)])
def test_groups_take_turns_whatever_their_names_and_backlogs(store: Store, held: Setting) -> None:
    store.limit("default", held)
    groups = ["", "a", "m", "zz", "ünï 🐈"]
    fill(store, 60, group="m")
    for name in groups:
        fill(store, 12, group=name or None)
    worker, starts = enrol(store), Counter[str]()
    for size in itertools.islice(itertools.cycle((1, 3, 2)), 18):
        jobs = taken(store, worker, size)
        starts.update(job.group or "" for job in jobs)
        assert max(starts[name] for name in groups) - min(starts[name] for name in groups) <= 1
        for job in jobs:
            settle(store, job, Succeeded())
    assert sum(starts.values()) >= 18


def test_a_group_with_one_job_starts_within_one_round(store: Store) -> None:
    store.limit("default", setting(limit=50))
    for group in "abcd":
        fill(store, 20, group=group)
    worker = enrol(store)
    taken(store, worker, 3)
    [late] = fill(store, 1, group="x")
    assert late in [job.id for _ in range(5) for job in taken(store, worker, 1)]


def test_within_a_group_the_order_is_run_at_then_first_come(store: Store, clock: FakeClock) -> None:
    wall = clock.wall()
    late = add(store, group="a", run_at=wall - 1)
    early = add(store, group="a", run_at=wall - 9)
    tied = add(store, group="a", run_at=wall - 9)
    worker = enrol(store)
    got = [taken(store, worker, 1)[0].id for _ in range(3)]
    assert got == [early.id, tied.id, late.id]


def test_priority_comes_before_turns(store: Store) -> None:
    store.limit("default", setting(limit=20))
    fill(store, 4, group="a", priority=5)
    fill(store, 4, group="b")
    worker = enrol(store)
    assert [taken(store, worker, 1)[0].group for _ in range(5)] == ["a", "a", "a", "a", "b"]


def test_a_group_whose_jobs_are_later_has_no_turn(store: Store, clock: FakeClock) -> None:
    store.limit("default", setting(limit=9))
    fill(store, 2, group="a", run_at=clock.wall() + 60)
    fill(store, 2, group="b")
    worker = enrol(store)
    assert [job.group for job in taken(store, worker)] == ["b", "b"]
    clock.advance(60)
    assert [job.group for job in taken(store, worker)] == ["a", "a"]


def test_jobs_of_other_tasks_do_not_block_their_group_nor_others(store: Store) -> None:
    store.limit("default", setting(limit=9))
    fill(store, 300, group="a", task="strange")
    [own] = fill(store, 1, group="a")
    [other] = fill(store, 1, group="b")
    assert {job.id for job in taken(store, enrol(store))} == {own, other}


def test_grouped_jobs_without_limits_take_turns_and_may_be_claimed_ahead(store: Store) -> None:
    fill(store, 20, group="a")
    fill(store, 2, group="b")
    fill(store, 2, group="c", on_crash="hold")
    jobs = taken(store, enrol(store), 3, ahead=4)
    begun = [job.group for job in jobs if job.started]
    assert sorted(filter(None, begun)) == ["a", "b", "c"]
    ahead = [job for job in jobs if not job.started]
    assert (len(ahead), {job.on_crash for job in ahead}) == (4, {"retry"})
    assert {job.group for job in ahead} == {"a", "b"}


def test_plain_queues_and_queues_with_turns_share_one_claim(store: Store) -> None:
    store.limit("b", setting(limit=1))
    for queue in "abc":
        fill(store, 6, queue=queue)
    fill(store, 6, queue="d", group="x")
    worker = enrol(store)
    got = Counter(job.queue for job in claim(store, worker, queues=list("abcd"), limit=9))
    assert got == {"a": 4, "b": 1, "c": 2, "d": 2}


def test_a_limit_that_this_process_has_not_met_hides_no_job_from_its_claim(store: Store) -> None:
    """A worker that gets nothing may sleep, although a job is there that it may start."""
    for queue in ("full", "new"):
        store.limit(queue, setting(limit=1))
    fill(store, 2, queue="full")
    worker = enrol(store)
    assert len(store.claim(worker, "first", ["full"], ["t"], 5)) == 1
    ids = fill(store, 2, queue="new")
    assert [job.id for job in store.claim(worker, "second", ["full", "new"], ["t"], 4)] == ids[:1]


def test_a_claim_from_many_queues_with_limits_takes_what_may_start(store: Store, clock: FakeClock) -> None:
    names = ["full", "closed", "spent", "later", "strange", "grouped", "open", "plain"]
    held = {"full": setting(limit=1), "spent": setting(rate="1/1h"), "grouped": setting(group_limit=1)}
    for name in names[:-1]:
        store.limit(name, held.get(name, setting(limit=5)))
    for name in ("full", "spent"):
        fill(store, 1, queue=name)
    worker = enrol(store)
    assert len(claim(store, worker, queues=names)) == 2
    store.pause("closed", True)
    for name in names:
        fill(store, 2, queue=name, task="u" if name == "strange" else "t", delay_s=60.0 if name == "later" else 0.0)
    fill(store, 2, queue="grouped", group="x")
    assert Counter(job.queue for job in claim(store, worker, queues=names)) == {"grouped": 3, "open": 2, "plain": 2}
    clock.advance(60)
    assert Counter(job.queue for job in claim(store, worker, queues=names)) == {"later": 2}
    store.pause("closed", False)
    store.limit("full", setting(limit=2))
    assert Counter(job.queue for job in claim(store, worker, queues=names)) == {"full": 1, "closed": 2}


def test_many_full_groups_do_not_hide_an_open_one(store: Store) -> None:
    store.limit("default", setting(group_limit=1))
    add_many(store, [make_job(group=f"g{number:05}") for number in range(2500) for _ in range(2)])
    worker = enrol(store)
    for _ in range(5):
        jobs = taken(store, worker, 500)
        assert len(jobs) == 500
    [only] = fill(store, 1, group="zzz")
    found = [job.id for _ in range(5) for job in taken(store, worker, 5)]
    assert found == [only]


# ------------------------------------------------------------------------------------------------ rates


def test_a_rate_lets_one_start_in_every_step(store: Store, clock: FakeClock) -> None:
    store.limit("default", setting(rate="4/2s"))
    fill(store, 10)
    worker, starts = enrol(store), []
    for _ in range(40):
        starts += [clock.wall() for _ in taken(store, worker)]
        clock.advance(1 / 8)
    assert [later - before for before, later in itertools.pairwise(starts)] == [0.5] * 9


@pytest.mark.parametrize("burst", [1, 2, 5])
def test_no_interval_has_more_starts_than_the_rate_and_the_burst_allow(
    store: Store, clock: FakeClock, burst: int
) -> None:
    step = 0.25
    store.limit("default", setting(rate="4/1s", burst=burst))
    fill(store, 200)
    worker, starts = enrol(store), []
    waits = [0.0, 0.125, 0.25, 3.0, 0.375, 0.0625] * 6
    for wait in waits:
        starts += [clock.wall() for _ in taken(store, worker, 3)]
        clock.advance(wait)
    for first, begin in enumerate(starts):
        for number, end in enumerate(starts[first:], 1):
            length = end - begin + 1e-9  # a half-open interval that holds both
            assert number <= math.ceil(length / step) + burst - 1


def test_a_rate_counts_retries_and_gives_nothing_back(store: Store, clock: FakeClock) -> None:
    store.limit("default", setting(rate="1/10s"))
    fill(store, 2, base_s=0.0, cap_s=0.0)
    worker = enrol(store)
    [job] = taken(store, worker)
    settle(store, job, Failed("again"))
    assert taken(store, worker) == []
    clock.advance(10)
    assert len(taken(store, worker)) == 1


def test_a_claim_that_takes_nothing_or_is_repeated_spends_nothing(store: Store, clock: FakeClock) -> None:
    store.limit("default", setting(rate="1/10s", burst=2))
    worker = enrol(store)
    assert taken(store, worker) == []
    fill(store, 3)
    first = store.claim(worker, "same", ["default"], ["t"], 1)
    assert store.claim(worker, "same", ["default"], ["t"], 1) == first
    assert len(taken(store, worker)) == 1
    assert taken(store, worker) == []


def test_a_clock_that_is_set_back_delays_by_no_more_than_the_burst(store: Store, clock: FakeClock) -> None:
    clock.set_wall(clock.wall() + 100_000)
    store.limit("default", setting(rate="1/10s", burst=3))
    fill(store, 8, run_at=1.0)
    worker = enrol(store)
    assert len(taken(store, worker)) == 3
    clock.set_wall(clock.wall() - 90_000)
    assert taken(store, worker) == []
    clock.advance(10)
    assert len(taken(store, worker)) == 1


def test_due_names_the_next_permit_and_the_end_of_a_pause(store: Store, clock: FakeClock) -> None:
    store.limit("default", setting(rate="1/10s"))
    fill(store, 2)
    worker = enrol(store)
    [job] = taken(store, worker)
    assert store.due(["default"], ["t"]) == job.claimed_at + 10  # type: ignore[operator]
    store.pause("default", True, until=clock.wall() + 30)
    assert store.due(["default"], ["t"]) == clock.wall() + 30
    store.pause("default", True)
    assert store.due(["default"], ["t"]) is None


def test_due_knows_of_jobs_with_a_group(store: Store, clock: FakeClock) -> None:
    add(store, group="a", run_at=clock.wall() + 9)
    assert store.due(["default"], ["t"]) == clock.wall() + 9
    assert store.due(["default"], ["other"]) is None
    add(store, run_at=clock.wall() + 5)
    assert store.due(["default"], ["t"]) == clock.wall() + 5


# ------------------------------------------------------------------------------------------------ pauses


def test_a_paused_group_is_passed_over_until_it_is_resumed(store: Store) -> None:
    fill(store, 3, group="a")
    fill(store, 1, group="b")
    fill(store, 1)
    store.pause("default", True, group="a")
    worker = enrol(store)
    assert {job.group for job in taken(store, worker)} == {"b", None}
    assert store.paused() == []
    store.pause("default", False, group="a")
    assert len(taken(store, worker)) == 3


def test_a_pause_ends_by_itself_at_its_instant(store: Store, clock: FakeClock) -> None:
    fill(store, 2, group="a")
    fill(store, 1, queue="other")
    store.pause("default", True, group="a", until=clock.wall() + 10)
    store.pause("other", True, until=clock.wall() + 20)
    worker = enrol(store)
    queues = ["default", "other"]
    assert store.paused() == ["other"]
    assert claim(store, worker, queues=queues) == []
    clock.advance(9.75)
    assert claim(store, worker, queues=queues) == []
    clock.advance(0.25)
    assert {job.queue for job in claim(store, worker, queues=queues)} == {"default"}
    clock.advance(10)
    assert store.paused() == []
    assert {job.queue for job in claim(store, worker, queues=queues)} == {"other"}
