"""The notifier: looks into the journal every few seconds, under a duty, and hands messages to the channels.

One of the programs with the same alerts on a store holds the duty and sends. With the duty it leaves a note of what it
has sent: one look later, and when it stops. The next notifier, also after a restart, continues from there. After a
death, the messages of the last look may be sent twice. Messages that a failing channel has not taken are lost when
their notifier ends, which counts them in the log.

The look at the journal has a thread of its own, and so has each channel: recovery waits for none of them.

A short program, such as `holdfast scan` or `app.tick()`, sends once what happened while it ran, unless a longer-lived
one has the duty. It gives the duty back before it sends: the next such program must not wait for it.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any, Literal

import msgspec

from holdfast.alerts import Alert, fingerprint
from holdfast.alerts.channels import Channel
from holdfast.alerts.messages import Message
from holdfast.alerts.notes import AlertNote, continued, encode, notes_in
from holdfast.alerts.rules import KINDS_OF_JOURNAL, LINES_MAX, STANDING, AlertKind, Incidents, Line, Reported
from holdfast.alerts.standing import StandingReader
from holdfast.clock import Clock, pause
from holdfast.core.autopsy import silence_of
from holdfast.core.crash_fingerprint import death_of
from holdfast.core.machine import State
from holdfast.core.records import Duty, Event, Filter
from holdfast.core.replay import ASKED_KINDS, asked_since
from holdfast.core.text import counted
from holdfast.errors import HoldfastError
from holdfast.ids import new_id
from holdfast.runtime.duties import DutyHolder
from holdfast.runtime.hooks import Hooks
from holdfast.runtime.service import Service
from holdfast.stores.protocol import Store, rows_of

log = logging.getLogger("holdfast.alerts")

LOOK_S = 5.0  # how often to look
TTL_S = 15.0  # of the duty
OVERLAP_S = 60.0  # a line may become visible this long after its instant
WAITING_MAX = 100  # messages that wait for a slow channel
TRIES = 4
TURN_S = 1.0  # how long a program that does not stay waits for others of its kind to give the duty back,
TURNS = 20  # and how often it asks meanwhile
PAUSE_S = 1.0  # before the second try; then four times as long each
LEAVE_S = 5.0  # how long the end waits for the store, and for the channels
EVENTS = 2_000
JOBS = 200
REASON_MAX = 1_000  # characters that are kept of an exception's text
KINDS = ("zombie", "stale_report", "held", "asked", "dead")


class Notifier:
    """The alerts of one program. A context manager: it tells while the block runs."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        alerts: Sequence[Alert],
        *,
        name: str,
        interval_s: float = LOOK_S,
        stays: bool = True,
    ) -> None:
        self._store = store
        self._clock = clock
        self._alerts = alerts
        self._span_s = max((alert.limits.longest_s for alert in alerts), default=0.0)
        self._post = DutyHolder(store, clock, f"alerts:{fingerprint(alerts)}", f"{name}:{new_id()}", TTL_S, Hooks())
        self._outboxes = {channel: Outbox(channel, clock, store.url) for alert in alerts for channel in alert.channels}
        self._term = 0
        self._note_is_old = False  # something was sent since it was left, or the rules are others
        self._notes: list[AlertNote] = []
        self._book = JournalReader(store)
        self._rows = JobRows(store)
        on = frozenset[AlertKind](kind for alert in alerts for kind in alert.on)
        window_s = max((alert.limits.window_s for alert in alerts), default=0.0)
        self._standing = StandingReader(store, on, window_s, stays=stays)
        self._incidents: list[Incidents] = []
        self._service = Service(
            "holdfast-alerts", self.look, clock, log, interval_s, "alerts wait until it is back", leave=self._leave
        )

    def __enter__(self) -> Notifier:
        if self._alerts:
            self._service.start()
        return self

    def __exit__(self, *exc: object) -> None:
        """Look once more, for what the end itself has brought, and let the channels finish within a few seconds."""
        self._service.stop(LEAVE_S)
        for outbox in self._outboxes.values():
            outbox.hurry()
        give_up_at = self._clock.lease() + LEAVE_S
        for outbox in self._outboxes.values():
            outbox.close(max(0.0, give_up_at - self._clock.lease()))

    def look(self) -> None:
        """Tell what is new, if the duty is ours. Raises `StoreError` when the store does."""
        duty = self._post.duty(self._note() if self._note_is_old else None)
        self._note_is_old = False
        if duty is None:
            self._term = 0
            return
        moment = self._store.now()
        now = moment.wall
        lines = [*self._book.read(now, self._span_s), *self._standing.lines(moment)]
        if duty.term != self._term:
            self._begin(duty.note)
            self._term = duty.term
        self._update(lines, now)

    def _update(self, lines: Sequence[Line], now: float) -> None:
        for number, (alert, incidents) in enumerate(zip(self._alerts, self._incidents, strict=True)):
            messages = incidents.update(lines, now, self._rows)
            if messages:
                self._note_is_old = True
                self._notes[number] = self._notes[number].with_messages(messages)
            for message in messages:
                for channel in alert.channels:
                    self._outboxes[channel].put(message)

    def once(self, since: float, timeout_s: float, *, looks: bool = True) -> None:
        """Tell what happened since that wall time, as news, and end within about `timeout_s`.

        looks: tell also what stands, once, and its end: the note remembers what was sent. Raises `StoreError` when the
        store does. If another process keeps the duty, that process sends them.
        """
        news = bool(self._store.journal(kinds=KINDS, since=since, limit=1))
        looks = looks and self._standing.is_needed
        if not news and not looks:
            return
        give_up_at = self._clock.lease() + timeout_s
        standing = self._standing.lines(self._store.now()) if looks else []
        duty = self._takes_turn() if news or standing else self._post.duty()
        if duty is not None:
            now = self._store.now().wall
            lines = self._book.read(now, self._span_s)
            old = [line for line in lines if line.at < since]
            self._tell_once([*lines, *standing], old, notes_in(duty.note), now, looks)
        for outbox in self._outboxes.values():
            outbox.leave(max(0.0, give_up_at - self._clock.lease()))

    def _tell_once(
        self, lines: Sequence[Line], old: Sequence[Line], told: Sequence[AlertNote], now: float, looks: bool
    ) -> None:
        """Send what is new in these lines, and give the duty back with a note of what stands."""
        self._incidents = [Incidents(alert.on, alert.limits) for alert in self._alerts]
        self._notes = continued(told, self._alerts)
        for incidents, before in zip(self._incidents, self._notes, strict=True):
            incidents.resume_standing(before if looks else Reported([], {}))
            incidents.skip(old)
        self._update(lines, now)
        if looks:
            self._notes = [
                note.with_reported(Reported.joined(note.of(KINDS_OF_JOURNAL), incidents.reported().of(STANDING)))
                for incidents, note in zip(self._incidents, self._notes, strict=True)
            ]
        self._post.resign(encode(self._notes) if self._notes != list(told) else None)

    def resign(self) -> None:
        """Give the duty back, if it is ours, with a note of what was sent; never raises."""
        self._post.resign(self._note() if self._term else None)

    def _begin(self, note: str | None) -> None:
        self._incidents = [Incidents(alert.on, alert.limits) for alert in self._alerts]
        left = notes_in(note)
        self._notes = continued(left, self._alerts)
        self._note_is_old = self._notes != left
        for incidents, told in zip(self._incidents, self._notes, strict=True):
            incidents.resume(told)

    def _note(self) -> str:
        notes = zip(self._notes, self._incidents, strict=True)
        return encode([note.with_reported(incidents.reported()) for note, incidents in notes])

    def _takes_turn(self) -> Duty | None:
        """Take the duty; wait a little while another program that does not stay has it."""
        for left in reversed(range(TURNS)):
            if (duty := self._post.duty()) is not None:
                return duty
            if left:
                pause(TURN_S / TURNS)
        return None

    def _leave(self) -> None:
        try:
            self.look()
        except Exception as error:
            log.warning("alerts: the last look failed: %s", error)
        self.resign()


