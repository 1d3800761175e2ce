"""What a claim costs behind jobs that may not start: as much behind thousands of them as behind a few.

tests/stores/test_postgres_plans.py asks the same of PostgreSQL.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.core.limits import setting
from holdfast.core.verdict import Succeeded
from holdfast.stores.protocol import Store
from holdfast.stores.redis.store import RedisStore
from holdfast.stores.sqlite.connection import Connections
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing import FakeClock
from tests.factory import add, claim, enrol, make_job, settle
from tests.servers import RedisServer

FEW, MANY = 100, 4000
Work = Callable[[], int]


@pytest.fixture
def sqlite(tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Store, Work]]:
    """A store, and how many hundreds of steps its virtual machine has made so far."""
    steps = [0]
    borrow = Connections._borrow

    def counting(connections: Connections, kind: type[sqlite3.Connection] = sqlite3.Connection) -> sqlite3.Connection:
        connection = borrow(connections, kind)

        def note() -> int:
            steps[0] += 1
            return 0

        connection.set_progress_handler(note, 100)
        return connection

    monkeypatch.setattr(Connections, "_borrow", counting)
    with contextlib.closing(SqliteStore(f"sqlite:///{tmp_path}/jobs.db?synchronous=normal", clock=clock)) as store:
        yield store, lambda: steps[0]


@pytest.fixture
def redis_calls(redis: str, redis_server: RedisServer, clock: FakeClock) -> Iterator[tuple[Store, Work]]:
    """A store, and how many commands its server has carried out so far, those of scripts included."""

    def calls() -> int:
        with contextlib.closing(redis_server.client()) as client:
            return sum(each["calls"] for each in client.info("commandstats").values())

    with contextlib.closing(RedisStore(redis, clock=clock)) as store:
        yield store, calls


@pytest.mark.parametrize("kind", ["sqlite", "redis_calls"])
@pytest.mark.parametrize("why", ["full", "paused", "later", "rate"])
def test_a_job_starts_as_cheaply_behind_thousands_that_may_not(
    request: pytest.FixtureRequest, clock: FakeClock, kind: str, why: str
) -> None:
    store, work = request.getfixturevalue(kind)
    store.migrate()
    costs = []
    for many in (FEW, MANY):
        queue = f"{why}-{many}"
        store.limit(queue, setting(rate="1/1h") if why == "rate" else setting(group_limit=1))
        delay_s = 3600.0 if why == "later" else 0.0
        for _ in range(many // FEW):
            store.add([make_job(queue=queue, group="a", delay_s=delay_s) for _ in range(FEW)])
        worker = enrol(store)
        if why in ("full", "rate"):
            assert len(claim(store, worker, queues=[queue], limit=5)) == 1
        if why == "paused":
            store.pause(queue, True, group="a")
        open_queue = "open" if why == "rate" else queue
        for _ in range(3):  # the last one: everything has been looked up before
            job = add(store, queue=open_queue, group="b")
            before = work()
            [claimed] = claim(store, worker, queues=[queue, "open"], limit=5)
            cost = work() - before
            assert claimed.id == job.id
            settle(store, claimed, Succeeded())
        costs.append(cost)
        store.retire(worker, "the test is over")
    few, much = costs
    assert few > 0
    assert much <= few * 1.5 + 10, costs
