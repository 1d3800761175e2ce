"""figures: what is due, how fast jobs come and go, what was lost, and counters that never fall."""

from __future__ import annotations

import pytest

from holdfast.core.error_fingerprint import SLOT_S
from holdfast.core.figures import rates
from holdfast.core.machine import State
from holdfast.core.records import Job
from holdfast.core.settlement import settlement
from holdfast.core.verdict import Failed, Lost, Succeeded, judge
from holdfast.stores.protocol import Reply, Store
from holdfast.testing import FakeClock
from tests.factory import add, revive, row, settle, start


def lose(store: Store, detector: str = "exit", **given: object) -> Job:
    """Start a job and lose its worker."""
    job = start(store, **given)  # type: ignore[arg-type]
    settle(store, job, Lost(detector, "it died"))  # type: ignore[arg-type]
    return job


def report_late(store: Store, job: Job) -> None:
    late = settlement(job, judge(Succeeded(), job, store.now().wall, chance=0.5))
    assert store.settle([late]) == [Reply.REFUSED]


def test_the_backlog_of_a_queue_has_the_tasks_that_are_due_and_since_when(store: Store, clock: FakeClock) -> None:
    first = clock.wall()
    add(store, queue="mail", task="a")
    clock.advance(5)
    add(store, queue="mail", task="b", priority=3)
    add(store, queue="mail", task="a", group="acme")
    add(store, queue="mail", task="c", delay_s=60)
    add(store, queue="later", task="c", delay_s=60)
    add(store, queue="media", task="d", group="acme")
    found = store.figures.backlog()
    assert sorted(found) == ["mail", "media"]
    mail = found["mail"]
    assert (mail.tasks, mail.jobs, mail.is_whole) == ({"a": 2, "b": 1}, 3, True)
    assert mail.oldest == pytest.approx(first)
    assert mail.since == {"a": pytest.approx(first), "b": pytest.approx(first + 5)}


def test_a_long_backlog_is_looked_at_from_its_oldest_job(store: Store, clock: FakeClock) -> None:
    for task in "abc":
        add(store, queue="mail", task=task)
        clock.advance(1)
    add(store, queue="mail", task="d", priority=-1)
    found = store.figures.backlog(2)["mail"]
    assert (found.tasks, found.is_whole) == ({"a": 1, "b": 1, "d": 1}, False)


def test_jobs_that_are_not_due_or_not_ready_are_no_backlog(store: Store) -> None:
    start(store)
    assert store.figures.backlog() == {}


def test_flow_counts_jobs_that_came_and_jobs_that_ended(store: Store, clock: FakeClock) -> None:
    settle(store, start(store, queue="old"), Succeeded())
    clock.advance(100)
    since = clock.wall()
    settle(store, start(store, queue="mail", task="t"), Succeeded())
    settle(store, start(store, queue="mail", task="t", attempts_max=1), Failed("no"))
    add(store, queue="media")
    settle(store, start(store, queue="media", task="crop"), Succeeded())
    found = {(each.queue, each.task, each.state): (each.jobs, each.since) for each in store.figures.flow(since)}
    assert found == {
        ("mail", "t", "added"): (2, pytest.approx(since)),
        ("media", "t", "added"): (1, pytest.approx(since)),
        ("media", "crop", "added"): (1, pytest.approx(since)),
        ("mail", "t", "done"): (1, pytest.approx(since)),
        ("mail", "t", "dead"): (1, pytest.approx(since)),
        ("media", "crop", "done"): (1, pytest.approx(since)),
    }
    clock.advance(10)
    speed = rates(store.figures.flow(since), clock.wall())
    assert (speed["mail"].added, speed["mail"].ended) == (pytest.approx(0.2), pytest.approx(0.2))


