"""Every verb, failing before it was carried out or after, is repeated as a client would: nothing comes of the fault."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core import acts
from holdfast.core.continuity import Doubt
from holdfast.core.dependencies import things
from holdfast.core.limits import Setting
from holdfast.core.machine import State
from holdfast.core.published import PublishedTask
from holdfast.core.records import Filter, Firing, NewEvent, Pulse, Schedule
from holdfast.core.verdict import Failed, Parked, Succeeded
from holdfast.core.worker_exit import WorkerExit
from holdfast.errors import HoldfastError, Refused, StoreUnavailable, UsageError
from holdfast.stores.protocol import Added, Reply, Store
from holdfast.testing import FakeClock
from holdfast.testing.faults import AFTER, BEFORE, VERBS, Fault, FaultyStore, scripted, seeded
from tests.conftest import open_store
from tests.factory import (
    EXPIRED,
    a_record,
    a_signal,
    a_step,
    a_worker,
    delete,
    make_job,
    move,
    picture,
    row,
    settlement,
)

Call = Callable[[Store], Any]

QUEUES, TASKS = ["default"], ["t"]
NIGHTLY, NOTE = make_job(id=""), NewEvent("moved", {"forked_from": "flow"}, "ann")


class Scene:
    """A store in which something is under way: what each verb is called upon."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.clock = FakeClock()
        folder.mkdir()
        self.store = open_store(kind, self.clock, folder)
        self.store.migrate()
        for name in ("w1", "w2", "w3"):
            self.store.enroll(a_worker(id=name))
        self.store.add([make_job(id=f"job-{n}", key=f"k{n}", lease_s=3.0, jitter=False) for n in range(6)])
        self.running = self.store.claim("w1", "first", QUEUES, TASKS, 3)
        self.clock.advance(1)
        ending = settlement(self.running[2], Failed("no luck"), now=self.store.now().wall)
        assert self.store.settle([replace(ending, verdict=replace(ending.verdict, state=State.DEAD))]) == ["accepted"]
        self.dead = row(self.store, self.running[2].id)
        duty = self.store.acquire("sweep", "w1", 5.0)
        assert duty is not None
        self.duty = duty
        self.store.add([make_job(id=name, queue="flows", workflow=True) for name in ("flow", "sleeper")])
        self.flow, sleeper = self.store.claim("w3", "flows", ["flows"], TASKS, 2)
        parked = Parked("sleeps", self.clock.wall() - 0.5, (), None, 0)
        assert self.store.settle([settlement(sleeper, parked, now=self.store.now().wall)]) == ["accepted"]
        self.store.publish([PublishedTask(job=make_job(id="", task="known"))])
        self.store.declare([Schedule(key="s", spec="* * * * *", tz="UTC", job=make_job(id=""))])
        self.clock.advance(60)

    def close(self) -> None:
        assert self.store.check() == []
        for worker in self.store.workers():
            self.store.retire(worker.id, "the test is over")
        self.store.close()


def settle_as(scene: Scene, outcome: Any, *, seen_lease: bool = False) -> Call:
    batch = [settlement(job, outcome, now=7.0, seen_lease=seen_lease) for job in scene.running[:2]]
    return lambda store: store.settle(batch)


def move_dead(scene: Scene) -> Call:
    verdict = acts.revive(scene.dead, 7.0, actor="ann")
    return lambda store: move(store, scene.dead.id, scene.dead.state, scene.dead.fence, verdict)


def through_transaction(scene: Scene) -> Call:
    ending = settlement(scene.running[0], Succeeded('"paid"'), now=7.0)

    def call(store: Store) -> Reply:
        with store.transaction(scene.running[0].lease, 5.0) as transaction:
            return transaction.settle(ending)

    return call


A_FORK = make_job(id="fork", workflow=True)

