"""standing, doubt, doubts, accept: by what a store is known, and what a person has accepted."""

from msgspec.structs import replace

from holdfast.core.continuity import Doubt
from holdfast.core.machine import State
from holdfast.core.verdict import Succeeded
from holdfast.stores.protocol import Store
from holdfast.testing import FakeClock
from tests.factory import add, delete, enrol, job_in, settle, start

REWOUND = Doubt("rewound", "beats", "12", "11", "w")


def test_a_store_reports_its_identity_and_the_beats_of_a_worker(store: Store) -> None:
    worker = enrol(store)
    before = store.standing(worker, (), None)
    assert before.identity
    assert (before.incarnation, before.beats, before.newest, before.doubts) == (1, 0, [], 0)
    assert before.schema == store.schema().found
    store.beat(worker, [])
    now = store.standing(worker, (), None)
    assert (now.identity, now.beats) == (before.identity, 1)
    other = enrol(store)
    store.beat(other, [])
    store.beat(other, [])
    assert [store.standing(each, (), None).beats for each in (worker, other)] == [1, 2]
    assert store.standing(worker, (), None).beats_of_all == 3 + 2, "three beats, and two workers"
    assert not store.standing(worker, (), None).uncounted, "a worker of this version counts what it removes"
    assert store.standing("nobody", (), None).beats is None


def test_a_store_says_which_schema_it_has(store: Store) -> None:
    said, schema = store.standing("", (), None), store.schema()
    assert (said.schema, said.works_with) == (schema.found, schema.works_with or schema.found)
    assert said.identity not in {str(said.schema), str(said.works_with), str(said.removals)}


def test_a_job_that_is_known_is_there_until_it_is_removed(store: Store) -> None:
    job = job_in(store, State.DONE)
    before = store.standing("", [job.id], None)
    assert (before.newest, before.missing) == ([job.id], [])
    store.purge([State.DONE], 2e9)
    now = store.standing("", [job.id], None)
    assert (now.newest, now.missing) == ([], [job.id])
    assert now.removals > before.removals
    others = sorted(add(store).id for _ in range(3))
    now = store.standing("", [others[0], job.id], None)
    assert (now.newest, now.missing) == ([others[2], others[1]], [job.id])


def test_a_job_that_is_deleted_counts_as_removed(store: Store) -> None:
    job = add(store)
    before = store.standing("", (), None).removals
    assert delete(store, job.id, job.state, job.fence)
    assert store.standing("", (), None).removals > before


def test_a_purge_or_a_delete_that_finds_nothing_removes_nothing(store: Store) -> None:
    job = add(store)
    before = store.standing("", (), None).removals
    store.purge([State.DONE], 2e9)
    assert not delete(store, job.id, job.state, job.fence + 1)
    assert not delete(store, "unknown", job.state, job.fence)
    assert store.standing("", (), None).removals == before


def test_a_job_runs_under_a_lease_until_it_is_settled(store: Store) -> None:
    job = start(store)
    assert store.standing("", (), job.lease).runs_again
    other = start(store)
    for lease in (
        replace(job.lease, job_id=other.id),
        replace(job.lease, fence=job.fence + 1),
        replace(job.lease, claim_id="another"),
    ):
        assert not store.standing("", (), lease).runs_again
    settle(store, job, Succeeded())
    assert not store.standing("", (), job.lease).runs_again


def test_a_doubt_is_kept_once_until_a_person_accepts_the_store(store: Store, clock: FakeClock) -> None:
    store.doubt(1, REWOUND)
    store.doubt(1, REWOUND)
    [doubt] = store.doubts()
    assert (doubt.kind, doubt.evidence, doubt.seen, doubt.found, doubt.worker) == ("rewound", "beats", "12", "11", "w")
    assert doubt.at == clock.wall()
    assert store.standing("", (), None).doubts == 1
    assert store.accept(1, "ann", "looked") == 2
    assert store.doubts() == []
    now = store.standing("", (), None)
    assert (now.incarnation, now.accepted_at, now.at, now.doubts) == (2, clock.wall(), clock.wall(), 0)
    clock.advance(1)
    later = store.standing("", (), None)
    assert (later.accepted_at, later.at) == (now.accepted_at, now.at + 1)


def test_accepting_twice_by_mistake_begins_one_incarnation(store: Store) -> None:
    assert store.accept(1, "ann", "looked") == 2
    assert store.accept(1, "ann", "looked") == 2
    store.doubt(2, REWOUND)
    assert store.accept(1, "ann", "too late") == 2
    assert len(store.doubts()) == 1


def test_a_doubt_that_was_answered_meanwhile_is_not_written_down(store: Store) -> None:
    store.accept(1, "ann", "looked")
    store.doubt(1, REWOUND)
    assert store.doubts() == []


def test_no_table_is_missing(store: Store) -> None:
    assert store.missing() == []
