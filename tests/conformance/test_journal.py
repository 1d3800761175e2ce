"""journal: what happened, oldest first."""

import pytest

from holdfast.core.machine import State, Transition
from holdfast.core.records import NewEvent
from holdfast.core.settlement import settlement
from holdfast.core.verdict import Failed, Succeeded, Verdict
from holdfast.stores.protocol import Store
from holdfast.testing import FakeClock
from tests.factory import EXPIRED, again, job_in, revive, row, settle, start


def test_an_empty_store_and_an_unknown_job_have_no_history(store: Store) -> None:
    job_in(store, State.HELD)
    assert store.journal("nobody") == []


def test_the_life_of_a_job_is_told_in_order(store: Store, clock: FakeClock) -> None:
    job = start(store, on_crash="hold", base_s=0.0, cap_s=0.0)
    settle(store, job, Failed("boom"))
    clock.advance(1)
    settle(store, again(store, row(store, job.id)), EXPIRED)
    clock.advance(1)
    revive(store, row(store, job.id))
    settle(store, again(store, row(store, job.id)), Succeeded())
    settle(store, job, Succeeded())  # the first attempt again: it lost its right long ago
    events = store.journal(job.id)
    kinds = [event.kind for event in events]
    assert kinds == ["failed", "zombie", "held", "revived", "stale_report"]
    assert [event.fence for event in events] == [1, 2, 2, 3, 1]
    assert [event.at - events[0].at for event in events] == [0, 1, 1, 2, 2]
    assert [event.seq for event in events] == sorted({event.seq for event in events})
    assert {event.job_id for event in events} == {job.id}


def test_all_jobs_events_come_in_the_order_of_their_writing(store: Store) -> None:
    first, second = start(store, attempts_max=9), start(store, attempts_max=9)
    settle(store, second, Failed("x"))
    settle(store, first, Failed("x"))
    assert [event.job_id for event in store.journal()] == [second.id, first.id]


def test_the_histories_of_several_jobs_come_at_once_each_with_its_first_events(store: Store) -> None:
    first, second, other = (start(store, attempts_max=9, base_s=0.0, cap_s=0.0) for _ in range(3))
    for _ in range(3):
        for job in (second, first, other):
            settle(store, row(store, job.id), Failed("x"))
            again(store, row(store, job.id))
    found = store.journals([first.id, "nobody", second.id], 2)
    assert found == {job.id: store.journal(job.id)[:2] for job in (first, second)}
    assert store.journals([first.id], 99) == {first.id: store.journal(first.id)}
    assert store.journals([], 99) == {}


def test_by_kind(store: Store) -> None:
    held = job_in(store, State.HELD)
    job_in(store, State.DEAD)
    assert {event.kind for event in store.journal()} == {"zombie", "held", "failed", "dead"}
    assert [event.kind for event in store.journal(kinds=["dead", "zombie"])] == ["zombie", "dead"]
    assert [event.kind for event in store.journal(held.id, kinds=["dead", "held"])] == ["held"]
    assert store.journal(kinds=["revived"]) == []


def test_of_all_jobs_the_newest_are_kept_and_still_told_oldest_first(store: Store) -> None:
    jobs = [job_in(store, State.HELD).id for _ in range(3)]
    newest = store.journal(limit=3)
    assert [(event.job_id, event.kind) for event in newest] == [
        (jobs[1], "held"),
        (jobs[2], "zombie"),
        (jobs[2], "held"),
    ]
    assert [event.job_id for event in store.journal(kinds=["zombie"], limit=2)] == jobs[1:]


def test_since_an_instant_itself_included(store: Store, clock: FakeClock) -> None:
    before = job_in(store, State.HELD)
    clock.advance(10)
    since = clock.wall()
    after = job_in(store, State.HELD)
    clock.advance(10)
    assert {event.job_id for event in store.journal(since=since)} == {after.id}
    assert [event.job_id for event in store.journal(kinds=["zombie"], since=since)] == [after.id]
    assert [event.job_id for event in store.journal(kinds=["zombie"], since=since - 10)] == [before.id, after.id]
    assert store.journal(kinds=["zombie", "held"], since=since + 0.001) == []
    assert store.journal(before.id, since=since) == []
    assert [event.kind for event in store.journal(after.id, since=since)] == ["zombie", "held"]


def test_page_after_page_from_the_newest_to_the_oldest(store: Store) -> None:
    jobs = [job_in(store, State.HELD).id for _ in range(3)]
    since = store.now().wall
    every = store.journal()
    assert store.journal(before=every[4].seq, limit=2) == every[2:4]
    assert store.journal(before=every[0].seq) == []
    zombies = store.journal(kinds=["zombie"], since=since)
    assert [event.job_id for event in zombies] == jobs
    assert store.journal(kinds=["zombie"], since=since, before=zombies[2].seq, limit=1) == zombies[1:2]
    assert store.journal(kinds=["zombie"], before=zombies[2].seq) == zombies[:2]
    assert store.journal(jobs[0], before=every[1].seq) == every[:1]


@pytest.mark.parametrize(
    "detail",
    [
        {},
        {"number": 0, "float": 0.1, "large": 2**53, "yes": True, "no": False, "none": None},
        {"deep": {"list": [1, [2, {"three": "ž🐈"}]], "empty": [{}, []]}},
        {"text": 'quotes " and \\ and \n'},
    ],
)
def test_any_detail_comes_back_as_it_was(store: Store, detail: dict[str, object]) -> None:
    job = start(store)
    verdict = Verdict(move=Transition.BURY, state=State.DEAD, events=(NewEvent("dead", detail),))
    store.settle([settlement(job, verdict)])
    assert [event.detail for event in store.journal()] == [detail]


def test_numbers_in_a_detail_come_back_to_the_last_bit(store: Store) -> None:
    job = start(store)
    detail = {"lease_until": 12_345.678_901_234_567, "third": 1 / 3}
    verdict = Verdict(move=Transition.BURY, state=State.DEAD, events=(NewEvent("dead", detail),))
    store.settle([settlement(job, verdict)])
    assert [event.detail for event in store.journal()] == [detail]