# For each verb, calls with arguments that do not change when they are repeated.
WRITES: dict[str, Callable[[Scene], Call]] = {
    "add": lambda scene: lambda store: store.add([make_job(id="new", key="k-new"), make_job(id="newer", key="k0")]),
    "add after another": lambda scene: lambda store: store.add([make_job(id="then", awaits=things(["job-0"]))]),
    "claim": lambda scene: lambda store: store.claim("w2", "second", QUEUES, TASKS, 2, ahead=1),
    "beat": lambda scene: lambda store: store.beat("w1", [Pulse(each.lease, True, 0.5) for each in scene.running], 9.0),
    "settle": lambda scene: settle_as(scene, Succeeded('"fine"')),
    "settle a failure": lambda scene: settle_as(scene, Failed("no luck")),
    "settle as a reaper": lambda scene: settle_as(scene, EXPIRED, seen_lease=True),
    "retire": lambda scene: lambda store: store.retire("w1", "it died", how=WorkerExit("exit")),
    "acquire": lambda scene: lambda store: store.acquire("count", "w2", 5.0),
    "resign": lambda scene: lambda store: store.resign(scene.duty),
    "move": move_dead,
    "pause": lambda scene: lambda store: store.pause("default", True),
    "purge": lambda scene: lambda store: store.purge([State.DEAD], 2e9),
    "purge_keys": lambda scene: lambda store: store.purge_keys(),
    "delete": lambda scene: lambda store: delete(store, scene.dead.id, scene.dead.state, scene.dead.fence),
    "record": lambda scene: lambda store: store.record([a_record(scene.flow, a_step(1, result="1"), a_step(2))]),
    "signal": lambda scene: lambda store: store.signal(a_signal(scene.flow, id="once")),
    "wake_due": lambda scene: lambda store: store.wake_due(),
    "fork": lambda scene: lambda store: store.fork(A_FORK, scene.dead.id, scene.dead.fence, 2, NOTE),
    "declare": lambda scene: lambda store: store.declare([Schedule(key="n", spec="1 * * * *", tz="UTC", job=NIGHTLY)]),
    "schedule": lambda scene: lambda store: store.schedule([Schedule(key="m", spec="@daily", tz="UTC", job=NIGHTLY)]),
    "fire": lambda scene: lambda store: store.fire([Firing("s", scene.clock.wall(), make_job(id="fired"))], scene.duty),
    "pause_schedule": lambda scene: lambda store: store.pause_schedule("s", True),
    "forget_schedule": lambda scene: lambda store: store.forget_schedule("s"),
    "publish": lambda scene: lambda store: store.publish([PublishedTask(job=NIGHTLY)]),
    "forget_task": lambda scene: lambda store: store.forget_task("known"),
    "limit": lambda scene: lambda store: store.limit("default", Setting(limit=3, group_limit=1), actor="ann"),
    "order": lambda scene: lambda store: store.order("w", "drain", actor="ann"),
    "migrate": lambda scene: lambda store: store.migrate(),
    "doubt": lambda scene: lambda store: store.doubt(1, Doubt("rewound", "beats", "2", "1", "w")),
    "accept": lambda scene: lambda store: store.accept(1, "ann", "looked"),
    "ping": lambda scene: lambda store: store.ping(),
    "wake": lambda scene: lambda store: store.wake(),
}
READS: dict[str, Callable[[Scene], Call]] = {
    "now": lambda scene: lambda store: store.now(),
    "overdue": lambda scene: lambda store: store.overdue(-10.0),
    "locked": lambda scene: lambda store: store.locked(["job-0"]),
    "deadline": lambda scene: lambda store: store.deadline(),
    "vanished": lambda scene: lambda store: store.vanished(),
    "get": lambda scene: lambda store: store.get("job-0"),
    "find": lambda scene: lambda store: store.find(Filter()),
    "counts": lambda scene: lambda store: store.counts(),
    "journal": lambda scene: lambda store: store.journal(),
    "audit": lambda scene: lambda store: store.audit(),
    "errors": lambda scene: lambda store: store.errors(0.0),
    "journals": lambda scene: lambda store: store.journals(["job-0", scene.dead.id], 50),
    "holds_lock": lambda scene: lambda store: store.holds_lock("w1"),
    "workers": lambda scene: lambda store: store.workers(),
    "orders": lambda scene: lambda store: store.orders(),
    "recent": lambda scene: lambda store: store.recent(["w1"]),
    "queues": lambda scene: lambda store: store.queues(),
    "places": lambda scene: lambda store: store.places("default", "g"),
    "ghosts": lambda scene: lambda store: store.ghosts(QUEUES),
    "is_woken": lambda scene: lambda store: store.is_woken(),
    "stands_by": lambda scene: lambda store: store.stands_by(),
    "wake_sleepers": lambda scene: lambda store: store.wake_sleepers(),
    "stop_waking": lambda scene: lambda store: store.stop_waking(),
    "paused": lambda scene: lambda store: store.paused(),
    "unserved": lambda scene: lambda store: store.unserved(QUEUES, []),
    "expired": lambda scene: lambda store: store.expired(),
    "dependents": lambda scene: lambda store: store.dependents(["job-0"]),
    "due_waits": lambda scene: lambda store: store.due_waits(),
    "due": lambda scene: lambda store: store.due(QUEUES, TASKS),
    "steps": lambda scene: lambda store: store.steps("flow"),
    "inbox": lambda scene: lambda store: store.inbox("flow"),
    "schedules": lambda scene: lambda store: store.schedules(),
    "published": lambda scene: lambda store: store.published(["known"]),
    "schema": lambda scene: lambda store: store.schema(),
    "standing": lambda scene: lambda store: store.standing("w", ["job-0"], None).incarnation,
    "doubts": lambda scene: lambda store: store.doubts(),
    "missing": lambda scene: lambda store: store.missing(),
    "check": lambda scene: lambda store: store.check(),
    "duties": lambda scene: lambda store: store.duties(),
}
# What a client is told when it repeats a call that was carried out, where that is another answer.
SECOND = {
    "add": [Added("new", True), Added("job-0", True)],
    "add after another": [Added("then", True)],
    "settle": [Reply.ALREADY, Reply.ALREADY],
    "settle a failure": [Reply.ALREADY, Reply.ALREADY],
    "settle as a reaper": [Reply.REFUSED, Reply.REFUSED],
    "order": False,
    "forget_schedule": False,
    "forget_task": False,
    "retire": False,
    "resign": False,
    "move": False,
    "purge": 0,
    "delete": False,
    "signal": Reply.ALREADY,
    "fork": Added("fork", True),
    "fire": [None],
}
# `enroll` is repeated with a new id (see below), `wait` is a hint, `close` is the end, `transaction` is SQL's own. An
# act that is repeated after its answer was lost is an act of its own in the journal.
ASIDE = {"enroll", "wait", "close", "transaction", "note_act"}


