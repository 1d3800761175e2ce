"""Tags and metadata: kept on the row, whatever way the job was stored, and asked for by find."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from holdfast.core.labels import meta_text, tags_text
from holdfast.core.machine import State
from holdfast.core.records import Filter, Firing, KeyRule, NewJob, Schedule
from holdfast.core.verdict import Succeeded
from holdfast.stores.protocol import Store
from holdfast.testing import FakeClock
from tests.factory import add, again, make_job, row, settle


def labelled(tags: list[str] | None = None, meta: dict[str, str] | None = None, **given: object) -> NewJob:
    return make_job(tags=tags_text(tags or []), meta=meta_text(meta or {}), **given)


def found(store: Store, *tags: str, **meta: str) -> list[str]:
    return [job.id for job in store.find(Filter(tags=tags, meta=tuple(meta.items())))]


def test_every_way_to_store_a_job_keeps_them(store: Store, clock: FakeClock) -> None:
    wanted = ('["a","ü\\t\\""]', '{"tenant":"acme\\n"}')
    made = labelled(['ü\t"', "a"], {"tenant": "acme\n"})
    assert (made.tags, made.meta) == wanted
    store.add([replace(made, id="one")])
    store.add([replace(made, id="two"), make_job(queue="other")])
    store.add([replace(made, id=f"j{number}") for number in range(120)])
    store.add([replace(made, id="keyed", key="k", key_rule=KeyRule("queued"))])
    store.schedule([Schedule(key="s", spec="* * * * *", tz="UTC", job=replace(made, id=""))])
    duty = store.acquire("scheduler", "h", 600)
    assert duty is not None
    clock.advance(120)
    [schedule] = store.schedules()
    store.fire([Firing("s", clock.wall() - 60, replace(schedule.job, id="fired"))], duty)
    for job_id in ("one", "two", "j7", "keyed", "fired"):
        assert (row(store, job_id).tags, row(store, job_id).meta) == wanted


@pytest.mark.parametrize("state", [State.READY, State.DONE])
def test_find_wants_all_of_them(store: Store, state: State) -> None:
    jobs = [
        labelled(["a", "b"], {"tenant": "acme", "request": "7"}, id="j0"),
        labelled(["b"], {"tenant": "acme"}, id="j1"),
        labelled([], {"tenant": "b"}, id="j2"),
        make_job(id="j3"),
    ]
    store.add(jobs)
    if state is State.DONE:
        for job in jobs:
            settle(store, again(store, row(store, job.id)), Succeeded())
    assert found(store, "b") == ["j1", "j0"]
    assert found(store, "b", "a") == ["j0"]
    assert found(store, "c") == found(store, "tenant") == found(store, "acme") == []
    assert found(store, tenant="acme") == ["j1", "j0"]
    assert found(store, tenant="acme", request="7") == ["j0"]
    assert found(store, "a", tenant="b") == found(store, tenant="") == found(store, acme="tenant") == []
    assert len(found(store)) == 4


def test_a_claimed_job_has_them(store: Store) -> None:
    [added] = store.add([labelled(["a"], {"tenant": "acme"})])
    job = again(store, row(store, added.id))
    assert (job.tags, job.meta) == ('["a"]', '{"tenant":"acme"}')
    plain = again(store, add(store, task="u"))
    assert (plain.tags, plain.meta) == (None, None)
