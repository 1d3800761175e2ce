"""rollups, fold: attempts that ended and jobs that arrived, by minute, by hour and for ever."""

from __future__ import annotations

import pytest

from holdfast.core.machine import ENDED, State
from holdfast.core.records import Job
from holdfast.core.rollups import EVER, HOUR, KEPT_S, MINUTE, QUARTER, SPANS, Endings, Rollup, bucket_of
from holdfast.core.settlement import Settlement, settlement
from holdfast.core.verdict import Failed, Lost, Succeeded, judge
from holdfast.errors import DutyLost
from holdfast.stores.protocol import Reply, Store
from holdfast.testing import FakeClock
from tests.factory import add, settle, start


def fold(store: Store, limit: int = 500) -> int:
    """Fold as the holder of the duty does."""
    counts, ended = store.counts(), store.figures.counters().ended
    live = {queue: sum(jobs for state, jobs in by.items() if state not in ENDED) for queue, by in counts.items()}
    came = {queue: live.get(queue, 0) + sum(ended.get(queue, {}).values()) for queue in live.keys() | ended.keys()}
    return store.figures.fold(came, limit)


def ending(store: Store, job: Job, *, waited_s: float, ran_s: float) -> Settlement:
    verdict = judge(Succeeded(), job, store.now().wall, chance=0.5)
    return settlement(job, verdict, began_after_s=waited_s, ran_s=ran_s)


def attempts(found: list[Rollup]) -> dict[tuple[str, str, str], int]:
    return {(each.queue, one.state, one.detector): one.attempts for each in found for one in each.endings}


def histogram(*seconds: float) -> list[int]:
    buckets = [bucket_of(each) or 0 for each in seconds]
    return [buckets.count(bucket) for bucket in range(max(buckets) + 1)]


def test_an_attempt_counts_before_and_after_the_fold_alike(store: Store) -> None:
    jobs = [start(store, queue="mail") for _ in range(3)]
    times = [(0.3, 0.004), (0.3, 0.004), (12.0, 70.0)]
    batch = [ending(store, job, waited_s=wait, ran_s=run) for job, (wait, run) in zip(jobs, times, strict=True)]
    assert store.settle(batch) == [Reply.ACCEPTED] * 3
    wanted = [Endings("done", "", 3, histogram(0.3, 0.3, 12.0), histogram(0.004, 0.004, 70.0))]
    since = store.now().wall - 60
    for span in SPANS:
        [before] = store.figures.rollups(span, since)
        assert (before.queue, before.endings) == ("mail", wanted)
    assert fold(store) == 1
    for span in SPANS:
        [after] = store.figures.rollups(span, since)
        assert (after.queue, after.endings, after.arrived) == ("mail", wanted, 3)
    assert fold(store) == 0


def test_rollups_tell_what_became_of_jobs_and_how_a_death_was_found(store: Store) -> None:
    settle(store, start(store, queue="mail"), Failed("no"))
    settle(store, start(store, queue="mail"), Lost("expired", "it died"))
    settle(store, start(store, queue="media", crashes_max=1), Lost("exit", "it died"))
    settle(store, start(store, queue="media"), Succeeded())
    wanted = {
        ("mail", "ready", ""): 1,
        ("mail", "ready", "expired"): 1,
        ("media", "dead", "exit"): 1,
        ("media", "done", ""): 1,
    }
    for _ in range(2):
        assert attempts(store.figures.rollups(MINUTE, store.now().wall - 60)) == wanted
        assert fold(store) in (4, 0)


def test_a_settlement_that_is_refused_or_repeated_does_not_count(store: Store) -> None:
    lost, job, other = (start(store, queue="mail") for _ in range(3))
    settle(store, lost, Lost("expired", "it died"))
    late = ending(store, lost, waited_s=1.0, ran_s=1.0)
    once, second = ending(store, job, waited_s=1.0, ran_s=1.0), ending(store, other, waited_s=2.0, ran_s=2.0)
    assert store.settle([late, once]) == [Reply.REFUSED, Reply.ACCEPTED]
    assert store.settle([once, second]) == [Reply.ALREADY, Reply.ACCEPTED]
    assert attempts(store.figures.rollups(EVER, 0)) == {("mail", "ready", "expired"): 1, ("mail", "done", ""): 2}


