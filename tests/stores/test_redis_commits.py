"""Commits of the Redis store compare what a verb has read with what is there by then, and indexes with rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from holdfast.core import acts
from holdfast.core.acts import Move
from holdfast.core.machine import State
from holdfast.core.records import Filter, Pulse
from holdfast.core.verdict import Lost, Succeeded
from holdfast.errors import DutyLost
from holdfast.stores.protocol import Reply
from holdfast.stores.redis import store as module
from holdfast.stores.redis.store import RedisStore
from holdfast.stores.redis.work import Work
from holdfast.testing import FakeClock
from tests.factory import add, claim, enrol, make_job, row, settle, start
from tests.servers import RedisServer


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(redis: str, clock: FakeClock) -> Iterator[RedisStore]:
    with closing(RedisStore(redis, clock=clock)) as store:
        store.migrate()
        yield store
        store._liveness.close()


def between(monkeypatch: pytest.MonkeyPatch, act: Callable[[], Any]) -> None:
    """Act once, after the next verb has read and decided, and before it commits."""
    commit, acted = Work.commit, []

    def late(work: Work, **given: Any) -> None:
        if not acted:
            acted.append(True)
            act()
        commit(work, **given)

    monkeypatch.setattr(Work, "commit", late)


def test_of_two_settlements_at_the_same_moment_one_is_accepted(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = start(store, enrol(store))
    answers: list[Reply] = []
    between(monkeypatch, lambda: answers.append(settle(store, job, Succeeded("1"))))
    answers.append(settle(store, job, Lost("vanished", "its process is gone")))
    assert answers == [Reply.ACCEPTED, Reply.ALREADY]
    assert row(store, job.id).result == "1"


def test_a_job_that_a_person_cancels_while_it_is_moved_is_moved_once(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = add(store)
    cancel = Move(job.seen, acts.cancel(job, actor="ann"))
    answers: list[Reply] = []
    between(monkeypatch, lambda: answers.extend(store.move([cancel])))
    answers += store.move([cancel])
    assert answers == [Reply.ACCEPTED, Reply.REFUSED]
    assert len(store.journal(job.id, ["cancelled"])) == 1


def test_a_beat_between_the_look_of_a_reaper_and_its_commit_saves_the_job(
    store: RedisStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = enrol(store)
    start(store, worker)
    clock.advance(31)
    [late] = store.overdue()
    between(monkeypatch, lambda: store.beat(worker, [Pulse(late.lease, late.lease_s)]))
    assert settle(store, late, Lost("expired", "its lease ran out"), seen_lease=True) is Reply.REFUSED
    assert row(store, late.id).state is State.RUNNING


def test_a_commit_first_finishes_what_a_torn_script_has_left(store: RedisStore, redis_server: RedisServer) -> None:
    left = module.rows.packed([[["SADD", "alive", "late"]], []])
    with closing(redis_server.client()) as client:
        client.set("{holdfast}:torn", left)
        store.ping()
        assert client.sismember("{holdfast}:alive", "late")
        assert client.get("{holdfast}:torn") is None


def test_an_entry_of_a_lane_that_the_row_contradicts_is_passed_over(
    store: RedisStore, clock: FakeClock, redis_server: RedisServer
) -> None:
    worker = enrol(store)
    taken, moved = start(store, worker), add(store, run_at=store.now().wall + 60)
    [lane] = [f"{{holdfast}}:l:default\0{0}\0\0t\0a"]
    with closing(redis_server.client()) as client:
        client.zadd(lane, {f"{1:016d}{taken.id}": taken.run_at, f"{2:016d}{moved.id}": 0})
        add(store, id="good")
        found = claim(store, worker)
        assert [job.id for job in found] == ["good"]
        assert row(store, taken.id).fence == 1
        assert store.check() == [
            f"job {moved.id} is not in the index 'l:default 0  t a' as its row says",
        ]


def test_a_purge_of_an_old_term_that_passes_the_first_look_deletes_nothing(
    store: RedisStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = start(store, enrol(store))
    settle(store, job, Succeeded("1"))
    duty = store.acquire("purge", "a", 10)
    read = store._db.ask

    def ask(*commands: Any) -> list[Any]:
        if commands[0][:2] == ("ZRANGE", "e:done"):
            clock.advance(11)
            assert store.acquire("purge", "b", 10) is not None
        return read(*commands)

    monkeypatch.setattr(store._db, "ask", ask)
    with pytest.raises(DutyLost):
        store.purge([State.DONE], 1e12, under=duty)
    monkeypatch.undo()
    assert row(store, job.id).state is State.DONE


def test_an_add_of_an_id_that_another_program_has_just_added_stores_nothing(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = make_job(id="same")
    between(monkeypatch, lambda: store.add([new]))
    [added] = store.add([new])
    assert added.existed
    assert len(store.find(Filter())) == 1
