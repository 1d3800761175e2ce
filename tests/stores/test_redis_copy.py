"""A copy from Redis, of which single rows are gone: no page ends too early, so nothing is left out in silence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from holdfast.acts.copy import PAGE, copy_store
from holdfast.core.batches import Batch
from holdfast.core.machine import State
from holdfast.core.records import Filter
from holdfast.errors import StoreDamaged
from holdfast.stores import open_store
from holdfast.stores.copying import TABLES, Row
from holdfast.stores.redis.copying import RedisTables
from holdfast.stores.redis.store import RedisStore
from holdfast.testing import FakeClock
from tests.factory import a_signal, make_job, start_flow
from tests.servers import RedisServer
from tests.stores.conftest import Places

TABLE = {table.name: table for table in TABLES}


@contextmanager
def filled(redis: str, redis_server: RedisServer) -> Iterator[tuple[RedisStore, Any]]:
    """A store with more jobs than a page has."""
    with closing(RedisStore(redis, clock=FakeClock())) as store, closing(redis_server.client()) as client:
        store.migrate()
        store.add([make_job(id=f"j{number:04}") for number in range(PAGE + 20)])
        yield store, client


def paged(tables: RedisTables, name: str, limit: int) -> list[Row]:
    """Read a table as a copy does: fewer rows than asked for are the last ones."""
    found: list[Row] = []
    while True:
        page = tables.rows(TABLE[name], TABLE[name].key_of(found[-1]) if found else None, None, limit)
        found += page
        if len(page) < limit:
            return found


def test_a_job_that_has_lost_its_row_stops_the_copy_with_its_name(
    redis: str, redis_server: RedisServer, place: Places
) -> None:
    with filled(redis, redis_server) as (_, client):
        client.delete("{holdfast}:j:j0007")
        with pytest.raises(StoreDamaged, match="job j0007 has lost its row, so it cannot be copied; holdfast db check"):
            copy_store(redis, place("sqlite-2"), "ann")


def test_a_job_in_the_sets_of_two_states_is_copied_once_and_those_after_it_are_too(
    redis: str, redis_server: RedisServer, place: Places
) -> None:
    with filled(redis, redis_server) as (_, client):
        for number in (3, 4, PAGE):
            score = client.zscore("{holdfast}:x:default\0t\0ready", f"j{number:04}")
            client.zadd("{holdfast}:x:default\0t\0dead", {f"j{number:04}": score})
        copy_store(redis, place("sqlite-2"), "ann")
        with closing(open_store(place("sqlite-2"))) as copy:
            assert len(copy.find(Filter(states=(State.READY,), limit=1000))) == PAGE + 20


def test_a_job_that_is_deleted_while_its_page_is_read_ends_no_page(
    redis: str, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with filled(redis, redis_server) as (store, client):
        jobs: Any = store.tables._parts["job"]
        members = jobs.members

        def members_then_delete(*args: Any) -> Any:
            found = members(*args)
            if client.delete("{holdfast}:j:j0007"):
                client.zrem("{holdfast}:x:default\0t\0ready", "j0007")
            return found

        monkeypatch.setattr(jobs, "members", members_then_delete)
        assert len(paged(store.tables, "job", PAGE)) == PAGE + 19


def test_a_signal_that_is_deleted_meanwhile_ends_no_page(redis: str, redis_server: RedisServer) -> None:
    with closing(RedisStore(redis, clock=FakeClock())) as store, closing(redis_server.client()) as client:
        store.migrate()
        flow = start_flow(store)
        for number in range(6):
            store.signal(a_signal(flow, f"n{number}"))
        first = store.tables.rows(TABLE["signal"], None, None, 1)
        gone = store.tables.rows(TABLE["signal"], TABLE["signal"].key_of(first[0]), None, 1)
        client.hdel(f"{{holdfast}}:sg:{flow.id}", gone[0]["id"])
        signals = store.tables.rows(TABLE["signal"], TABLE["signal"].key_of(first[0]), None, 3)
        assert [row["name"] for row in signals] == ["n2", "n3", "n4"]


def test_a_batch_of_which_only_the_name_is_left_ends_no_page(redis: str, redis_server: RedisServer) -> None:
    with closing(RedisStore(redis, clock=FakeClock())) as store, closing(redis_server.client()) as client:
        store.migrate()
        for number in range(6):
            store.batches.open(Batch(id=f"b{number}", abandon_s=60))
        client.hdel("{holdfast}:batches", "b1")
        assert [row["id"] for row in paged(store.tables, "batch", 3)] == ["b0", "b2", "b3", "b4", "b5"]
