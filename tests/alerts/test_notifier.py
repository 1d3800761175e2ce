"""Who tells: one of many, from the journal, each incident once; and no channel holds up another."""

from __future__ import annotations

import logging
import threading
from typing import Any

import msgspec
import pytest

from holdfast import App
from holdfast.alerts import Alert, notes, notifier
from holdfast.alerts.channels import Channel, LogChannel, Sent
from holdfast.alerts.messages import Message, a_test
from holdfast.alerts.notifier import LOOK_S, TRIES, TTL_S, WAITING_MAX, Notifier, Outbox, tell_once
from holdfast.alerts.rules import KINDS, AlertKind, Reported, ThresholdOptions, Thresholds
from holdfast.clock import SystemClock
from holdfast.core import acts
from holdfast.core.durations import iso
from holdfast.core.machine import State
from holdfast.core.records import Firing, Schedule
from holdfast.core.verdict import Failed, Lost, Succeeded
from holdfast.errors import StoreUnavailable
from holdfast.insight import look_back, zombies_view
from holdfast.insight.explain import reason
from holdfast.stores.memory import MemoryStore
from holdfast.stores.protocol import Reply, Store
from holdfast.testing import FakeClock
from tests.alerts.waiting import FOR_EVER_S, PATIENCE_S, until
from tests.factory import EXPIRED, again, delete, enrol, job_in, make_job, move, park, row, settle, start

SECRET = "s3cret-s3cret"
OF_JOBS = KINDS[: KINDS.index("late_schedules") + 1]  # the others: test_flow.py


class Ear:
    """A channel that remembers what it was told."""

    name = "ear"

    def __init__(self, *answers: Sent) -> None:
        self.identity = "ear"
        self.heard: list[Message] = []
        self.urls: set[str] = set()
        self._answers = list(answers)

    def send(self, message: Message, url: str) -> Sent:
        self.heard.append(message)
        self.urls.add(url)
        return self._answers.pop(0) if self._answers else Sent(True, "heard")

    def close(self) -> None: ...


def alert(channel: Channel, *on: AlertKind, **limits: Any) -> Alert:
    return Alert(on or OF_JOBS, Thresholds(**ThresholdOptions(**limits)), (channel,))  # type: ignore[typeddict-item]


def has_sent(notifier: Notifier, timeout_s: float) -> bool:
    """Wait until every message was sent or given up; False when the time was up first."""
    return all(outbox.flush(timeout_s) for outbox in notifier._outboxes.values())


class Told:
    """A notifier in the hand of a test, and what it told."""

    def __init__(self, store: Store, clock: FakeClock, *on: AlertKind, name: str = "a", **limits: Any) -> None:
        self.ear = Ear()
        self._teller = Notifier(store, clock, [alert(self.ear, *on, **limits)], name=name)

    def look(self) -> list[tuple[str, str, str | None]]:
        """Look once; return what was told: kind, status and task."""
        already = len(self.ear.heard)
        self._teller.look()
        assert has_sent(self._teller, PATIENCE_S)
        return [(message.kind, message.status, message.task) for message in self.ear.heard[already:]]

    def stop(self) -> None:
        self._teller.resign()


def look_all(clock: FakeClock, *notifiers: Told, s: float = 0.0) -> list[tuple[str, str, str | None]]:
    """Let time pass while all of them look; return what any of them told."""
    told = [each for notifier in notifiers for each in notifier.look()]
    for _ in range(int(s / LOOK_S)):
        clock.advance(LOOK_S)
        told += [each for notifier in notifiers for each in notifier.look()]
    return told


def hold(store: Store, task: str = "charge") -> str:
    return job_in(store, State.HELD, task=task).id


# ----------------------------------------------------------------------------------------- the journal


