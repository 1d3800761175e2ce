"""What PostgreSQL alone has to guard: whose lock means something, who may be forgotten, where a claim begins."""

import math
import threading
from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest

from holdfast.core.records import Job, Published
from holdfast.core.verdict import Outcome, Released
from holdfast.core.worker_exit import gone
from holdfast.errors import WorkerGone
from holdfast.stores.postgres.claim_cursor import SURE, ClaimCursor
from holdfast.stores.postgres.store import PostgresStore
from holdfast.testing import FakeClock
from tests.factory import EXPIRED, add, claim, enrol, row, settle, start
from tests.servers import CLOCK, pause
from tests.worker.house import until


@pytest.fixture
def stores(postgres: str, clock: FakeClock) -> Iterator[list[PostgresStore]]:
    """Two processes, as far as the server can tell."""
    both = [PostgresStore(postgres, clock=clock) for _ in range(2)]
    both[0].migrate()
    yield both
    for store in both:
        store.close()


@pytest.fixture
def store(stores: list[PostgresStore]) -> PostgresStore:
    return stores[0]


# ------------------------------------------------------------------------------------------------ locks


def test_a_process_that_does_not_look_for_free_locks_declares_no_worker_dead(stores: list[PostgresStore]) -> None:
    looking, other = stores
    enrol(looking)
    assert looking.vanished() == []
    enrol(other)
    assert other.vanished() == []


def test_a_free_lock_means_something_only_on_the_run_of_the_server_that_it_was_taken_on(
    stores: list[PostgresStore], postgres: str
) -> None:
    victim, looking = stores
    worker = enrol(victim)
    victim.close()
    give_up_at = CLOCK.lease() + 60
    while not (found := looking.vanished()) and CLOCK.lease() < give_up_at:
        pause(0.01)  # until the server has seen that the session is over
    assert [(each.worker.id, each.evidence) for each in found] == [(worker, "session")]
    with psycopg.connect(postgres, autocommit=True) as db:
        db.execute("UPDATE holdfast.worker SET server = 'another run'")
    assert looking.vanished() == []
    looking.retire(worker, "the test is over")


# -------------------------------------------------------------------------------------------- claiming


def test_a_worker_that_is_declared_dead_while_it_claims_gets_nothing(store: PostgresStore, postgres: str) -> None:
    """When the claim began it was alive; when the job would have become its own it was not."""
    worker, other = enrol(store), enrol(store)
    add(store)
    told: list[BaseException | list[Job]] = []

    def take() -> None:
        try:
            told.append(claim(store, worker))
        except WorkerGone as error:
            told.append(error)

    claiming = threading.Thread(target=take)
    with psycopg.connect(postgres, autocommit=True) as looking, psycopg.connect(postgres) as reaper:
        nobody = {"duty": None, "holder": None, "term": None}
        reaper.execute(
            store._db["retire"], {"worker": worker, "wall": None, "kept_s": 60.0, **gone("killed", None), **nobody}
        )
        claiming.start()
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = %s"
        give_up_at = CLOCK.lease() + 60
        while looking.execute(waiting, ("advisory",)).fetchone() == (0,) and CLOCK.lease() < give_up_at:
            pause(0.01)
    claiming.join(60)
    assert [type(each) for each in told] == [WorkerGone]
    assert len(claim(store, other)) == 1, "it is there for somebody else"


def test_a_claim_that_finds_nothing_writes_nothing(store: PostgresStore, postgres: str) -> None:
    """Hints wake many workers for one job; those that come too late shall not make the server sync."""
    worker = enrol(store)
    with psycopg.connect(postgres, autocommit=True) as db:
        assert claim(store, worker) == []
        assert db.execute("SELECT xmax::text FROM holdfast.worker").fetchall() == [("0",)]


def test_the_clock_of_the_server_is_asked_again_before_leases_are_judged(postgres: str) -> None:
    """It may have been set since, and what was known of it is a few seconds old."""
    with closing(PostgresStore(postgres)) as store:
        store.migrate()
        start(store, lease_s=0.1)
        truth = store.now().lease
        store._ahead = store._ahead[0] - 3600 if store._ahead else 0.0, CLOCK.lease()
        assert store.now().lease < truth - 3500
        until(lambda: store.overdue(), "the lease ends")
        assert abs(store.now().lease - truth) < 600


# -------------------------------------------------------------------------------------------- forgetting


def test_a_worker_is_forgotten_a_day_after_it_went_unless_it_still_holds_a_lease(
    store: PostgresStore, clock: FakeClock
) -> None:
    idle, holding, later, living = (enrol(store) for _ in range(4))
    start(store, holding)
    start(store, living)
    store.retire(idle, "gone")
    store.retire(holding, "gone")
    clock.advance(1.0)
    store.retire(later, "gone")
    clock.advance(86_400.0)
    store.retire("nobody", "a reason to look")
    assert {worker.id for worker in store.workers(gone=True)} == {holding, later, living}


