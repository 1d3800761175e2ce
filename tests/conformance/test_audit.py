"""audit and note_act: acts of people in the journal; delete and pause write them too."""

from holdfast.core import acts
from holdfast.core.audit import act_of, line
from holdfast.core.machine import State
from holdfast.core.records import NewEvent, Seen
from holdfast.stores.protocol import Reply, Store
from holdfast.testing import FakeClock
from tests.factory import EXPIRED, add, job_in, move, settle, start


def test_acts_of_people_are_found_among_other_events(store: Store, clock: FakeClock) -> None:
    settle(store, start(store), EXPIRED)
    job = add(store)
    move(store, job.id, State.READY, 0, acts.cancel(job, actor="ann", reason="sent twice"))
    clock.advance(60)
    store.note_act(line("purged", "bob", None, states=["done"]))
    store.pause("mail", True, actor="ann", note="the relay is down")
    first, second, third = store.audit()
    assert [(each.kind, each.actor, each.job_id) for each in (first, second, third)] == [
        ("cancelled", "ann", job.id),
        ("purged", "bob", ""),
        ("paused", "ann", ""),
    ]
    assert first.detail["note"] == "sent twice"
    assert second.detail == {"states": ["done"]}
    assert third.detail == {"queue": "mail", "note": "the relay is down"}
    assert store.audit(2) == [second, third]
    assert store.audit(actor="ann") == [first, third]
    assert store.audit(actor="eve") == []
    assert store.audit(since=second.at) == [second, third]
    assert store.audit(before=third.seq) == [first, second]
    assert store.audit(1, before=third.seq, actor="ann") == [first]


def test_a_deletion_is_written_down_with_the_jobs_that_were_deleted(store: Store) -> None:
    done, dead, moved = job_in(store, State.DONE), job_in(store, State.DEAD), job_in(store, State.DONE)
    seen = [done.seen, Seen(moved.id, State.DONE, moved.fence + 1), dead.seen]
    act = line("deleted", "ann", "clean up")
    assert store.delete(seen, act) == [Reply.ACCEPTED, Reply.REFUSED, Reply.ACCEPTED]
    [event] = store.audit()
    assert (event.kind, event.actor, event.job_id) == ("deleted", "ann", "")
    assert event.detail == {"jobs": 2, "ids": [done.id, dead.id], "note": "clean up"}
    assert store.delete([Seen("nobody", State.DONE, 1)], act) == [Reply.REFUSED]
    assert store.delete([moved.seen]) == [Reply.ACCEPTED]
    assert store.audit() == [event], "nothing was deleted, and a program deleted"


def test_every_act_has_one_shape(store: Store) -> None:
    store.note_act(NewEvent("forgotten", {"schedule": "nightly", "note": "old"}, "ann"))
    [act] = filter(None, map(act_of, store.audit()))
    assert (act.actor, act.act, act.about, act.name, act.note, act.job_id) == (
        "ann",
        "forget",
        "schedule",
        "nightly",
        "old",
        None,
    )
