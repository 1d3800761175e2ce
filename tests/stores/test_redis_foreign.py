"""Keys of the Redis store that have the value of another program: they stop nobody else, and `check` names them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from holdfast.core.batches import Batch
from holdfast.core.limits import Setting
from holdfast.core.machine import State
from holdfast.core.records import Filter
from holdfast.core.verdict import Failed, Lost, Succeeded
from holdfast.errors import StoreDamaged
from holdfast.stores.protocol import Reply
from holdfast.stores.redis.check import TYPES
from holdfast.stores.redis.connection import VITAL
from holdfast.stores.redis.store import RedisStore
from holdfast.testing import FakeClock
from tests.factory import a_record, a_signal, a_step, add, claim, enrol, make_job, settle
from tests.servers import RedisServer


def scene(store: RedisStore) -> None:
    """Store jobs in every state, with whatever a job may have, in the queue `spoiled`, which has limits."""
    spoiled = {"queue": "spoiled"}
    store.limit("spoiled", Setting(limit=100, group_limit=50))
    enrol(store, id="w")
    for number in range(4):
        add(store, id=f"s{number}", group="a", key=f"k{number}", expires_s=1e6, **spoiled)
    add(store, id="plain", priority=3, tags='["x"]', **spoiled)
    add(store, id="flow", workflow=True, priority=9, **spoiled)
    store.batches.open(Batch(id="batch", abandon_s=60))
    store.batches.add("batch", [make_job(id="of-batch", **spoiled)])
    [flow] = claim(store, "w", queues=["spoiled"], limit=1)
    store.record([a_record(flow, a_step())])
    store.signal(a_signal(flow))
    done, failed, runs = claim(store, "w", queues=["spoiled"], limit=3)
    settle(store, done, Succeeded("7"))
    settle(store, failed, Failed("ValueError: no"))
    assert runs.state is State.RUNNING


def spoil(client: Any, name: str) -> None:
    key = f"{{holdfast}}:{name}"
    client.delete(key)
    if TYPES[name.partition(":")[0]] == "string":
        client.rpush(key, "of another program")
    else:
        client.set(key, "of another program")


def names(client: Any) -> list[str]:
    return sorted(key.decode().removeprefix("{holdfast}:") for key in client.keys("{holdfast}:*"))


def test_a_value_of_another_program_stops_no_other_job_and_no_reaper_and_is_named(
    redis: str, redis_server: RedisServer
) -> None:
    tried = set[str]()
    while True:
        clock = FakeClock()
        with closing(RedisStore(redis, clock=clock)) as store, closing(redis_server.client()) as client:
            client.flushall()
            store.migrate()
            scene(store)
            left = [name for name in names(client) if name not in tried and name not in VITAL]
            if not left:
                break
            tried.add(left[0])
            spoil(client, left[0])
            shown = f"key '{{holdfast}}:{left[0]}' is a".replace("\0", " ")
            assert any(each.startswith(shown) for each in store.check())
            a, b = add(store, id="a", queue="other", task="other"), add(store, id="b", queue="other", task="other")
            enrol(store, id="dies")
            taken = store.claim("dies", "c", ["spoiled", "other"], ["t", "other"], 20)
            found = {job.id: job for job in taken}
            assert settle(store, found[a.id], Succeeded("7")) is Reply.ACCEPTED
            clock.advance(31)
            late = {job.id: job for job in store.overdue()}
            assert settle(store, late[b.id], Lost("expired", "its lease ran out"), seen_lease=True) is Reply.ACCEPTED
            [again] = claim(store, "dies", queues=["spoiled", "other"], tasks=["other"])
            assert again.id == b.id
            counts = store.counts()
            assert counts["other"] == {State.RUNNING: 1, State.DONE: 1}
            assert "a" in {job.id for job in store.find(Filter())}
            assert {worker.id for worker in store.workers()} == {"w", "dies"}
            store._liveness.close()
    assert len(tried) > 40


@pytest.mark.parametrize(
    ("name", "act"),
    [
        ("meta", lambda store: store.counts()),
        ("leases", lambda store: store.claim("w", "c", ["spoiled"], ["t"], 1)),
        ("alive", lambda store: store.claim("w", "c", ["spoiled"], ["t"], 1)),
        ("set", lambda store: store.claim("w", "c", ["spoiled"], ["t"], 1)),
        ("pairs", lambda store: store.counts()),
        ("enrolled", lambda store: store.workers()),
        ("workers", lambda store: store.workers()),
        ("queues", lambda store: store.queues()),
    ],
)
def test_a_value_of_another_program_where_everything_depends_on_it_is_an_error_and_is_named(
    name: str, act: Callable[[RedisStore], object], redis: str, redis_server: RedisServer
) -> None:
    assert name in VITAL
    with closing(RedisStore(redis, clock=FakeClock())) as store, closing(redis_server.client()) as client:
        store.migrate()
        scene(store)
        spoil(client, name)
        with pytest.raises(StoreDamaged, match="a key of the store has a value of another program"):
            act(store)
        [wrong] = store.check()
        assert wrong.startswith(f"key '{{holdfast}}:{name}' is a string and must be")
        store._liveness.close()


def test_a_queue_with_a_limit_starts_nothing_while_nobody_knows_what_runs(
    redis: str, redis_server: RedisServer
) -> None:
    with closing(RedisStore(redis, clock=FakeClock())) as store, closing(redis_server.client()) as client:
        store.migrate()
        scene(store)
        spoil(client, "x:spoiled\0t\0running")
        assert claim(store, "w", queues=["spoiled"]) == []
        assert store.counts()["spoiled"][State.READY] > 0
        store._liveness.close()


def test_a_write_that_is_left_out_is_so_although_it_cannot_be_named(redis: str, redis_server: RedisServer) -> None:
    with closing(RedisStore(redis, clock=FakeClock())) as store, closing(redis_server.client()) as client:
        store.migrate()
        enrol(store, id="w")
        add(store, id="a")
        spoil(client, "bad")
        spoil(client, "d:default")
        add(store, id="b")
        assert {job.id for job in claim(store, "w")} | {job.id for job in claim(store, "w")} == {"a", "b"}
        assert "key '{holdfast}:bad' is a string and must be a hash" in "\n".join(store.check())
        store._liveness.close()


def test_rows_and_keys_that_are_not_those_of_holdfast_are_named(redis: str, redis_server: RedisServer) -> None:
    with closing(RedisStore(redis, clock=FakeClock())) as store, closing(redis_server.client()) as client:
        store.migrate()
        add(store, id="a")
        assert store.check() == []
        client.set("{holdfast}:j:a", "garbage")
        client.set("{holdfast}:theirs", "1")
        assert sorted(store.check()) == [
            "key '{holdfast}:theirs' is not one of Holdfast's: another program uses the same prefix",
            "the row of job a cannot be read",
        ]