def tell_once(
    store: Store,
    clock: Clock,
    alerts: Sequence[Alert],
    *,
    name: str,
    since: float,
    timeout_s: float = LEAVE_S,
    looks: bool = True,
) -> None:
    """Tell what happened since that wall time, for a program that does not stay. A store that fails is only logged.

    looks: tell also what stands, such as a backlog.
    """
    if not alerts:
        return
    try:
        Notifier(store, clock, alerts, name=name, stays=False).once(since, timeout_s, looks=looks)
    except HoldfastError as error:
        log.error("alerts are not sent: %s", error)


class JobRows:
    """The rows of jobs, read from the store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def is_held(self, task: str) -> bool:
        waits = (Filter(states=(State.HELD,), task=task, limit=1), Filter(asking=True, task=task, limit=1))
        return any(self._store.find(where) for where in waits)

    def held(self, task: str) -> int:
        waits = (Filter(states=(State.HELD,), task=task, limit=JOBS), Filter(asking=True, task=task, limit=JOBS))
        return sum(self._count(where) for where in waits)

    def still(self, kind: Literal["held", "dead"], ids: Collection[str]) -> set[str]:
        jobs = rows_of(self._store, sorted(ids), JOBS)
        if kind == "dead":
            return {job.id for job in jobs if job.state is State.DEAD}
        return {job.id for job in jobs if job.state is State.HELD or job.question is not None}

    def _count(self, where: Filter) -> int:
        count = 0
        while page := self._store.find(where):
            count += len(page)
            where = msgspec.structs.replace(where, before=page[-1].id)
        return count


class JournalReader:
    """The lines of the journal that alerts are made of, read once each."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lines: dict[int, Line] = {}
        self._read_until = float("-inf")

    def read(self, now: float, span_s: float) -> list[Line]:
        """Return the lines of the last `span_s` seconds, oldest first."""
        new = self._new(max(now - span_s, min(self._read_until, now) - OVERLAP_S))
        self._lines |= {line.seq: line for line in self._lines_of(new)}
        kept = sorted(self._lines.values(), key=lambda line: (line.at, line.seq))[-LINES_MAX:]
        kept = [line for line in kept if line.at > now - span_s]
        self._lines = {line.seq: line for line in kept}
        self._read_until = now
        return kept

    def _new(self, since: float) -> list[Event]:
        """Return events that are not known yet, newest first. Acts of people are left out: people know of them."""
        events: list[Event] = []
        before = None
        while len(events) < LINES_MAX:
            page = self._store.journal(kinds=KINDS, since=since, before=before, limit=EVENTS)
            if not page:
                break
            events += [event for event in reversed(page) if event.seq not in self._lines and event.actor is None]
            before = page[0].seq
        return events

    def _lines_of(self, events: Sequence[Event]) -> list[Line]:
        ids = list(dict.fromkeys(event.job_id for event in events))
        jobs = {job.id: job for job in rows_of(self._store, ids, JOBS)}
        crashes = {job.id: job.crashes for job in jobs.values()}
        lines = []
        for event in events:
            job = jobs.get(event.job_id)
            if event.kind == "asked" and not self._is_first(event):
                continue
            lines.append(
                Line(
                    seq=event.seq,
                    at=event.at,
                    kind=event.kind,
                    job_id=event.job_id,
                    fence=event.fence,
                    task=job.task if job is not None else "(deleted)",
                    queue=job.queue if job is not None else None,
                    death=death_of(event),
                    worker_id=event.worker or "",
                    worker=_text(event.detail, "worker"),
                    host=_text(event.detail, "host"),
                    reason=_text(event.detail, "reason", "note", "cause", "question"),
                    decision=_text(event.detail, "decision"),
                    silent_s=silence_of(event.at, event.detail) if event.kind == "zombie" else None,
                    crashes=crashes.get(event.job_id, 0),
                )
            )
            if event.kind == "zombie" and event.job_id in crashes:
                crashes[event.job_id] -= 1  # the row counts them all, and this walk goes back in time
        return lines

    def _is_first(self, event: Event) -> bool:
        """Say whether the question is asked for the first time: a workflow that parks again asks it again."""
        asked = self._store.journal(event.job_id, kinds=ASKED_KINDS, limit=EVENTS)
        before = [each for each in asked if each.seq <= event.seq]
        return asked_since(event.detail.get("name"), before) == event.at


