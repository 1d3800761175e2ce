"""What PostgreSQL alone has to guard: whose lock means something, who may be forgotten, where a claim begins."""

import math
from collections.abc import Iterator

import psycopg
import pytest

from holdfast.stores.postgres.frontier import SURE
from holdfast.stores.postgres.store import PostgresStore
from holdfast.testing import FakeClock
from tests.factory import add, claim, enrol, start
from tests.servers import CLOCK, pause


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


def test_who_does_not_look_for_free_locks_takes_nobody_for_dead(stores: list[PostgresStore]) -> None:
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
    give_up_at = CLOCK.lease() + 10
    while not (found := looking.vanished()) and CLOCK.lease() < give_up_at:
        pause(0.01)  # until the server has seen that the session is over
    assert [(each.worker.id, each.evidence) for each in found] == [(worker, "lock")]
    with psycopg.connect(postgres, autocommit=True) as db:
        db.execute("UPDATE holdfast.worker SET server = 'another run'")
    assert looking.vanished() == []
    looking.retire(worker, "the test is over")


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


# ------------------------------------------------------------------------------------------- the frontier


@pytest.fixture
def slow(store: PostgresStore, clock: FakeClock) -> PostgresStore:
    """A store whose looks at everything are slow, and that has claimed one job of queue `a` and one of queue `b`."""
    for queue in ("a", "b"):
        add(store, queue=queue, run_at=clock.wall() - 20)
    assert len(claim(store, queues=["a", "b"], limit=2)) == 2
    store._frontier._slow = SURE
    store._frontier._full_again_at = math.inf
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
    slow._frontier._full_again_at = -math.inf
    assert slow.due(["a"], ["t"]) == clock.wall() - 30
    assert [job.id for job in claim(slow, queues=["a", "c"])] == [early.id, new.id]