def test_flow_says_how_far_back_it_has_looked(store: Store, clock: FakeClock) -> None:
    since = clock.wall()
    for _ in range(3):
        clock.advance(10)
        settle(store, start(store, queue="mail", task="t"), Succeeded())
    found = {each.state: (each.jobs, each.since) for each in store.figures.flow(since, sample=2)}
    assert found == {"added": (2, pytest.approx(since + 20)), "done": (2, pytest.approx(since + 20))}


def test_lost_attempts_come_with_their_jobs_by_now(store: Store, clock: FakeClock) -> None:
    old = lose(store)
    clock.advance(SLOT_S * 2)
    since = clock.wall()
    job = lose(store, "vanished", queue="mail", task="send")
    found = store.figures.lost(since)
    [line] = found.lines
    assert (found.total, found.late, line.is_late) == (1, 0, False)
    assert (line.job_id, line.fence, line.task, line.queue) == (job.id, job.fence, "send", "mail")
    assert (line.state, line.crashes, line.zombies, line.detail["detector"]) == (State.READY, 1, 1, "vanished")
    assert [(each.task, each.detector, each.decision, each.attempts) for each in found.counts] == [
        ("send", "vanished", "retry", 1)
    ]
    report_late(store, job)
    report_late(store, old)
    found = store.figures.lost(since)
    assert (found.total, found.late, found.lines[0].is_late) == (1, 1, True)


def test_of_many_lost_attempts_the_newest_are_listed_and_all_are_counted(store: Store, clock: FakeClock) -> None:
    jobs = []
    for _ in range(3):
        clock.advance(1)
        jobs.append(lose(store, task="t", on_crash="hold"))
    found = store.figures.lost(0.0, 2)
    assert [line.job_id for line in found.lines] == [jobs[1].id, jobs[2].id]
    assert (found.total, sum(each.attempts for each in found.counts)) == (3, 3)


def test_a_lost_attempt_stays_listed_when_its_job_is_deleted(store: Store, clock: FakeClock) -> None:
    job = lose(store, on_crash="fail")
    clock.advance(1)
    assert store.purge([State.DEAD], clock.wall()) == 1
    found = store.figures.lost(0.0)
    assert (found.total, found.lines) == (0, [])
    assert [(each.task, each.attempts) for each in found.counts] == [(job.task, 1)]


def test_counters_never_fall(store: Store, clock: FakeClock) -> None:
    done = start(store, queue="mail")
    settle(store, done, Succeeded())
    dead = lose(store, "exit", queue="mail", on_crash="fail")
    retried = lose(store, "vanished")
    report_late(store, retried)
    report_late(store, retried)
    counted = store.figures.counters()
    assert counted.ended == {"mail": {State.DONE: 1, State.DEAD: 1}}
    assert counted.zombies == {"exit": {"bury": 1}, "vanished": {"retry": 1}}
    assert counted.stale_reports == 1
    revive(store, row(store, dead.id))
    clock.advance(10)
    store.purge([State.DONE, State.DEAD], clock.wall())
    assert store.figures.counters() == counted


@pytest.fixture
def folding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where settlements add lines of their own, let each settlement add up those that are there."""
    monkeypatch.setattr("holdfast.stores.postgres.statements.FOLD_EVERY", 1)


@pytest.mark.usefixtures("folding")
def test_adding_up_changes_no_counter(store: Store, clock: FakeClock) -> None:
    for _ in range(3):
        lose(store, on_crash="fail")
        clock.advance(SLOT_S + 1)
        store.purge([State.DEAD], clock.wall())
        settle(store, start(store), Succeeded())
    counted = store.figures.counters()
    assert counted.ended["default"] == {State.DONE: 3, State.DEAD: 3}
    assert counted.zombies == {"exit": {"bury": 3}}
    assert sum(each.attempts for each in store.figures.lost(0.0).counts) == 3


def test_an_empty_store_has_no_figures(store: Store) -> None:
    assert store.figures.backlog() == {}
    assert store.figures.flow(0.0) == []
    assert store.figures.lost(0.0).total == 0
    assert store.figures.counters().ended == {}