def test_what_is_held_and_dead_is_told_with_its_reason_and_its_end(store: Store, clock: FakeClock) -> None:
    told = Told(store, clock)
    assert told.look() == []
    held = hold(store)
    dead = job_in(store, State.DEAD, task="mail")
    assert sorted(told.look()) == [("dead", "new", "mail"), ("held", "new", "charge")]
    jobs = {job["id"]: job["reason"] for message in told.ear.heard for job in message.jobs}
    assert jobs == {held: "the lease ran out; on_crash=hold: a person decides", dead.id: reason(row(store, dead.id))}
    job = row(store, held)
    move(store, job.id, job.state, job.fence, acts.resolve(job, "done", clock.wall(), actor="ann"))
    assert told.look() == [("held", "over", "charge")]
    assert look_all(clock, told, s=600) == [("dead", "over", "mail")]
    assert told.ear.urls == {store.url}


def test_a_question_to_a_person_is_told_once_and_its_end(store: Store, clock: FakeClock) -> None:
    told, flow = Told(store, clock, "held"), {"task": "order", "workflow": True}
    question = {"question": "Ship it?", "wake_at": clock.wall() + 700}
    job = park(store, start(store, **flow), "signal:approve:2", **question)
    assert told.look() == [("held", "new", "order")]
    assert told.ear.heard[-1].text == f"workflow {job.id} (order) asks a person: Ship it?"
    clock.advance(700)
    store.wake_due()
    park(store, again(store, row(store, job.id)), "signal:approve:2", **question)
    assert told.look() == [], "it parked again, and asks the same"
    held = start(store, on_crash="hold", **flow)
    settle(store, held, EXPIRED)
    asks = park(store, start(store, **flow), "signal:approve:2", question="And this?")
    assert told.look() == [("held", "more", "order")]
    assert told.ear.heard[-1].text == "3 jobs of order wait for a person's answer; the last one: And this?"
    assert told.ear.heard[-1].jobs_concerned == 3
    for job_id in (job.id, asks.id, held.id):
        now = row(store, job_id)
        move(store, now.id, now.state, now.fence, acts.cancel(now, actor="ann"))
    assert told.look() == [("held", "over", "order")]


def test_a_late_schedule_is_reported_until_it_fires(store: Store, clock: FakeClock) -> None:
    clock.set_wall(minute := clock.wall() // 60 * 60)
    told, others = Told(store, clock), Told(store, clock, "dead")
    store.declare([Schedule(key="nightly", spec="* * * * *", tz="UTC", job=make_job(id="", task="report"))])
    assert look_all(clock, told, s=120) == []
    [late] = look_all(clock, told, s=20)
    assert late == ("late_schedules", "new", "report")
    [message] = told.ear.heard
    instant = iso(minute + 60)
    assert message.text == f"schedule nightly (report) is late: no program fired its instant of {instant}"
    assert (message.jobs, message.numbers) == ([], {"late": 1, "schedules": {"nightly": 1}})
    assert look_all(clock, told, s=700) == [], "longer than a window, and still the same incident"
    duty = store.acquire("scheduler", "a", 30.0)
    assert duty is not None
    assert store.fire([Firing("nightly", clock.wall(), make_job(run_at=clock.wall()))], duty) != [None]
    assert look_all(clock, told, s=20) == [("late_schedules", "over", "report")]
    assert others.look() == []


def senders() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "holdfast-alert"}


def test_a_program_that_does_not_stay_tells_what_happened_while_it_ran(store: Store, clock: FakeClock) -> None:
    """As a scan from cron: each run tells its own finds as news, also when the last run told of the same task."""
    before = senders()
    hold(store)
    clock.advance(1.0)
    for _ in range(2):
        ear, since = Ear(), clock.wall()
        found = hold(store)
        tell_once(store, clock, [alert(ear)], name="scan", since=since)
        [message] = ear.heard
        assert (message.kind, message.status, [job["id"] for job in message.jobs]) == ("held", "new", [found])
        clock.advance(5.0)
    ear = Ear()
    tell_once(store, clock, [alert(ear)], name="scan", since=clock.wall())
    assert ear.heard == []
    until(lambda: senders() <= before)  # no thread stays behind


def test_a_program_that_does_not_stay_leaves_the_telling_to_one_that_does(
    store: Store, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifier, "TURN_S", 0.0)
    resident, ear = Told(store, clock), Ear()
    resident.look()
    since = clock.wall()
    hold(store)
    tell_once(store, clock, [alert(ear)], name="scan", since=since)
    assert ear.heard == []
    assert resident.look() == [("held", "new", "charge")]


