"""How much one script of the Redis store does: the server does nothing else meanwhile, so each is short.

The tests count commands, which no other program on the machine can change. `bench/redis_ping.py` measures the time that
another client waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from holdfast import App, Task
from holdfast.core import acts
from holdfast.core.acts import Move
from holdfast.core.audit import line
from holdfast.core.batches import Batch
from holdfast.core.limits import Setting
from holdfast.core.machine import State
from holdfast.core.published import PublishedTask
from holdfast.core.records import Filter, Job, NewJob, Pulse, Schedule
from holdfast.core.verdict import Failed, Lost, Succeeded
from holdfast.errors import UsageError
from holdfast.stores.redis.store import RedisStore
from holdfast.stores.redis.work import AT_ONCE, ONE_PIECE_MAX
from holdfast.testing import FakeClock
from tests.factory import a_record, a_step, claim, enrol, make_job, settlement
from tests.servers import RedisServer

NUMBER = 220
COMMANDS_EACH = 25  # for a job, with its history and its entries in indexes
COMMANDS_MOST = COMMANDS_EACH * AT_ONCE


@pytest.fixture
def app(redis: str) -> Iterator[App]:
    with App(redis, clock=FakeClock()) as app:
        yield app


@pytest.fixture
def store(redis: str) -> Iterator[RedisStore]:
    with closing(RedisStore(redis, clock=FakeClock())) as store:
        store.migrate()
        yield store


@contextmanager
def counted(server: RedisServer) -> Iterator[list[int]]:
    """Count the commands of each script that runs meanwhile."""
    scripts: list[int] = []
    with closing(server.client()) as client, closing(server.client()) as own, client.monitor() as monitor:
        yield scripts
        own.echo("the end")
        for seen in monitor.listen():
            name = seen["command"].partition(" ")[0].upper()
            if name in ("EVALSHA", "EVAL"):
                scripts.append(0)
            elif seen["client_type"] == "lua":
                scripts[-1] += 1
            elif name == "ECHO":
                return


def jobs(number: int, **given: object) -> list[NewJob]:
    return [make_job(id=f"j{each:04}", **given) for each in range(number)]


def running(store: RedisStore, number: int) -> list[Job]:
    enrol(store, id="w")
    store.add(jobs(number))
    return claim(store, "w", limit=number)


def test_a_call_of_seven_hundred_jobs_is_one_piece_and_a_larger_one_is_refused_with_the_number(
    store: RedisStore, redis_server: RedisServer
) -> None:
    with pytest.raises(UsageError, match="one call stores 701 jobs, and on Redis at most 700"):
        store.add(jobs(701))
    assert store.counts() == {}
    with counted(redis_server) as scripts:
        assert len(store.add(jobs(700))) == 700
    assert len([each for each in scripts if each > 1]) == 1  # the server may not have known it yet
    assert store.counts() == {"default": {State.READY: 700}}


def test_a_larger_call_of_a_batch_is_refused_with_the_number(store: RedisStore) -> None:
    store.batches.open(Batch(id="b", abandon_s=60))
    with pytest.raises(UsageError, match="one call adds to a batch 701 jobs, and on Redis at most 700"):
        store.batches.add("b", jobs(701))
    assert store.batches.counts("b") == {}
    assert store.batches.add("b", jobs(700)) is not None


def test_a_larger_record_is_refused_with_the_number_and_changes_nothing(store: RedisStore) -> None:
    enrol(store, id="w")
    store.add([make_job(id="flow", workflow=True)])
    [flow] = store.claim("w", "c-1", ["default"], ["t"], 1)
    with pytest.raises(UsageError, match="one step of a workflow writes 701 rows, and on Redis at most 700"):
        store.record([a_record(flow, a_step(), jobs=jobs(700, parent="flow"))])
    assert store.steps("flow") == []
    store.record([a_record(flow, a_step(), jobs=jobs(699, parent="flow"))])
    assert len(store.steps("flow")) == 1


def test_more_paused_groups_than_a_claim_can_read_are_refused_with_the_number(store: RedisStore) -> None:
    def pause(number: int) -> None:
        store.pause("default", True, group=f"g{number}")

    for number in range(ONE_PIECE_MAX):
        pause(number)
    with pytest.raises(UsageError, match="queue default has 701 paused groups, and on Redis at most 700"):
        pause(ONE_PIECE_MAX)
    store.limit("default", Setting(limit=3))
    store.pause("default", False, group="g1")
    pause(ONE_PIECE_MAX)


def test_enqueue_many_and_a_batch_store_fifty_at_once(app: App, redis_server: RedisServer) -> None:
    task: Task[[int], None] = app.task(name="t")(lambda n: None)
    with counted(redis_server) as scripts:
        assert len(app.enqueue_many([task.job(number) for number in range(220)])) == 220
    assert len([each for each in scripts if each > AT_ONCE]) == 5
    assert max(scripts) < COMMANDS_MOST
    with counted(redis_server) as scripts, app.batch() as batch:
        batch.add(*(task.job(number) for number in range(220)))
    assert max(scripts) < COMMANDS_MOST
    assert batch.added == 220


def _claimed(store: RedisStore) -> Callable[[], Any]:
    enrol(store, id="w")
    store.add(jobs(NUMBER))
    return lambda: claim(store, "w", limit=NUMBER)


def _claimed_by_turns(store: RedisStore) -> Callable[[], Any]:
    enrol(store, id="w")
    store.limit("default", Setting(limit=NUMBER, group_limit=1))
    store.add([make_job(group=f"g{number}") for number in range(NUMBER)])
    return lambda: claim(store, "w", limit=NUMBER)


def _settled(store: RedisStore) -> Callable[[], Any]:
    found = running(store, NUMBER)
    return lambda: store.settle([settlement(job, Succeeded("7")) for job in found])


def _failed(store: RedisStore) -> Callable[[], Any]:
    found = running(store, NUMBER)
    return lambda: store.settle([settlement(job, Failed("ValueError: no")) for job in found])


def _reaped(store: RedisStore) -> Callable[[], Any]:
    found = running(store, NUMBER)
    lost = Lost("expired", "its lease ran out")
    return lambda: store.settle([settlement(job, lost, seen_lease=True) for job in found])


def _beaten(store: RedisStore) -> Callable[[], Any]:
    found = running(store, NUMBER)
    return lambda: store.beat("w", [Pulse(job.lease, job.lease_s, note="half") for job in found])


def _cancelled(store: RedisStore) -> Callable[[], Any]:
    store.add(jobs(NUMBER, tags='["a"]'))
    found = store.find(Filter(limit=NUMBER))
    return lambda: store.move([Move(job.seen, acts.cancel(job, actor="ann")) for job in found])


def _ended(store: RedisStore) -> list[Job]:
    store.settle([settlement(job, Succeeded("7")) for job in running(store, NUMBER)])
    return store.find(Filter(limit=NUMBER))


def _purged(store: RedisStore) -> Callable[[], Any]:
    _ended(store)
    return lambda: store.purge([State.DONE], 1e12)


def _deleted(store: RedisStore) -> Callable[[], Any]:
    seen = [job.seen for job in _ended(store)]
    return lambda: store.delete(seen, line("deleted", "ann", None))


def _limited(store: RedisStore) -> Callable[[], Any]:
    running(store, NUMBER)
    return lambda: store.limit("default", Setting(limit=2, group_limit=1))


def _retired(store: RedisStore) -> Callable[[], Any]:
    running(store, NUMBER)
    return lambda: store.retire("w", "the test ends it")


def _declared(store: RedisStore) -> Callable[[], Any]:
    new = [Schedule(key=f"s{each}", spec="* * * * *", tz="UTC", job=make_job()) for each in range(NUMBER)]
    return lambda: [store.declare(new), store.schedule(new)]


def _published(store: RedisStore) -> Callable[[], Any]:
    new = [PublishedTask(job=make_job(task=f"t{each}")) for each in range(NUMBER)]
    return lambda: store.publish(new)


def _checked(store: RedisStore) -> Callable[[], Any]:
    running(store, NUMBER)
    return store.check


PLAYS = (_claimed, _claimed_by_turns, _settled, _failed, _reaped, _beaten, _cancelled, _purged, _deleted, _limited)
PLAYS += (_retired, _declared, _published, _checked)


@pytest.mark.parametrize("play", PLAYS, ids=lambda play: play.__name__[1:])
def test_no_script_keeps_the_server_from_others_for_long(
    play: Callable[[RedisStore], Callable[[], Any]], store: RedisStore, redis_server: RedisServer
) -> None:
    act = play(store)
    with counted(redis_server) as scripts:
        act()
    assert scripts
    assert max(scripts) <= COMMANDS_MOST


def clock(store: RedisStore) -> FakeClock:
    assert isinstance(store._clock, FakeClock)
    return store._clock


def test_a_claim_looks_at_few_expired_jobs_at_once_and_at_each_only_once(
    store: RedisStore, redis_server: RedisServer
) -> None:
    enrol(store, id="w")
    for number in range(7):
        store.add(jobs(700, expires_s=10.0) if number == 0 else [make_job(expires_s=10.0) for _ in range(700)])
    store.add([make_job(id="fresh")])
    clock(store).advance(10)
    with counted(redis_server) as scripts:
        found = claim(store, "w")
        found = found or claim(store, "w")
    assert [job.id for job in found] == ["fresh"]
    assert max(scripts) <= COMMANDS_MOST
    with counted(redis_server) as scripts:
        assert claim(store, "w") == []
    assert sum(scripts) < AT_ONCE
    assert len(store.expired(5000)) == 4900
    assert store.check() == []


def test_a_claim_looks_at_few_jobs_without_a_row_at_once(store: RedisStore, redis_server: RedisServer) -> None:
    enrol(store, id="w")
    for part in range(3):
        store.add([make_job(id=f"evicted{part}-{number}") for number in range(700)])
    store.add([make_job(id="fresh")])
    with closing(redis_server.client()) as client:
        client.delete(*client.keys("{holdfast}:j:evicted*"))
    with counted(redis_server) as scripts:
        found = claim(store, "w")
        found = found or claim(store, "w")
    assert [job.id for job in found] == ["fresh"]
    assert max(scripts) <= COMMANDS_MOST


def test_a_job_that_was_passed_by_is_claimed_when_the_clock_was_set_back(store: RedisStore) -> None:
    store.add([make_job(id="a", expires_s=10.0)])
    clock(store).advance(60)
    assert claim(store) == []
    clock(store).set_wall(clock(store).wall() - 55)
    assert [job.id for job in [*claim(store), *claim(store)]] == ["a"]
    assert store.check() == []
