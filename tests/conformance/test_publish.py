"""The verbs of published tasks: what workers say of them outlives the workers."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from holdfast.core.policy import Policy, Retry
from holdfast.core.published import PublishedParameter, PublishedTask
from holdfast.stores.protocol import Store
from holdfast.testing import FakeClock
from tests.factory import enrol, make_job


def a_task(name: str = "mail.send", **given: Any) -> PublishedTask:
    job = make_job(id="", task=name, **given.pop("job", {}))
    return PublishedTask(job=job, **given)


def test_a_published_task_comes_back_whole(store: Store, clock: FakeClock) -> None:
    wanted = a_task(
        job={
            "queue": "mail",
            "priority": 3,
            "group": "é",
            "workflow": True,
            "attempts_max": 7,
            "jitter": "full",
            "on_crash": "hold",
            "crashes_max": 2,
            "lease_s": 5.5,
            "beat_s": 1.0,
            "timeout_s": 9.0,
            "stall_s": 3.0,
        },
        parameters=(PublishedParameter("to"), PublishedParameter("rest", "var_positional", False)),
        schema={"type": "object", "properties": {"to": {"enum": ["'", '"', "é", 2**70]}}},
        own_codec=True,
        key_is_code=True,
    )
    store.publish([wanted])
    [found] = store.published()
    assert found == replace(wanted, published_at=clock.wall())
    assert (found.name, found.job.policy.retry) == ("mail.send", Retry(7, jitter="full"))
    assert store.published(["mail.send"]) == [found]
    assert found.job.policy.on_crash == "hold"


def test_nothing_is_published_at_first(store: Store) -> None:
    assert store.published() == store.published(["t"]) == store.published([]) == []
    store.publish([])
    assert store.published() == []


def test_the_newest_publication_wins_and_others_stay(store: Store, clock: FakeClock) -> None:
    store.publish([a_task("b"), a_task("a")])
    clock.advance(5)
    news = a_task("b", job={"on_crash": "hold"})
    store.publish([news, a_task("c")])
    assert [task.name for task in store.published()] == ["a", "b", "c"]
    assert [task.name for task in store.published(["c", "a", "z"])] == ["a", "c"]
    [found] = store.published(["b"])
    assert (found.job.policy.on_crash, found.published_at) == ("hold", clock.wall())
    assert store.published([]) == []


def test_what_is_published_again_as_it_is_keeps_its_instant(store: Store, clock: FakeClock) -> None:
    task = a_task()
    store.publish([task])
    first = store.published()
    clock.advance(5)
    store.publish([task])
    store.publish([replace(task, published_at=99.0)])
    assert store.published() == first
    assert task.is_same(first[0])
    assert not task.is_same(None)
    assert not replace(task, own_codec=True).is_same(first[0])


def test_a_task_stays_known_when_its_workers_are_gone(store: Store) -> None:
    worker = enrol(store)
    store.publish([a_task()])
    store.retire(worker, "left")
    assert [task.name for task in store.published()] == ["mail.send"]


def test_a_forgotten_task_is_gone_until_it_is_published_again(store: Store, clock: FakeClock) -> None:
    store.publish([a_task("a"), a_task("b")])
    assert store.forget_task("a") is True
    assert store.forget_task("a") is False
    assert [task.name for task in store.published()] == ["b"]
    clock.advance(1)
    store.publish([a_task("a")])
    assert store.published(["a"])[0].published_at == clock.wall()


def test_defaults_travel(store: Store) -> None:
    store.publish([a_task("t")])
    [found] = store.published()
    assert (found.job.policy, found.job.queue, found.job.key) == (Policy(retry=Retry()), "default", None)
    assert (found.parameters, found.schema, found.own_codec, found.key_is_code) == ((), {}, False, False)
