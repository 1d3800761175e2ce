"""Alerts on flow: what stands, such as a backlog, and how well recovery works; in one mess, on every store."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from holdfast.alerts import declare
from holdfast.alerts.messages import Message, for_slack
from holdfast.alerts.notifier import tell_once
from holdfast.alerts.rules import AlertKind, Thresholds
from holdfast.alerts.standing import STANDING_S, StandingReader
from holdfast.alerts.webhook import Webhook
from holdfast.core.figures import Flow, successes
from holdfast.core.machine import State
from holdfast.core.records import Firing, Published, Schedule
from holdfast.core.settlement import settlement
from holdfast.core.verdict import Failed, Lost, Succeeded, judge
from holdfast.errors import UsageError
from holdfast.stores.protocol import Store
from holdfast.testing import FakeClock
from tests.alerts.receiver import receiving
from tests.alerts.test_notifier import Ear, Told, alert, look_all
from tests.factory import add, again, claim, enrol, make_job, row, settle, start

FOR_EVER = 1e6  # a worker with this beat never falls silent
FLOW: tuple[AlertKind, ...] = ("late_schedules", "backlog", "no_worker", "silent_worker", "unknown_task")
RATES: tuple[AlertKind, ...] = ("recovery_rate", "slow_detection", "error_rate")
ALL_OF_IT = {
    ("backlog", "mail"),
    ("no_worker", "slow"),
    ("unknown_task", "shop.old"),
    ("silent_worker", None),
    ("late_schedules", "report"),
    ("recovery_rate", None),
    ("slow_detection", None),
    ("error_rate", "shop.pay"),
}


def subjects(told: list[Message]) -> set[tuple[str, str | None]]:
    return {(message.kind, message.task or message.queue) for message in told}


def texts(told: list[Message]) -> dict[str, str]:
    return {message.kind: message.text for message in told}


def works(store: Store, *queues: str, name: str = "box/1", tasks: tuple[str, ...] | None = None, **given: Any) -> str:
    """A worker that serves these queues; with `tasks` it has no others."""
    known = None if tasks is None else {task: Published(queue=queues[0]) for task in tasks}
    return enrol(store, **{"name": name, "queues": list(queues), "tasks": known, "beat_s": FOR_EVER} | given)


def loses(store: Store, worker: str, silent_s: float, **given: Any) -> None:
    """An attempt is lost; unless its job is held, it runs again and succeeds."""
    job = start(store, worker, **given)
    lost = Lost("expired", "gone", {"seconds_since_beat": silent_s})
    store.settle([settlement(job, judge(lost, job, 0.0, chance=0))])
    if row(store, job.id).state is State.READY:
        settle(store, again(store, job, worker), Succeeded())


class Mess:
    """All of it at once, on a store that also has healthy queues, a paused one, and a task with few errors."""

    def __init__(self, store: Store, clock: FakeClock) -> None:
        clock.set_wall(clock.wall() // 60 * 60)
        self.good = works(store, "mail", "default", tasks=("shop.mail", "shop.pay", "shop.fine"))
        self.frozen = works(store, "default", name="frozen/1", tasks=("shop.fine",), beat_s=10.0)
        store.declare([Schedule(key="nightly", spec="* * * * *", tz="UTC", job=make_job(id="", task="report"))])
        add(store, queue="mail", task="shop.mail")
        add(store, queue="mail", task="shop.old")
        add(store, queue="slow", task="shop.mail")
        add(store, queue="paused", task="shop.mail")
        store.pause("paused", True)
        clock.advance(605)
        for number in range(30):
            settle(
                store,
                start(store, self.good, task="shop.pay", attempts_max=1),
                Failed("no", error_kind="E", origin="a.b"),
            )
            settle(store, start(store, self.good, task="shop.fine"), Succeeded())
            if number % 3 == 0:
                settle(store, start(store, self.good, task="shop.pay"), Succeeded())
                settle(
                    store,
                    start(store, self.good, task="shop.fine", attempts_max=1),
                    Failed("no", error_kind="E", origin="a.b"),
                )
        for number in range(12):
            loses(store, self.good, 300.0 if number == 0 else 2.0, on_crash="hold" if number < 5 else "retry")


# -------------------------------------------------------------------------------------------- the mess


def test_a_mess_is_told_by_what_stands_and_its_end(store: Store, clock: FakeClock) -> None:
    mess, told = Mess(store, clock), Told(store, clock, *FLOW, *RATES)
    look_all(clock, told, s=130.0)
    assert subjects(told.ear.heard) == ALL_OF_IT
    assert {message.status for message in told.ear.heard} == {"new"}
    said = texts(told.ear.heard)
    assert said["backlog"] == "queue mail is behind: its oldest job has been due for 10 min, and 1 job or more are due"
    assert said["no_worker"] == "no worker serves queue slow, and 1 job or more are due there"
    assert said["unknown_task"] == "no living worker has task shop.old, and 1 job or more of it are due in queue mail"
    assert said["silent_worker"].startswith(
        "worker frozen/1 on h is silent: its last beat was 10 min ago, one every 10 s"
    )
    assert said["error_rate"] == "75% of the attempts of shop.pay failed: 30 of about 40 in the last 10 min"
    assert said["recovery_rate"] == "only 58% of 12 attempts that lost their worker in 1 h run again: 5 held"
    assert said["slow_detection"].startswith(
        "1 of 12 lost attempts in 10 min had been silent for more than 1 min when it was found, the worst for 5 min"
    )
    assert look_all(clock, told, s=60.0) == [], "told once"

    late = works(store, "slow", "mail", name="box/2")
    for job in claim(store, late, tasks=["shop.mail", "shop.old"], queues=["slow", "mail"]):
        settle(store, job, Succeeded())
    store.retire(mess.frozen, "forgotten")
    duty = store.acquire("scheduler", "a", 30.0)
    assert duty is not None
    store.fire([Firing("nightly", clock.wall(), make_job(run_at=clock.wall(), task="shop.mail", queue="mail"))], duty)
    over = {kind for kind, status, _ in look_all(clock, told, s=STANDING_S) if status == "over"}
    assert over == {"backlog", "no_worker", "unknown_task", "silent_worker", "late_schedules"}
    over = {kind for kind, status, _ in look_all(clock, told, s=700.0) if status == "over"}
    assert over == {"slow_detection", "error_rate"}
    for _ in range(100):
        loses(store, mess.good, 1.0)
    assert ("recovery_rate", "over", None) in look_all(clock, told, s=10.0)


def test_a_healthy_store_is_told_nothing_of(store: Store, clock: FakeClock) -> None:
    worker, told = works(store, "default"), Told(store, clock, *FLOW, *RATES)
    for _ in range(30):
        settle(store, start(store, worker, task="t"), Succeeded())
    settle(store, start(store, worker, task="t"), Failed("no", error_kind="E", origin="a.b"))
    assert look_all(clock, told, s=60.0) == []


def test_a_mess_is_told_by_a_program_that_does_not_stay_once_and_its_end(store: Store, clock: FakeClock) -> None:
    """As a scan from cron does: each is a new program, and what the last one told is in the note."""
    mess, ear = Mess(store, clock), Ear()

    def scan() -> list[tuple[str, str]]:
        heard = len(ear.heard)
        tell_once(store, clock, [alert(ear, *FLOW, "error_rate")], name="scan", since=clock.wall())
        clock.advance(60.0)
        return sorted((message.kind, message.status) for message in ear.heard[heard:])

    kinds = [kind for kind, _ in ALL_OF_IT if kind not in ("recovery_rate", "slow_detection")]
    assert scan() == sorted((kind, "new") for kind in kinds)
    assert scan() == [], "told by the scan before"
    store.retire(mess.frozen, "forgotten")
    assert scan() == [("silent_worker", "over")]
    assert scan() == []


def test_a_scan_leaves_the_memory_of_a_resident_as_it_is(store: Store, clock: FakeClock) -> None:
    mess = Mess(store, clock)
    resident = Told(store, clock, "silent_worker", "dead")
    assert mess.good
    told = look_all(clock, resident, s=35.0)
    assert sorted(kind for kind, _, _ in told) == ["dead", "dead", "silent_worker"]
    resident.stop()
    ear = Ear()
    tell_once(store, clock, [alert(ear, "silent_worker", "dead")], name="scan", since=clock.wall())
    assert ear.heard == []
    successor = Told(store, clock, "silent_worker", "dead")
    assert look_all(clock, successor, s=35.0) == [], "neither is told again, and neither is over"


def test_a_program_that_looks_for_nothing_makes_no_look(store: Store, clock: FakeClock) -> None:
    Mess(store, clock)
    ear = Ear()
    tell_once(store, clock, [alert(ear, *FLOW)], name="tick", since=clock.wall(), looks=False)
    assert ear.heard == []


# ------------------------------------------------------------------------------------------ what stands


def test_a_worker_that_starts_is_waited_for(store: Store, clock: FakeClock) -> None:
    """Jobs have been due for long when the first program of a fleet looks; its workers come a moment later."""
    add(store, queue="mail")
    clock.advance(5000)
    told = Told(store, clock, "no_worker", "unknown_task", "silent_worker")
    assert look_all(clock, told, s=100.0) == []
    worker = works(store, "mail")
    assert look_all(clock, told, s=100.0) == []
    store.retire(worker, "stopped")
    assert look_all(clock, told, s=100.0) == []
    assert look_all(clock, told, s=60.0) == [("no_worker", "new", None)]


def test_a_queue_whose_worker_has_just_left_is_waited_for_by_a_short_program_too(
    store: Store, clock: FakeClock
) -> None:
    worker, ear = works(store, "mail"), Ear()
    add(store, queue="mail")
    clock.advance(5000)
    store.retire(worker, "the end of a tick")
    clock.advance(60)
    tell_once(store, clock, [alert(ear, "no_worker")], name="tick", since=clock.wall())
    assert ear.heard == []
    clock.advance(100)
    tell_once(store, clock, [alert(ear, "no_worker")], name="tick", since=clock.wall())
    assert [message.queue for message in ear.heard] == ["mail"]


def test_a_backlog_that_shrinks_and_grows_again_does_not_flutter(store: Store, clock: FakeClock) -> None:
    works(store, "mail")
    told = Told(store, clock, "backlog")
    first = add(store, queue="mail")
    clock.advance(200)
    add(store, queue="mail", id="second")
    assert look_all(clock, told, s=440.0) == [("backlog", "new", None)]
    settle(store, claim(store, queues=["mail"], limit=1)[0], Succeeded())
    assert first.id != "second"
    assert look_all(clock, told, s=100.0) == [], (
        "the next one has waited for less than the limit, but for more than half"
    )
    add(store, queue="mail")
    settle(store, claim(store, queues=["mail"], limit=1)[0], Succeeded())
    assert look_all(clock, told, s=20.0) == [("backlog", "over", None)], "the third has just become due"
    assert look_all(clock, told, s=640.0) == [("backlog", "new", None)], "a new incident"


def test_many_silent_workers_are_one_message(store: Store, clock: FakeClock) -> None:
    for number in range(30):
        works(store, "mail", name=f"box/{number}", beat_s=10.0)
    clock.advance(100)
    told = Told(store, clock, "silent_worker")
    assert look_all(clock, told, s=60.0) == [("silent_worker", "new", None)]
    [message] = told.ear.heard
    assert message.text.startswith("30 workers are silent (box/0, box/1, box/2 and 27 more); worker box/29 on h")
    assert message.numbers["workers"] == 30


def test_leases_that_nobody_settles_are_not_recovered(store: Store, clock: FakeClock) -> None:
    told = Told(store, clock, "recovery_rate")
    for _ in range(12):
        start(store, lease_s=10.0, beat_s=2.0)
    clock.advance(30)
    assert look_all(clock, told) == [("recovery_rate", "new", None)]
    [message] = told.ear.heard
    ending = "12 with a lease that ran out and that nobody has settled"
    assert message.text == f"only 0% of 12 attempts that lost their worker in 1 h run again: {ending}"
    assert message.jobs[0]["reason"].startswith("its lease ran out 20 s ago")


def test_it_looks_only_now_and_then_and_only_for_what_is_asked(store: Store, clock: FakeClock) -> None:
    reader = StandingReader(store, ["dead", "held"], 600.0, stays=True)
    assert not reader.is_needed
    assert reader.lines(store.now()) == []
    reader = StandingReader(store, ["no_worker"], 600.0, stays=False)
    add(store, queue="mail")
    assert len(reader.lines(store.now())) == 1
    add(store, queue="other")
    clock.advance(STANDING_S / 2)
    assert len(reader.lines(store.now())) == 1
    clock.advance(STANDING_S / 2)
    assert len(reader.lines(store.now())) == 2


def test_a_rare_task_among_very_many_jobs_is_not_taken_for_all_of_it() -> None:
    whole = [Flow("q", "done", 10, 0.0, "a"), Flow("q", "dead", 5, 0.0, "a")]
    assert successes(whole, {"a", "b"}, 0.0, 600.0) == {"a": 10, "b": 0}
    cut = [Flow("q", "done", 1999, 580.0, "busy"), Flow("q", "done", 1, 580.0, "a")]
    assert successes(cut, {"a", "b"}, 0.0, 600.0) == {"a": 60, "b": 30}
    assert successes([], {"a"}, 0.0, 600.0) == {"a": 0}


@pytest.mark.parametrize(
    "limits",
    [{"backlog_s": -1}, {"unserved_s": 1e12}, {"recovered_min": 1.1}, {"recovered_min": -0.1}, {"errors_max": 1.0}],
)
def test_limits_of_flow_are_checked(limits: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(limits))):
        Thresholds(**limits)


def test_random_messes_are_told_once_for_each_time_they_stand(store: Store, clock: FakeClock) -> None:
    """Queues lose and get their worker at random: each incident is told as new, then as over, and so on."""
    lots = random.Random(7)
    told = Told(store, clock, "no_worker", "backlog")
    workers: dict[str, str] = {}
    for queue in ("a", "b"):
        add(store, queue=queue)
    for _ in range(40):
        queue = lots.choice("ab")
        if queue in workers:
            store.retire(workers.pop(queue), "stopped")
        else:
            workers[queue] = works(store, queue, name=queue)
        look_all(clock, told, s=lots.choice([20.0, 150.0, 700.0]))
    seen: dict[tuple[str, str | None], list[str]] = {}
    for message in told.ear.heard:
        seen.setdefault((message.kind, message.queue), []).append(message.status)
    assert len(seen) == 4
    for statuses in seen.values():
        assert statuses == [("new", "over")[number % 2] for number in range(len(statuses))]


# --------------------------------------------------------------------------------------------- for Slack


def test_a_message_for_slack_is_one_text_and_calls_nobody() -> None:
    job = {"id": "job-1", "task": "t", "queue": "q", "reason": "no", "at": "now"}
    message = Message(
        kind="held", status="new", text="job 1: <!channel> & more", task="t", since="10:00", at="10:01", jobs=[job] * 5
    )
    body = json.loads(for_slack(message, "postgresql://u:s3cret@db/x"))
    assert list(body) == ["text"]
    lines = body["text"].split("\n")
    assert lines[0] == "🔴 held: job 1: &lt;!channel&gt; &amp; more"
    assert lines[1:4] == ["• job-1 t"] * 3
    assert lines[4] == "postgresql://u:***@db/x, since 10:00"


def test_a_webhook_for_slack_gets_that_text() -> None:
    message = Message(kind="backlog", status="over", text="over", task=None, queue="q", since="a", at="b")
    with receiving(answers=[200]) as receiver:
        hook = Webhook(receiver.url, private=True, form="slack")
        assert hook.send(message, "memory://").told
        assert receiver.told == [{"text": "🟢 backlog: over\nmemory://, since a"}]
        assert hook.identity != Webhook(receiver.url, private=True).identity


def test_the_form_of_a_webhook_is_checked() -> None:
    with pytest.raises(UsageError, match="form='party' is not known; write 'json' or 'slack'"):
        declare(webhook="https://example.org/", form="party")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="are for a webhook"):
        declare(log=True, form="slack")