class Outbox:
    """The messages for one channel, sent one after the other on a thread of its own."""

    def __init__(self, channel: Channel, clock: Clock, url: str) -> None:
        self._channel = channel
        self._clock = clock
        self._url = url
        self._messages: queue.Queue[Message | None] = queue.Queue(WAITING_MAX)  # None: no more will come
        self._untold: list[Message] = []  # those that wait, and since it stops those that were given up
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._complained: set[tuple[str, str]] = set()  # incidents of which it was said that they are not told

    def put(self, message: Message) -> None:
        """Send it soon; never waits. When far too many wait, the newest is dropped and logged."""
        self._untold.append(message)
        try:
            self._messages.put_nowait(message)
        except queue.Full:
            self._untold.remove(message)
            self._complain(message, f"{WAITING_MAX} messages wait for it already")
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="holdfast-alert", daemon=True)
            self._thread.start()

    def flush(self, timeout_s: float) -> bool:
        with self._messages.all_tasks_done:
            return self._messages.all_tasks_done.wait_for(lambda: self._messages.unfinished_tasks == 0, timeout_s)

    def hurry(self) -> None:
        """Try nothing twice any more."""
        self._stopping.set()

    def close(self, timeout_s: float) -> None:
        """Wait a little for what is left, and break it off then."""
        self.hurry()
        if not self.flush(timeout_s):
            self._channel.close()
            self.flush(1.0)
        if self._untold:
            log.error("%s: stopping with %s", self._channel.name, self._undelivered())

    def leave(self, timeout_s: float) -> None:
        """Wait a little for what is left. Then the thread sends the rest, once, and ends; the channel stays usable."""
        if not self.flush(timeout_s):
            log.error("%s: continuing with %s", self._channel.name, self._undelivered())
        self.hurry()
        with contextlib.suppress(queue.Full):
            self._messages.put_nowait(None)

    def _undelivered(self) -> str:
        untold = self._untold.copy()
        kinds = ", ".join(f"{number} {kind}" for kind, number in Counter(each.kind for each in untold).items())
        return f"{counted(len(untold), 'alert')} not yet delivered ({kinds})"

    def _serve(self) -> None:
        while (message := self._messages.get()) is not None:
            delivered = False
            try:
                delivered = self._send(message)
            except Exception as error:
                self._complain(message, type(error).__name__)  # its text may have what must not be shown
            if delivered or not self._stopping.is_set():
                self._untold.remove(message)
            self._messages.task_done()

    def _send(self, message: Message) -> bool:
        """Return whether it was delivered; if not, that was logged."""
        pause_s = PAUSE_S
        for left in reversed(range(TRIES)):
            sent = self._channel.send(message, self._url)
            if sent.told:
                log.debug("%s: delivered %s (%s): %s", self._channel.name, message.kind, message.status, sent.words)
                self._complained.discard(message.about)
                return True
            if not left or not sent.again or self._stopping.is_set():
                self._complain(message, sent.words)
                break
            self._clock.wait(self._stopping, pause_s)
            pause_s *= 4
        return False

    def _complain(self, message: Message, why: str) -> None:
        if message.about in self._complained:
            return
        self._complained.add(message.about)
        log.error("%s: the alert on %s (%s) was not sent: %s", self._channel.name, message.kind, message.status, why)
        if message.status == "over":
            self._complained.discard(message.about)


def _text(detail: dict[str, Any], *names: str) -> str:
    """Return the first of these details that is there."""
    return next((str(detail[name])[:REASON_MAX] for name in names if detail.get(name) is not None), "")