def test_every_verb_has_its_scene() -> None:
    assert {name.split()[0] for name in WRITES} | set(READS) | ASIDE == set(VERBS)


def after_the_fault(scene: Scene, call: Call, verb: str, fault: Fault | None) -> Any:
    """Call until there is an answer; return it."""
    store = FaultyStore(scene.store, scripted([fault], [verb]))
    if fault is not None:
        with pytest.raises(StoreUnavailable, match=r"on purpose"):
            call(store)
    return call(store)


def without_beats(seen: Any) -> Any:
    """A beat that is repeated counts twice, and nothing else may."""
    *others, workers, paused = seen
    return *others, [replace(worker, beats=0) for worker in workers], paused


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@pytest.mark.parametrize("fault", [BEFORE, AFTER], ids=["before", "after"])
@pytest.mark.parametrize("name", [*WRITES, *READS])
def test_a_call_that_failed_and_is_repeated_leaves_the_same_store(
    kind: str, fault: Fault, name: str, tmp_path: Path
) -> None:
    make = {**WRITES, **READS}[name]
    smooth, rough = Scene(kind, tmp_path / "smooth"), Scene(kind, tmp_path / "rough")
    answer = after_the_fault(smooth, make(smooth), name.split()[0], None)
    repeated = after_the_fault(rough, make(rough), name.split()[0], fault)
    assert without_beats(picture(rough.store)) == without_beats(picture(smooth.store))
    assert rough.store.schedules() == smooth.store.schedules()
    assert rough.store.published() == smooth.store.published()
    assert rough.store.acquire("sweep", "w3", 5.0) == smooth.store.acquire("sweep", "w3", 5.0)
    assert repeated == (SECOND.get(name, answer) if fault is AFTER else answer)
    smooth.close()
    rough.close()


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_second_enrolment_under_one_id_is_refused_and_a_new_id_works(kind: str, tmp_path: Path) -> None:
    scene = Scene(kind, tmp_path / "scene")
    store = FaultyStore(scene.store, scripted([AFTER, None], ["enroll"]))
    with pytest.raises(StoreUnavailable):
        store.enroll(a_worker(id="w4"))
    with pytest.raises((UsageError, Refused), match=r"w4 is enrolled already"):
        store.enroll(a_worker(id="w4"))
    store.enroll(a_worker(id="w5"))
    assert [worker.id for worker in scene.store.workers()] == ["w1", "w2", "w3", "w4", "w5"]
    assert store.claim("w5", "claim", QUEUES, TASKS, 1)
    scene.close()


