"""pause: stop and resume claims from one queue; running jobs go on."""

from holdfast.core.records import Pulse
from holdfast.core.verdict import Succeeded
from holdfast.stores.protocol import Reply, Store
from tests.factory import add, claim, enrol, picture, row, settle, start


def test_paused_queues_are_listed_by_name_until_they_are_resumed(store: Store) -> None:
    assert store.paused() == []
    for queue in ("b", "a", "ünï 🐈"):
        store.pause(queue, True)
    assert store.paused() == ["a", "b", "ünï 🐈"]
    store.pause("b", False)
    assert store.paused() == ["a", "ünï 🐈"]


def test_pausing_twice_is_pausing_once(store: Store) -> None:
    store.pause("a", True)
    before = picture(store)
    store.pause("a", True)
    assert picture(store) == before


def test_resuming_what_was_never_paused_is_nothing(store: Store) -> None:
    store.pause("a", False)
    assert store.paused() == []


def test_a_queue_can_be_paused_before_its_first_job(store: Store) -> None:
    store.pause("default", True)
    add(store)
    assert claim(store) == []


def test_running_jobs_of_a_paused_queue_go_on(store: Store) -> None:
    job = start(store)
    store.pause("default", True)
    assert row(store, job.id) == job
    assert store.beat(enrol(store), [Pulse(job.lease)]).lost == []
    assert settle(store, job, Succeeded()) is Reply.ACCEPTED


def test_a_paused_queue_takes_no_share_from_the_others(store: Store) -> None:
    for queue in "abcabcabc":
        add(store, queue=queue)
    store.pause("a", True)
    got = [job.queue for job in claim(store, queues=["a", "b", "c"], limit=4)]
    assert sorted(got) == ["b", "b", "c", "c"]
