"""add with rules for keys: how long a job has its key, and what happens to it when another job wants the key."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.machine import State
from holdfast.core.records import Filter, Job, KeyRule, KeyScope, NewJob, OnTaken
from holdfast.core.verdict import Failed, Succeeded
from holdfast.stores.protocol import Added, Store
from holdfast.testing import FakeClock
from tests.factory import claim, delete, make_job, revive, row, settle

SCOPES: tuple[KeyScope | float, ...] = ("queued", "live", "ever", 60.0)


def keyed(
    id: str,
    scope: KeyScope | float = "queued",
    on_taken: OnTaken = "keep",
    wait_max_s: float | None = None,
    **given: Any,
) -> NewJob:
    return make_job(id=id, key_rule=KeyRule(scope, on_taken, wait_max_s), **{"key": "k", **given})


def put(store: Store, *jobs: NewJob) -> list[Added]:
    return store.add(list(jobs))


def begin(store: Store) -> Job:
    """Claim the one job that is due."""
    [job] = claim(store)
    return job


def removed(store: Store, job_id: str) -> bool:
    job = row(store, job_id)
    return delete(store, job.id, job.state, job.fence)


def kinds(store: Store, job_id: str) -> list[str]:
    return [event.kind for event in store.journal(job_id)]


@pytest.mark.parametrize("scope", SCOPES)
def test_a_second_job_is_not_stored_while_the_first_is_queued(store: Store, scope: KeyScope | float) -> None:
    assert put(store, keyed("a", scope)) == [("a", False)]
    assert put(store, keyed("b", scope)) == [("a", True)]
    assert store.get("b") is None
    assert [job.id for job in store.find(Filter(key="k"))] == ["a"]
    assert row(store, "a").key == "k"
    wanted = {"live": None, 60.0: "60"}.get(scope, scope)
    assert row(store, "a").key_scope == wanted


@pytest.mark.parametrize(("scope", "is_free"), [("queued", True), ("live", False), ("ever", False), (60.0, False)])
def test_only_the_key_of_a_queued_job_is_free_when_it_is_claimed(
    store: Store, scope: KeyScope | float, is_free: bool
) -> None:
    put(store, keyed("a", scope))
    begin(store)
    assert put(store, keyed("b", scope)) == [("b", False) if is_free else ("a", True)]


def test_a_queued_key_is_not_taken_back_by_a_retry(store: Store) -> None:
    put(store, keyed("a"))
    job = begin(store)
    put(store, keyed("b"))
    settle(store, job, Failed("no luck"))
    assert row(store, "a").state is State.READY
    assert put(store, keyed("c")) == [("b", True)]


@pytest.mark.parametrize(("scope", "is_free"), [("queued", True), ("live", True), ("ever", False), (60.0, False)])
def test_the_end_of_a_job_frees_a_live_key(store: Store, scope: KeyScope | float, is_free: bool) -> None:
    put(store, keyed("a", scope))
    settle(store, begin(store), Succeeded())
    assert put(store, keyed("b", scope)) == [("b", False) if is_free else ("a", True)]


def test_a_key_is_free_again_after_its_seconds(store: Store, clock: FakeClock) -> None:
    put(store, keyed("a", 60.0))
    settle(store, begin(store), Succeeded())
    clock.advance(59)
    assert put(store, keyed("b", 60.0)) == [("a", True)]
    clock.advance(1)
    assert put(store, keyed("b", 60.0)) == [("b", False)]
    clock.advance(59)
    assert put(store, keyed("c", 60.0)) == [("b", True)]


@pytest.mark.parametrize("scope", ["ever", 60.0])
def test_the_key_of_a_deleted_job_stays_taken(store: Store, scope: KeyScope | float) -> None:
    put(store, keyed("a", scope))
    settle(store, begin(store), Succeeded())
    assert removed(store, "a")
    for on_taken in ("keep", "replace", "cancel"):
        assert put(store, keyed("b", scope, on_taken)) == [("a", True)]
    assert store.get("b") is None


def test_a_deleted_job_that_was_queued_frees_its_key(store: Store) -> None:
    put(store, keyed("a"))
    assert removed(store, "a")
    assert put(store, keyed("b")) == [("b", False)]


def test_live_keys_and_others_do_not_meet(store: Store) -> None:
    assert put(store, keyed("a", "live"), keyed("b", "queued"), make_job(id="c", key="l")) == [
        ("a", False),
        ("b", False),
        ("c", False),
    ]
    assert put(store, make_job(id="d", key="k")) == [("a", True)]
    assert put(store, keyed("e", "ever")) == [("b", True)]


@pytest.mark.parametrize("scope", SCOPES)
def test_an_enqueue_that_is_repeated_with_its_id_stores_one_job(store: Store, scope: KeyScope | float) -> None:
    for on_taken in ("keep", "cancel"):
        assert put(store, keyed("a", scope, on_taken)) in ([("a", False)], [("a", True)])
    assert row(store, "a").state is State.READY
    assert kinds(store, "a") == []


def test_plain_jobs_and_jobs_with_rules_are_stored_by_one_call(store: Store) -> None:
    many = [keyed("a", key="y"), make_job(id="b"), keyed("c", key="x"), keyed("d", key="y"), make_job(id="b")]
    assert put(store, *many) == [("a", False), ("b", False), ("c", False), ("a", True), ("b", True)]


# ---------------------------------------------------------------------------------------- replace


@pytest.mark.parametrize("scope", SCOPES)
def test_replace_gives_a_queued_job_new_arguments_and_another_time(
    store: Store, clock: FakeClock, scope: KeyScope | float
) -> None:
    put(store, keyed("a", scope, "replace", payload='{"n":1}', delay_s=10.0))
    clock.advance(5)
    assert put(store, keyed("b", scope, "replace", payload='{"n":2}', delay_s=10.0)) == [("a", True)]
    job = row(store, "a")
    assert (job.payload, job.run_at, job.fence) == ('{"n":2}', clock.wall() + 10, 0)
    [event] = store.journal("a")
    assert (event.kind, event.actor) == ("moved", None)
    assert event.detail == {"key": "k", "arguments": "replaced", "run_at": job.run_at}
    assert claim(store) == []
    clock.advance(10)
    assert [each.payload for each in claim(store)] == ['{"n":2}']


def test_replace_puts_a_job_off_for_wait_max_at_most(store: Store, clock: FakeClock) -> None:
    first = clock.wall()
    put(store, keyed("a", "queued", "replace", 25.0, delay_s=10.0))
    for _ in range(2):
        clock.advance(9)
        assert claim(store) == []
        put(store, keyed("b", "queued", "replace", 25.0, delay_s=10.0))
    assert row(store, "a").run_at == first + 25
    clock.advance(7)
    assert [job.id for job in claim(store)] == ["a"]


def test_replace_without_a_time_keeps_the_place_of_the_job(store: Store, clock: FakeClock) -> None:
    put(store, keyed("a", "queued", "replace"))
    run_at = row(store, "a").run_at
    clock.advance(5)
    put(store, keyed("b", "queued", "replace", payload='{"n":2}'))
    assert (row(store, "a").run_at, row(store, "a").payload) == (run_at, '{"n":2}')


def test_replace_without_a_time_lets_a_later_job_run_now(store: Store, clock: FakeClock) -> None:
    put(store, keyed("a", "queued", "replace", delay_s=60.0))
    clock.advance(5)
    put(store, keyed("b", "queued", "replace"))
    assert [job.id for job in claim(store)] == ["a"]


def test_replace_leaves_a_job_alone_that_was_claimed(store: Store) -> None:
    put(store, keyed("a", "live", "replace", payload='{"n":1}'))
    job = begin(store)
    assert put(store, keyed("b", "live", "replace", payload='{"n":2}')) == [("a", True)]
    settle(store, job, Failed("no luck"))
    assert put(store, keyed("b", "live", "replace", payload='{"n":2}')) == [("a", True)]
    assert row(store, "a").payload == '{"n":1}'


def test_replace_never_gives_a_job_the_arguments_of_another_task(store: Store) -> None:
    put(store, keyed("a", "queued", "replace", payload='{"n":1}'))
    assert put(store, keyed("b", "queued", "replace", task="u", payload='{"n":2}')) == [("a", True)]
    assert row(store, "a").payload == '{"n":1}'


# ----------------------------------------------------------------------------------------- cancel


@pytest.mark.parametrize("scope", SCOPES)
def test_cancel_ends_a_queued_job_and_stores_the_new_one(store: Store, scope: KeyScope | float) -> None:
    put(store, keyed("a", scope, "cancel"))
    assert put(store, keyed("b", scope, "cancel")) == [("b", False)]
    old = row(store, "a")
    assert (old.state, old.error) == (State.CANCELLED, "job b took its key")
    [event] = store.journal("a")
    assert (event.kind, event.actor, event.detail) == ("cancelled", None, {"key": "k", "replaced_by": "b"})
    assert [job.id for job in claim(store)] == ["b"]
    assert {job.id for job in store.find(Filter(key="k"))} == {"a", "b"}


@pytest.mark.parametrize("scope", ["live", "ever", 60.0])
def test_cancel_asks_a_running_job_to_stop_and_passes_its_key_on(store: Store, scope: KeyScope | float) -> None:
    put(store, keyed("a", scope, "cancel"))
    job = begin(store)
    assert put(store, keyed("b", scope, "cancel")) == [("b", False)]
    old = row(store, "a")
    assert (old.state, old.cancel_requested, old.key, old.key_scope) == (State.RUNNING, True, "k", "passed")
    [event] = store.journal("a")
    assert event.detail == {"cancel_requested": True, "key": "k", "replaced_by": "b"}
    assert put(store, keyed("c", scope)) == [("b", True)]
    settle(store, row(store, "a"), Succeeded())
    assert job.id == "a"
    assert put(store, keyed("c", scope)) == [("b", True)]


def test_a_running_job_does_not_lose_its_queued_key_a_second_time(store: Store) -> None:
    put(store, keyed("a", "queued", "cancel"))
    begin(store)
    assert put(store, keyed("b", "queued", "cancel")) == [("b", False)]
    assert not row(store, "a").cancel_requested


@pytest.mark.parametrize("scope", ["ever", 60.0])
def test_cancel_never_stores_a_job_when_the_one_with_the_key_has_ended(store: Store, scope: KeyScope | float) -> None:
    put(store, keyed("a", scope, "cancel"))
    settle(store, begin(store), Succeeded())
    assert put(store, keyed("b", scope, "cancel")) == [("a", True)]
    assert row(store, "a").state is State.DONE


def test_cancel_tells_the_parent_of_a_child(store: Store) -> None:
    put(store, make_job(id="p", workflow=True))
    put(store, keyed("a", "queued", "cancel", parent="p"))
    put(store, keyed("b", "queued", "cancel"))
    assert store.inbox("p").count == 1


@pytest.mark.parametrize("scope", ["queued", "ever", 60.0])
def test_a_cancelled_job_that_is_revived_does_not_take_the_key_back(store: Store, scope: KeyScope | float) -> None:
    put(store, keyed("a", scope, "cancel"))
    put(store, keyed("b", scope, "cancel"))
    assert revive(store, row(store, "a"))
    assert put(store, keyed("c", scope)) == [("b", True)]


def test_a_live_key_that_was_passed_on_does_not_hinder_a_revival(store: Store) -> None:
    put(store, keyed("a", "live", "cancel"))
    job = begin(store)
    put(store, keyed("b", "live", "cancel"))
    assert job.id == "a"
    settle(store, row(store, "a"), Failed("no luck"))
    assert row(store, "a").state is State.CANCELLED
    assert revive(store, row(store, "a"))


# ------------------------------------------------------------------------------------------ house


def purge_all(store: Store, limit: int) -> int:
    after, pages = "", 0
    while (last := store.purge_keys(after, limit)) is not None:
        after, pages = last, pages + 1
    return pages


def test_keys_that_nobody_has_are_purged_page_by_page(store: Store, clock: FakeClock) -> None:
    for number, scope in enumerate(SCOPES * 3):
        put(store, keyed(f"j{number}", scope, key=f"k{number}"))
    assert purge_all(store, 2) == 5
    assert all(put(store, keyed("x", scope, key=f"k{n}"))[0].existed for n, scope in enumerate(SCOPES * 3))
    clock.advance(60)
    for job in claim(store, limit=100):
        settle(store, job, Succeeded())
    assert purge_all(store, 100) == 1
    assert purge_all(store, 1) == 3  # those that are taken for ever
    assert put(store, keyed("x", "ever", key="k2")) == [("j2", True)]


def test_a_key_is_kept_whose_job_is_queued(store: Store) -> None:
    put(store, keyed("a"))
    assert purge_all(store, 10) == 1
    assert put(store, keyed("b")) == [("a", True)]
    moved: list[Job] = claim(store)
    assert [job.id for job in moved] == ["a"]
    purge_all(store, 10)
    assert purge_all(store, 10) == 0