def test_minutes_add_up_to_hours_and_to_all_that_ever_was(store: Store, clock: FakeClock) -> None:
    for _ in range(3):
        settle(store, start(store, queue="mail"), Succeeded())
        clock.advance(1800)
    fold(store)
    since = clock.wall() - 7200
    minutes = store.figures.rollups(MINUTE, since)
    assert [sum(one.attempts for one in each.endings) for each in minutes] == [1, 1, 1, 0]
    assert sum(one.attempts for each in store.figures.rollups(HOUR, since) for one in each.endings) == 3
    assert attempts(store.figures.rollups(EVER, 0)) == {("mail", "done", ""): 3}
    assert len(store.figures.rollups(MINUTE, clock.wall() - 1800)) == 2, "the window begins with a whole slot"


def test_jobs_that_arrive_are_counted_by_the_fold_after_them(store: Store, clock: FakeClock) -> None:
    for _ in range(3):
        add(store, queue="mail")
    assert store.figures.rollups(MINUTE, 0) == []
    fold(store)
    clock.advance(60)
    add(store, queue="mail", delay_s=3600)
    settle(store, start(store, queue="media"), Succeeded())
    fold(store)
    clock.advance(60)
    fold(store)
    found = store.figures.rollups(MINUTE, clock.wall() - 300)
    assert [(each.queue, each.arrived) for each in found] == [("mail", 3), ("mail", 1), ("media", 1)]
    assert [(each.queue, each.arrived) for each in store.figures.rollups(EVER, 0)] == [("mail", 4), ("media", 1)]


def test_jobs_that_are_deleted_stay_counted(store: Store, clock: FakeClock) -> None:
    settle(store, start(store, queue="mail"), Succeeded())
    fold(store)
    clock.advance(60)
    assert store.purge([State.DONE], clock.wall(), 10) == 1
    fold(store)
    [ever] = store.figures.rollups(EVER, 0)
    assert (ever.arrived, attempts([ever])) == (1, {("mail", "done", ""): 1})


def test_a_fold_takes_only_so_many_and_a_delta_once(store: Store) -> None:
    for _ in range(5):
        settle(store, start(store, queue="mail"), Succeeded())
    assert [fold(store, 2) for _ in range(4)] == [2, 2, 1, 0]
    assert attempts(store.figures.rollups(EVER, 0)) == {("mail", "done", ""): 5}


def test_old_minutes_and_hours_go_and_totals_stay(store: Store, clock: FakeClock) -> None:
    settle(store, start(store, queue="mail"), Succeeded())
    fold(store)
    clock.advance(KEPT_S[MINUTE] - 3600)
    fold(store)
    assert len(store.figures.rollups(MINUTE, 0)) == 1
    clock.advance(3600 + QUARTER)
    fold(store)
    gone, kept = [store.figures.rollups(span, 0) for span in (MINUTE, QUARTER)], store.figures.rollups(HOUR, 0)
    assert (gone, len(kept)) == ([[], []], 1)
    clock.advance(KEPT_S[HOUR])
    fold(store)
    assert store.figures.rollups(HOUR, 0) == []
    assert attempts(store.figures.rollups(EVER, 0)) == {("mail", "done", ""): 1}


def test_only_the_holder_of_the_duty_folds(store: Store, clock: FakeClock) -> None:
    settle(store, start(store, queue="mail"), Succeeded())
    old = store.acquire("rollups", "a", 10.0)
    clock.advance(20)
    new = store.acquire("rollups", "b", 10.0)
    assert old is not None
    assert new is not None
    with pytest.raises(DutyLost):
        store.figures.fold({"mail": 1}, under=old)
    assert store.figures.fold({"mail": 1}, under=new) == 1
    assert attempts(store.figures.rollups(EVER, 0)) == {("mail", "done", ""): 1}


def test_an_attempt_that_never_began_has_no_time(store: Store) -> None:
    job = start(store, queue="mail")
    verdict = judge(Succeeded(), job, store.now().wall, chance=0.5)
    store.settle([settlement(job, verdict, began_after_s=None)])
    assert store.figures.rollups(EVER, 0)[0].endings == [Endings("done", "", 1, [], [])]