def test_what_a_forgotten_worker_published_is_deleted_with_it(
    store: PostgresStore, clock: FakeClock, postgres: str
) -> None:
    forgotten, living = (enrol(store, tasks={"t": Published("default")}) for _ in range(2))
    store.retire(forgotten, "gone")
    clock.advance(86_401.0)
    store.retire("nobody", "a reason to look")
    with psycopg.connect(postgres) as db:
        assert db.execute("SELECT worker FROM holdfast.published").fetchall() == [(living,)]


# ------------------------------------------------------------------------------------------- the frontier


@pytest.fixture
def slow(store: PostgresStore, clock: FakeClock) -> PostgresStore:
    """A store whose looks at everything are slow, and that has claimed one job of queue `a` and one of queue `b`."""
    for queue in ("a", "b"):
        add(store, queue=queue, run_at=clock.wall() - 20)
    assert len(claim(store, queues=["a", "b"], limit=2)) == 2
    store._claim_cursor._slow = SURE
    store._claim_cursor._full_again_at = math.inf
    return store


def test_behind_the_frontier_a_claim_and_due_see_what_a_look_at_everything_would(
    slow: PostgresStore, clock: FakeClock
) -> None:
    jobs = [add(slow, queue=queue, run_at=clock.wall() - 10) for queue in ("a", "a", "b")]
    assert slow.due(["a", "b"], ["t"]) == clock.wall() - 10
    assert [job.id for job in claim(slow, queues=["a"])] == [job.id for job in jobs[:2]]
    assert slow.due(["a"], ["t"]) is None
    assert [job.id for job in claim(slow, queues=["a", "b"])] == [jobs[2].id]


def test_what_lies_before_the_frontier_is_found_by_the_next_look_at_everything(
    slow: PostgresStore, clock: FakeClock
) -> None:
    early = add(slow, queue="a", run_at=clock.wall() - 30)
    new = add(slow, queue="c", run_at=clock.wall() - 10)
    assert slow.due(["a", "c"], ["t"]) is None
    assert claim(slow, queues=["a"]) == claim(slow, queues=["c"]) == []
    slow._claim_cursor._full_again_at = -math.inf
    assert slow.due(["a"], ["t"]) == clock.wall() - 30
    assert [job.id for job in claim(slow, queues=["a", "c"])] == [early.id, new.id]


@pytest.mark.parametrize("outcome", [EXPIRED, Released(started=True, cause="the worker stopped")])
def test_a_job_that_comes_back_in_its_place_is_claimed_next_from_behind_the_frontier(
    slow: PostgresStore, stores: list[PostgresStore], clock: FakeClock, outcome: Outcome
) -> None:
    """Somebody else settles it, and tells all who listen where it stands."""
    other = stores[1]
    [first, second, third] = [add(slow, queue="a", run_at=clock.wall() - 10) for _ in range(3)]
    claimed = claim(slow, queues=["a"], limit=2)
    assert [job.id for job in claimed] == [first.id, second.id]
    slow._liveness.hold("listener")  # it listens from now on,
    slow._claim_cursor._full_again_at = math.inf  # and has looked at everything since
    settle(other, row(other, first.id), outcome)
    until(lambda: slow._claim_cursor._returned, "it was told")
    assert slow.due(["a"], ["t"]) == clock.wall() - 10
    assert [job.id for job in claim(slow, queues=["a"])] == [first.id, third.id]


def test_a_retry_with_a_pause_and_other_news_leave_the_frontier_where_it_is(slow: PostgresStore) -> None:
    before = slow._claim_cursor.lanes(0.0)
    for news in (
        "",
        "hello",
        "[1]",
        '{"a": 1}',
        "7",
        '[["a", 0, 1.5]]',
        '[["a", 0, "soon", "first"]]',
        "[[[], 0, 1, 1]]",
    ):
        slow._hear(news)
    assert slow._claim_cursor.lanes(0.0) == before


def test_a_process_that_may_have_missed_a_wake_up_looks_at_everything(slow: PostgresStore) -> None:
    assert slow._claim_cursor.lanes(0.0) is not None
    slow._hear(None)
    assert slow._claim_cursor.lanes(0.0) is None


def test_what_comes_back_during_a_claim_is_not_forgotten_by_its_answer() -> None:
    frontier = ClaimCursor()
    frontier._slow, frontier._full_again_at = SURE, math.inf
    lanes = frontier.lanes(0.0)
    frontier.come_back('[["a", 0, 5.0, 7]]')
    frontier.looked(lanes, 0.0, 1, '[["a", 0, 9.0, 12]]', 0.0)
    assert frontier.lanes(0.0) == '[["a",0,5.0,6]]'
    frontier.come_back('[["a", 0, 20.0, 30]]')
    assert frontier.lanes(0.0) == '[["a",0,5.0,6]]', "what lies behind it is met anyway"
