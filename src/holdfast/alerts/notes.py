"""The note that a notifier leaves with its duty: what it has reported, its rules, and its newest messages.

The next notifier continues from it, and people read it. It costs no table and no write per job: the row of the duty is
written when a message was sent, and once when rules are new.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict

import msgspec

from holdfast.alerts import Alert
from holdfast.alerts.messages import Message, one_line
from holdfast.alerts.rules import Reported

MESSAGES_MAX = 30  # of one alert
TEXT_MAX = 300


class RuleNote(msgspec.Struct, frozen=True):
    """The kinds that one alert reports, its limits and its channels. The names of channels have no secrets."""

    on: tuple[str, ...]
    limits: dict[str, float]
    channels: tuple[str, ...]


class MessageNote(msgspec.Struct, frozen=True):
    """A message that was handed to the channels."""

    at: str
    kind: str
    status: str
    text: str
    task: str | None = None
    queue: str | None = None
    jobs: int = 0


class AlertNote(Reported):
    """One alert of a note. Earlier versions have left only what `Reported` has, and read nothing else."""

    rule: RuleNote | None = None
    messages: tuple[MessageNote, ...] = ()

    def with_reported(self, reported: Reported) -> AlertNote:
        """Return the same with other incidents."""
        return AlertNote(reported.open, reported.lines, self.rule, self.messages)

    def with_messages(self, messages: Iterable[Message]) -> AlertNote:
        """Return the same with more messages; the oldest are dropped."""
        told = (
            MessageNote(
                *(each.at, each.kind, each.status, one_line(each.text, TEXT_MAX)),
                *(each.task, each.queue, each.jobs_concerned),
            )
            for each in messages
        )
        return AlertNote(self.open, self.lines, self.rule, (*self.messages, *told)[-MESSAGES_MAX:])


def rule_of(alert: Alert) -> RuleNote:
    """Return what people are shown of an alert."""
    return RuleNote(alert.on, asdict(alert.limits), tuple(channel.name for channel in alert.channels))


def continued(notes: Sequence[AlertNote], alerts: Collection[Alert]) -> list[AlertNote]:
    """Return the notes of these alerts: the messages of the last notifier, and today's rules."""
    before = notes if len(notes) == len(alerts) else [AlertNote([], {}) for _ in alerts]
    return [
        AlertNote(note.open, note.lines, rule_of(alert), note.messages)
        for note, alert in zip(before, alerts, strict=True)
    ]


def encode(notes: Sequence[AlertNote]) -> str:
    return msgspec.json.encode(notes).decode()


def notes_in(text: str | None) -> list[AlertNote]:
    """Return what the last notifier has left for each alert; nothing if another version has written the note."""
    try:
        return msgspec.json.decode(text or "[]", type=list[AlertNote])
    except msgspec.MsgspecError:
        return []
