"""Scripts of the Redis store that fail in the middle: each write of each script fails once, then the verb is repeated.

Redis does not undo what a failed script has written. The next script finishes it, so the repeated verb leaves the store
as one that never failed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import closing
from hashlib import sha1
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core import acts
from holdfast.core.acts import Move
from holdfast.core.limits import Setting
from holdfast.core.machine import State
from holdfast.core.records import Filter, Job, Pulse, Signal
from holdfast.core.verdict import Failed, Lost, Succeeded
from holdfast.errors import OutcomeUnknown
from holdfast.stores.redis import connection
from holdfast.stores.redis.connection import Script
from holdfast.stores.redis.store import RedisStore
from holdfast.testing import FakeClock
from tests.factory import a_record, a_step, add, claim, enrol, make_job, picture, settle
from tests.servers import RedisServer

FAILING = """
local writes, reads = 0, {GET = 1, HGET = 1, ZRANGE = 1, ZSCORE = 1, ZCARD = 1, SCARD = 1, SISMEMBER = 1, LLEN = 1,
  LRANGE = 1, SMEMBERS = 1, EXISTS = 1, TIME = 1}
local function failing(name, ...)
  if not reads[name] then
    writes = writes + 1
    if writes == NUMBER then error('torn') end
  end
  return redis.call(name, ...)
end
local P, Z, call = KEYS[1], '\\0', failing
"""
BEGINS = "local P, Z, call = KEYS[1], '\\0', redis.call\n"


def failing_at(number: int) -> dict[str, Script]:
    """Return the scripts, in each of which the write with this number fails."""
    torn = dict(connection.SCRIPTS)
    for name in ("commit", "commit_more", "claim"):
        text = torn[name].text
        assert BEGINS in text
        text = text.replace(BEGINS, re.sub("NUMBER", str(number), FAILING))
        torn[name] = Script(text, sha1(text.encode()).hexdigest())
    return torn


def _added(store: RedisStore, given: Any) -> None:
    store.add([make_job(id=f"n{number}", group="g", tags='["a"]', key=f"k{number}") for number in range(2)])


def _claimed(store: RedisStore, given: Any) -> None:
    """Repeated after it failed, a claim gives what it had begun to give; the next one gives the rest."""
    for claim_id in ("c-1", "c-2"):
        taken = store.claim("w", claim_id, ["default", "limited"], ["t"], 3, 2)
        assert {job.id for job in taken} == {job.id for job in store.find(Filter()) if job.claim_id == claim_id}


def _settled(store: RedisStore, given: Any) -> None:
    settle(store, given, Succeeded("7"))


def _failed(store: RedisStore, given: Any) -> None:
    settle(store, given, Failed("ValueError: no"))


def _lost(store: RedisStore, given: Any) -> None:
    settle(store, given, Lost("vanished", "its process is gone"))


def _beaten(store: RedisStore, given: Any) -> None:
    store.beat("w", [Pulse(given.lease, given.lease_s, progress=0.5, note="half")])


def _recorded(store: RedisStore, given: Any) -> None:
    store.record([a_record(given, a_step(), jobs=[make_job(id="child", parent=given.id)])])


def _signalled(store: RedisStore, given: Any) -> None:
    store.signal(Signal(id="s1", job_id=given.id, name="go", value="1"))


def _moved(store: RedisStore, given: Any) -> None:
    store.move([Move(given.seen, acts.cancel(given, actor="ann"))])


def _purged(store: RedisStore, given: Any) -> None:
    store.purge([State.DONE], 1e12)


def _limited(store: RedisStore, given: Any) -> None:
    store.limit("limited", Setting(limit=2), declared=True)


def _retired(store: RedisStore, given: Any) -> None:
    store.retire("w", "the test ends it")


def _nothing(store: RedisStore) -> None:
    return None


def _a_few(store: RedisStore) -> None:
    store.limit("limited", Setting(limit=1), declared=True)
    for number in range(2):
        add(store, id=f"a{number}", expires_s=1e6)
        add(store, id=f"b{number}", queue="limited", group=f"g{number}")


def _started(store: RedisStore, **given: Any) -> Job:
    add(store, id="r1", **given)
    [job] = store.claim("w", "c-0", ["default"], ["t"], 1)
    return job


def _running(store: RedisStore) -> Job:
    return _started(store, key="k", group="g")


def _running_flow(store: RedisStore) -> Job:
    return _started(store, workflow=True)


def _ready(store: RedisStore) -> Job:
    return add(store, id="r1", key="k", group="g")


def _done(store: RedisStore) -> None:
    settle(store, _started(store, key="k", group="g"), Succeeded("7"))


PLAYS: dict[str, tuple[Callable[[RedisStore], Any], Callable[[RedisStore, Any], None]]] = {
    "add": (_nothing, _added),
    "claim": (_a_few, _claimed),
    "settle": (_running, _settled),
    "settle, failed": (_running, _failed),
    "settle, lost": (_running, _lost),
    "beat": (_running, _beaten),
    "record": (_running_flow, _recorded),
    "signal": (_running_flow, _signalled),
    "move": (_ready, _moved),
    "purge": (_done, _purged),
    "limit": (_nothing, _limited),
    "retire": (_running, _retired),
}


@pytest.mark.parametrize("verb", PLAYS)
def test_a_script_that_fails_in_the_middle_is_finished_by_the_next(
    verb: str, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare, act = PLAYS[verb]

    def play(number: int | None) -> tuple[Any, bool]:
        """Return what is stored in the end, and whether a write failed."""
        with closing(redis_server.client()) as client:
            client.flushall()
        clock, torn = FakeClock(), False
        with closing(RedisStore(redis_server.url, clock=clock)) as store:
            store.migrate()
            enrol(store, id="w")
            given = prepare(store)
            if number is not None:
                with monkeypatch.context() as patched:
                    patched.setattr(connection, "SCRIPTS", failing_at(number))
                    try:
                        act(store, given)
                    except OutcomeUnknown as error:
                        assert "failed in the middle" in str(error)  # noqa: PT017 - it need not fail
                        torn = True
            if number is None or torn:
                act(store, given)
            store.ping()
            assert store.check() == []
            jobs, flows, journal, counts, workers, paused = picture(store)
            jobs = [replace(job, claim_id=None) for job in jobs]
            workers = [replace(worker, beats=0) for worker in workers]  # a repeated beat counts once more
            found = jobs, flows, journal, counts, workers, paused, store.places("limited"), store.figures.counters()
            store.retire("w", "the test is over")
        return found, torn

    wanted, _ = play(None)
    number = 1
    while True:
        found, torn = play(number)
        assert found == wanted, f"write {number} failed"
        if not torn:
            break
        number += 1
    assert number > 2


def test_a_value_of_another_program_stops_nobody_and_is_named(redis_server: RedisServer, redis: str) -> None:
    with closing(RedisStore(redis)) as store, closing(redis_server.client()) as client:
        store.migrate()
        enrol(store, id="w")
        store.add([make_job(id="a"), make_job(id="b")])
        client.set("{holdfast}:h:a", "not a list")
        a = store.get("a")
        assert a is not None
        cancel = Move(a.seen, acts.cancel(a, actor="ann"))
        store.move([cancel])
        assert [job.id for job in claim(store, "w")] == ["b"]
        assert store.counts() == {"default": {State.CANCELLED: 1, State.RUNNING: 1}}
        wrong = store.check()
        assert any("a write failed, 1 times: 'RPUSH h:a: WRONGTYPE" in each for each in wrong)
        assert any("key '{holdfast}:h:a' is a string and must be a list" in each for each in wrong)
        store.retire("w", "the test is over")