def test_a_channel_that_is_too_slow_for_a_short_program_goes_on_without_it(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    store, answer = MemoryStore(clock=clock), threading.Event()

    class Slow(Ear):
        def send(self, message: Message, url: str) -> Sent:
            assert answer.wait(FOR_EVER_S)
            return super().send(message, url)

    ear = Slow()
    hold(store)
    try:
        tell_once(store, clock, [alert(ear)], name="tick", since=clock.wall(), timeout_s=0.05)
        assert "ear: continuing with 1 alert not yet delivered (1 held)" in caplog.text
    finally:
        answer.set()
    until(lambda: len(ear.heard) == 1)


def test_what_a_person_did_is_nothing_to_tell(store: Store, clock: FakeClock) -> None:
    told = Told(store, clock, "dead")
    job = job_in(store, State.HELD)
    move(store, job.id, job.state, job.fence, acts.resolve(job, "fail", clock.wall(), actor="ann"))
    assert store.journal(job.id, kinds=["dead"]) != []
    assert told.look() == []


def test_payloads_arguments_and_results_are_never_told(store: Store, clock: FakeClock) -> None:
    told = Told(store, clock)
    job = start(store, payload='{"card": "4111-1111"}', attempts_max=1)
    settle(store, job, Failed("card refused", {"traceback": "in charge: card=4111-1111"}))
    told.look()
    [message] = told.ear.heard
    assert b"card refused" in message.body(store.url)
    assert b"4111" not in message.body(store.url)


def crash(store: Store, clock: FakeClock, job: Any) -> None:
    settle(store, job, Lost("exit", "its process was killed", {"worker": "box/1", "host": "h"}))
    clock.advance(2.0)


def test_a_job_is_told_when_its_crashes_reach_the_limit(store: Store, clock: FakeClock) -> None:
    told = Told(store, clock, "crashes", crashes=2)
    job = start(store, task="bad", crashes_max=9, attempts_max=9, base_s=0.0, cap_s=0.0)
    crash(store, clock, job)
    assert told.look() == []
    crash(store, clock, again(store, row(store, job.id)))
    assert told.look() == [("crashes", "new", "bad")]
    assert told.ear.heard[0].text.startswith(f"job {job.id} (bad) has crashed 2 times")


def test_a_late_notifier_counts_earlier_crashes(store: Store, clock: FakeClock) -> None:
    """Three crashes lie in the journal, and the row knows only their number by now: the first was below the limit."""
    job = start(store, crashes_max=9, attempts_max=9, base_s=0.0, cap_s=0.0)
    for _ in range(3):
        crash(store, clock, job)
        job = again(store, row(store, job.id))
    book = notifier.JournalReader(store)
    assert [line.crashes for line in book.read(clock.wall(), 600)] == [1, 2, 3]


def test_false_positives_are_counted_as_the_report_counts_them(store: Store, clock: FakeClock) -> None:
    told = Told(store, clock, "false_positives")
    for _ in range(30):
        settle(store, start(store), EXPIRED)
    returned = [start(store) for _ in range(2)]
    for job in returned:
        settle(store, job, EXPIRED)
    assert told.look() == []
    for job in returned:
        assert settle(store, job, Succeeded()) is Reply.REFUSED  # its late report, which is journalled
    assert told.look() == [("false_positives", "new", None)]
    numbers = told.ear.heard[0].numbers
    report = zombies_view(look_back(store, 3600))
    assert numbers["rate"] == report["false_positives"]["rate"]
    assert (numbers["zombies"], numbers["false_positives"]) == (report["zombies"], 2)
    assert report["false_positives"]["too_many"]


def test_a_storm_is_told_once_as_a_problem_of_the_fleet_and_then_that_it_is_over(
    store: Store, clock: FakeClock
) -> None:
    told = Told(store, clock, "zombie_rate")
    for number in range(24):
        worker = enrol(store, name=f"box/{number % 6}")
        job = start(store, worker, task=f"t{number % 5}", on_crash="fail")
        settle(store, job, Lost("exit", "it was killed", {"host": "h"}))
    assert look_all(clock, told, s=100) == [("zombie_rate", "new", None)]
    assert told.ear.heard[0].numbers["concerns"] == "fleet"
    assert look_all(clock, told, s=600) == [("zombie_rate", "over", None)]


def test_isolated_jobs_that_die_under_one_worker_are_told_as_their_task(store: Store, clock: FakeClock) -> None:
    told = Told(store, clock, "zombie_rate")
    worker = enrol(store)
    found = {"worker": "box/1", "host": "h", "isolated": True}
    for _ in range(21):
        job = start(store, worker, task="bad", on_crash="fail")
        settle(store, job, Lost("exit", "its process was killed by SIGSEGV", found, suspects=1))
    assert told.look() == [("zombie_rate", "new", None)]
    numbers = told.ear.heard[0].numbers
    assert (numbers["concerns"], numbers["workers"]) == ("task", 1)


def test_very_many_lines_are_read_in_pages_and_no_more_are_kept_than_fit(
    clock: FakeClock, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifier, "EVENTS", 3)
    monkeypatch.setattr(notifier, "JOBS", 2)
    for _ in range(10):
        settle(store, start(store, attempts_max=1), Failed("no luck"))
        clock.advance(1)
    book = notifier.JournalReader(store)
    assert len(book.read(clock.wall(), 600)) == 10
    assert len(book.read(clock.wall(), 600)) == 10
    monkeypatch.setattr(notifier, "LINES_MAX", 4)
    assert [line.at for line in book.read(clock.wall(), 600)] == [clock.wall() - n for n in (4, 3, 2, 1)]


def test_a_line_that_becomes_visible_late_is_not_left_out(store: Store, clock: FakeClock) -> None:
    """It bears the instant at which its transaction wrote it, and others looked before that was committed."""
    told = Told(store, clock)
    look_all(clock, told, s=60)
    now = clock.wall()
    clock.set_wall(now - 30)
    job_in(store, State.DEAD, task="late")
    clock.set_wall(now)
    assert told.look() == [("dead", "new", "late")]


# ------------------------------------------------------------------------------------------- one of many


def test_ten_tellers_tell_an_incident_once(store: Store, clock: FakeClock) -> None:
    notifiers = [Told(store, clock, name=f"w{number}") for number in range(10)]
    look_all(clock, *notifiers, s=20)
    hold(store)
    assert look_all(clock, *notifiers, s=60) == [("held", "new", "charge")]


def test_a_successor_reports_nothing_twice_omits_nothing_and_reports_the_end(store: Store, clock: FakeClock) -> None:
    first, second = Told(store, clock), Told(store, clock)
    job_in(store, State.DEAD, task="old")
    assert look_all(clock, first, second, s=60) == [("dead", "new", "old")]
    job_in(store, State.DEAD, task="unseen")  # the first one dies before it looks again
    assert look_all(clock, second, s=TTL_S + LOOK_S) == [("dead", "new", "unseen")]
    assert look_all(clock, second, s=600) == [("dead", "over", "old"), ("dead", "over", "unseen")]


@pytest.mark.parametrize("gap_s", [3, TTL_S + 2, 70])
def test_a_restart_after_a_death_tells_nothing_twice(store: Store, clock: FakeClock, gap_s: float) -> None:
    job_in(store, State.DEAD)
    first = Told(store, clock)
    assert len(look_all(clock, first, s=60)) == 1
    clock.advance(gap_s)
    assert look_all(clock, Told(store, clock), s=60) == []


@pytest.mark.parametrize("gap_s", [3, TTL_S + 2, 70])
def test_what_ended_before_a_death_is_told_neither_as_new_nor_as_over_again(
    store: Store, clock: FakeClock, gap_s: float
) -> None:
    first, standby = Told(store, clock), Told(store, clock)
    held, dead = row(store, hold(store)), job_in(store, State.DEAD, task="mail")
    asked = park(store, start(store, task="order", workflow=True), "signal:approve:2", question="Ship it?")
    assert len(look_all(clock, first, standby, s=LOOK_S)) == 3
    move(store, held.id, held.state, held.fence, acts.resolve(held, "fail", clock.wall(), actor="ann"))
    move(store, asked.id, asked.state, asked.fence, acts.cancel(asked, actor="ann"))
    move(store, dead.id, dead.state, dead.fence, acts.revive(dead, clock.wall(), actor="ann"))
    over = [("held", "over", "charge"), ("held", "over", "order")]
    assert sorted(look_all(clock, first, standby, s=2 * LOOK_S)) == over
    clock.advance(gap_s)
    successor = standby if gap_s < TTL_S else Told(store, clock)
    assert look_all(clock, successor, s=2 * TTL_S) == []
    assert look_all(clock, successor, s=600) == [("dead", "over", "mail")]


def test_what_was_told_is_left_for_the_next_one_at_the_next_look(store: Store, clock: FakeClock) -> None:
    """Its end is told by whoever comes after, although the first one has died a moment after that look."""
    first, held = Told(store, clock), row(store, hold(store))
    assert first.look() == [("held", "new", "charge")]
    clock.advance(1.0)
    assert first.look() == []
    move(store, held.id, held.state, held.fence, acts.resolve(held, "done", clock.wall(), actor="ann"))
    clock.advance(TTL_S)
    assert Told(store, clock).look() == [("held", "over", "charge")]


def test_a_note_is_left_only_when_rules_are_new_or_something_was_told(store: Store, clock: FakeClock) -> None:
    notes: list[str | None] = []

    class Watching(Away):
        def acquire(self, name: str, holder: str, ttl_s: float, note: str | None = None) -> Any:
            notes.append(note)
            return store.acquire(name, holder, ttl_s, note)

    told = Told(Watching(store), clock)  # type: ignore[arg-type]
    look_all(clock, told, s=60)
    assert len([note for note in notes if note is not None]) == 1
    hold(store)
    look_all(clock, told, s=60)
    assert len([note for note in notes if note is not None]) == 2
    told.stop()
    look_all(clock, Told(Watching(store), clock), s=60)  # type: ignore[arg-type]
    assert len([note for note in notes if note is not None]) == 2, "a successor with the same rules leaves none"


def test_the_note_has_the_rules_and_the_newest_messages_for_people(
    store: Store, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notes, "MESSAGES_MAX", 2)
    first = Told(store, clock, "held", "dead", again_s=0)
    for task in ("a", "b", "c"):
        job_in(store, State.DEAD, task=task)
        first.look()
        clock.advance(LOOK_S)
    first.stop()
    second = Told(store, clock, "held", "dead", again_s=0)
    job_in(store, State.DEAD, task="d")
    second.look()
    second.stop()
    [duty] = store.duties()
    [note] = notes.notes_in(duty.note)
    assert note.rule is not None
    assert (note.rule.on, note.rule.channels) == (("held", "dead"), ("ear",))
    assert note.rule.limits["again_s"] == 0
    assert [(each.kind, each.status, each.task, each.jobs) for each in note.messages] == [
        ("dead", "new", "c", 1),
        ("dead", "new", "d", 1),
    ]
    assert {task for _, task, _ in note.open} == {"a", "b", "c", "d"}


def test_the_note_of_an_earlier_version_is_continued(store: Store, clock: FakeClock) -> None:
    first = Told(store, clock)
    hold(store)
    first.look()
    left = first._teller._note()
    old = msgspec.json.encode([Reported(each.open, each.lines) for each in notes.notes_in(left)]).decode()
    first.stop()
    holder = store.acquire(store.duties()[0].name, "old", 1.0)
    assert holder is not None
    store.resign(holder, old)
    assert Told(store, clock).look() == []


def test_what_was_settled_while_nobody_was_there_is_not_told_and_the_rest_is_counted(
    store: Store, clock: FakeClock
) -> None:
    ids = [hold(store) for _ in range(3)]
    gone = row(store, ids[-1])
    move(store, gone.id, gone.state, gone.fence, acts.resolve(gone, "fail", clock.wall(), actor="ann"))
    died, revived = (job_in(store, State.DEAD, task="mail") for _ in range(2))
    move(store, revived.id, revived.state, revived.fence, acts.revive(revived, clock.wall(), actor="ann"))
    alone = job_in(store, State.DEAD, task="alone")
    delete(store, alone.id, alone.state, alone.fence)
    clock.advance(70)
    told = Told(store, clock)
    assert sorted(told.look()) == [("dead", "new", "mail"), ("held", "new", "charge")]
    listed = {message.kind: ({job["id"] for job in message.jobs}, message.jobs_concerned) for message in told.ear.heard}
    assert listed == {"held": (set(ids[:2]), 2), "dead": ({died.id}, 1)}


def test_very_many_held_jobs_are_counted_in_pages(
    store: Store, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifier, "JOBS", 2)
    told = Told(store, clock, "held")
    for _ in range(5):
        hold(store)
    assert told.look() == [("held", "new", "charge")]
    clock.advance(300)
    hold(store)
    assert told.look() == [("held", "more", "charge")]
    assert told.ear.heard[-1].jobs_concerned == 6


def test_a_successor_of_a_stopped_notifier_continues_at_once_and_reports_nothing_twice(
    store: Store, clock: FakeClock
) -> None:
    first, second = Told(store, clock), Told(store, clock)
    old = job_in(store, State.DEAD, task="old")
    assert look_all(clock, first, second, s=20) == [("dead", "new", "old")]
    more = job_in(store, State.DEAD, task="old")  # is told later, with others of its task
    job_in(store, State.DEAD, task="last")
    assert look_all(clock, first, second) == [("dead", "new", "last")]
    first.stop()
    job_in(store, State.DEAD, task="after")
    assert second.look() == [("dead", "new", "after")]
    assert look_all(clock, second, s=600)[0] == ("dead", "more", "old")
    told = [job["id"] for ear in (first.ear, second.ear) for message in ear.heard for job in message.jobs]
    assert (told.count(old.id), told.count(more.id), len(told)) == (1, 1, 4)


def test_a_restart_goes_on_at_once_and_tells_the_end_of_what_was_told(store: Store, clock: FakeClock) -> None:
    first, held = Told(store, clock), row(store, hold(store))
    assert first.look() == [("held", "new", "charge")]
    first.stop()
    move(store, held.id, held.state, held.fence, acts.resolve(held, "done", clock.wall(), actor="ann"))
    assert Told(store, clock).look() == [("held", "over", "charge")]


def test_a_notifier_that_cannot_read_another_versions_note_reports_its_window(
    store: Store, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Told(store, clock)
    hold(store)
    first.look()
    resign = type(store).resign
    monkeypatch.setattr(type(store), "resign", lambda self, duty, _: resign(self, duty, '[{"other": 1}]'))
    first.stop()
    assert Told(store, clock).look() == [("held", "new", "charge")]


def test_the_note_is_not_lost_with_a_look_that_fails(store: Store, clock: FakeClock) -> None:
    away = Away(store)
    first, second = Told(store, clock), Told(away, clock)  # type: ignore[arg-type]
    hold(store)
    assert len(first.look()) == 1
    first.stop()
    away.failing = {"journal": 0}
    for _ in range(3):  # it has the duty by now, and renews it
        with pytest.raises(StoreUnavailable):
            second.look()
        clock.advance(LOOK_S)
    away.failing = {}
    assert second.look() == []


def test_what_happened_while_nobody_was_there_is_told_at_the_start(store: Store, clock: FakeClock) -> None:
    hold(store)
    clock.advance(300)
    assert Told(store, clock).look() == [("held", "new", "charge")]


def test_programs_with_other_alerts_have_a_duty_of_their_own(store: Store, clock: FakeClock) -> None:
    first, second = Told(store, clock), Told(store, clock, "held")
    hold(store)
    assert look_all(clock, first, second) == [("held", "new", "charge")] * 2


class Away:
    """A store that is away while `away`, or for the calls that are `failing`, after so many of them that work."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.away = False
        self.refused = 0  # calls, while it was away
        self.failing: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        if name in self.failing:
            self.failing[name] -= 1
            if self.failing[name] < 0:
                raise StoreUnavailable("it is away")
        if self.away and name in ("acquire", "journal", "now"):
            self.refused += 1
            raise StoreUnavailable("it is away")
        return getattr(self._store, name)


def test_an_outage_of_the_store_is_survived_and_nothing_is_left_out(store: Store) -> None:
    clock, away, ear = FakeClock(), Away(store), Ear()
    with Notifier(away, clock, [alert(ear, "held")], name="a") as telling:  # type: ignore[arg-type]
        away.away = True
        until(lambda: away.refused > 0)
        hold(store)
        away.away = False
        until(lambda: bool(ear.heard))
        assert has_sent(telling, PATIENCE_S)
    assert [message.status for message in ear.heard] == ["new"]


def test_a_store_that_fails_in_the_middle_of_a_look_costs_no_message(store: Store, clock: FakeClock) -> None:
    away = Away(store)
    told = Told(away, clock, "held", "dead")  # type: ignore[arg-type]
    told.look()
    job_in(store, State.DEAD, task="mail")
    hold(store)
    away.failing = {"find": 1}  # the second time: when it asks what is still held
    with pytest.raises(StoreUnavailable):
        told.look()
    away.failing = {}
    assert sorted(told.look()) == [("dead", "new", "mail"), ("held", "new", "charge")]


def test_what_the_end_itself_brought_is_told(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifier, "LEAVE_S", PATIENCE_S)
    looked = threading.Event()

    class Clock(SystemClock):
        def wait(self, event: threading.Event, timeout_s: float) -> bool:
            looked.set()
            return super().wait(event, timeout_s)

    ear = Ear()
    with Notifier(store, Clock(), [alert(ear, "held")], name="a", interval_s=FOR_EVER_S):
        assert looked.wait(PATIENCE_S)
        hold(store)  # between two looks
    assert [message.kind for message in ear.heard] == ["held"]


# --------------------------------------------------------------------------------------------- channels


def test_a_failing_channel_is_tried_a_few_times_with_longer_and_longer_pauses() -> None:
    clock, ear = FakeClock(), Ear(*[Sent(False, "no", again=True)] * 99)
    outbox = Outbox(ear, clock, "memory://")
    outbox.put(a_test(0.0))
    assert outbox.flush(PATIENCE_S)
    assert len(ear.heard) == TRIES
    assert clock.lease() == 1000 + 1 + 4 + 16


def test_what_cannot_get_better_is_not_tried_again() -> None:
    ear = Ear(Sent(False, "answered 404"), Sent(True, "fine"))
    outbox = Outbox(ear, FakeClock(), "memory://")
    outbox.put(a_test(0.0))
    assert outbox.flush(PATIENCE_S)
    assert len(ear.heard) == 1


def message(status: Any, task: str = "t", kind: str = "dead") -> Message:
    return Message(kind=kind, status=status, text="x", task=task, since="", at="")


def test_a_failure_is_logged_once_per_incident(caplog: pytest.LogCaptureFixture) -> None:
    ear = Ear(*[Sent(False, "answered 404")] * 6)
    outbox = Outbox(ear, FakeClock(), "memory://")
    for each in [message("new"), message("more"), message("more"), message("over"), message("new", "other")]:
        outbox.put(each)
    assert outbox.flush(PATIENCE_S)
    assert [record.getMessage() for record in caplog.records] == [
        "ear: the alert on dead (new) was not sent: answered 404"
    ] * 2
    assert len(ear.heard) == 5


@pytest.mark.parametrize("hangs", [False, True], ids=["fails", "hangs"])
def test_a_teller_that_stops_says_which_alerts_a_failing_channel_has_not_taken(
    hangs: bool, caplog: pytest.LogCaptureFixture
) -> None:
    trying, go_on = threading.Event(), threading.Event()

    class Failing(Ear):
        def send(self, message: Message, url: str) -> Sent:
            super().send(message, url)
            if message.status == "test":
                return Sent(True, "fine")
            trying.set()
            if hangs:
                go_on.wait(FOR_EVER_S)
            return Sent(False, "answered 503", again=True)

        def close(self) -> None:
            go_on.set()

    outbox = Outbox(Failing(), SystemClock(), "memory://")
    for each in [a_test(0.0), message("new"), message("more"), message("new", kind="held")]:
        outbox.put(each)
    assert trying.wait(PATIENCE_S)
    outbox.close(0.05 if hangs else PATIENCE_S)
    assert caplog.messages[-1] == "ear: stopping with 3 alerts not yet delivered (2 dead, 1 held)"


def test_a_channel_that_raises_stops_nothing_and_shows_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Raising(Ear):
        def send(self, message: Message, url: str) -> Sent:
            super().send(message, url)
            raise RuntimeError(SECRET)

    ear = Raising()
    outbox = Outbox(ear, FakeClock(), "memory://")
    outbox.put(message("new", "a"))
    outbox.put(message("new", "b"))
    assert outbox.flush(PATIENCE_S)
    assert len(ear.heard) == 2
    assert "RuntimeError" in caplog.text
    assert SECRET not in caplog.text


def test_no_more_messages_wait_than_there_is_room_for(caplog: pytest.LogCaptureFixture) -> None:
    stuck, go_on = threading.Event(), threading.Event()

    class Slow(Ear):
        def send(self, message: Message, url: str) -> Sent:
            stuck.set()
            go_on.wait(FOR_EVER_S)
            return super().send(message, url)

    ear = Slow()
    outbox = Outbox(ear, SystemClock(), "memory://")
    outbox.put(message("new", "0"))
    assert stuck.wait(PATIENCE_S)
    for number in range(WAITING_MAX + 50):
        outbox.put(message("new", str(number + 1)))
    assert caplog.text.count("100 messages wait for it already") == 50
    go_on.set()
    assert outbox.flush(PATIENCE_S)
    assert len(ear.heard) == 1 + WAITING_MAX


def test_a_channel_that_hangs_holds_up_neither_the_others_nor_the_next_look(store: Store, clock: FakeClock) -> None:
    go_on = threading.Event()

    class Hanging(Ear):
        def send(self, message: Message, url: str) -> Sent:
            go_on.wait(FOR_EVER_S)
            return super().send(message, url)

    slow, ear = Hanging(), Ear()
    telling = Notifier(store, clock, [Alert(KINDS, Thresholds(), (slow, ear))], name="a")
    for task in ("first", "second"):
        job_in(store, State.DEAD, task=task)
        telling.look()
    until(lambda: len(ear.heard) == 2)
    assert slow.heard == []
    go_on.set()
    assert has_sent(telling, PATIENCE_S)
    assert [message.task for message in slow.heard] == ["first", "second"]


def test_the_log_gets_one_line_each(caplog: pytest.LogCaptureFixture, store: Store, clock: FakeClock) -> None:
    caplog.set_level(logging.INFO, "holdfast.alerts")
    telling = Notifier(store, clock, [alert(LogChannel())], name="a")
    settle(store, start(store, task="t", attempts_max=1), Failed("no\nluck token=hunter2"))
    telling.look()
    assert has_sent(telling, PATIENCE_S)
    [line] = [each.getMessage() for each in caplog.records if "alert" in each.getMessage()]
    assert line.startswith("alert: dead: job ")
    assert "no luck token=***" in line


def test_an_app_declares_its_alerts_and_shows_no_secret() -> None:
    app = App("memory://")
    app.alert(log=True, on=["held"])
    app.alert(
        command=["true"],
        webhook="https://hooks.example.org/k3y",
        secret=SECRET,
        zombies_max=50,
        window_s=60,
        again_s=30,
    )
    first, second = app.alerts
    assert first.on == ("held",)
    assert [channel.name for channel in second.channels] == ["command true", "webhook https://hooks.example.org/…"]
    assert second.limits == Thresholds(zombies_max=50, window_s=60, again_s=30)
    assert SECRET not in repr(app.alerts)
    assert "k3y" not in repr(app.alerts)