@pytest.mark.parametrize("fault", [BEFORE, AFTER], ids=["before", "after"])
@pytest.mark.parametrize("verb", ["transaction", "transaction.settle"])
def test_a_transaction_that_failed_is_settled_once_by_the_report_that_follows(
    verb: str, fault: Fault, tmp_path: Path
) -> None:
    scene = Scene("sqlite", tmp_path / "scene")
    call = through_transaction(scene)
    store = FaultyStore(scene.store, scripted([fault], [verb]))
    with pytest.raises(StoreUnavailable):
        call(store)
    committed = (verb, fault) == ("transaction.settle", AFTER)
    [answer] = store.settle([settlement(scene.running[0], Succeeded('"reported"'), now=7.0)])
    assert answer is (Reply.ALREADY if committed else Reply.ACCEPTED)
    assert row(scene.store, scene.running[0].id).result == ('"paid"' if committed else '"reported"')
    assert scene.store.counts()["default"][State.DONE] == 1
    scene.close()


def test_other_errors_and_attributes_pass_through_as_they_are(tmp_path: Path) -> None:
    scene = Scene("memory", tmp_path / "scene")
    store = FaultyStore(scene.store, lambda verb: None)
    assert store.url == "memory://"
    with pytest.raises(HoldfastError, match="nobody"):
        store.claim("nobody", "c", QUEUES, TASKS, 1)
    with pytest.raises(AttributeError):
        _ = store.no_such_verb


def test_time_passes_on_both_ways_of_a_slow_call(clock: FakeClock) -> None:
    slow = Fault(before_s=2.0, after_s=3.0)
    store = FaultyStore(open_store("memory", clock, Path()), scripted([slow]), clock.advance)
    began = clock.wall()
    [added] = store.add([make_job(id="late")])
    assert clock.wall() == began + 5
    assert row(store, added.id).created_at == began + 2


def test_a_seeded_plan_is_the_same_each_time_and_keeps_to_its_rates() -> None:
    rates = {"settle": {BEFORE: 0.2, AFTER: 0.3}}
    draw = partial(seeded, rates=rates)
    first, second = draw(Random(5)), draw(Random(5))
    faults = [first("settle") for _ in range(2_000)]
    assert faults == [second("settle") for _ in range(2_000)]
    assert 300 < faults.count(BEFORE) < 500 < faults.count(AFTER) < 700
    assert {first("claim") for _ in range(100)} == {None}
