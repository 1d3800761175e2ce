"""Alerts as plain data: the rules in force, the incidents that are open, and what was sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.alerts.notes import AlertNote, MessageNote, RuleNote, notes_in
from holdfast.alerts.rules import OF_QUEUES, STANDING
from holdfast.core.durations import iso
from holdfast.core.records import Duty
from holdfast.insight.duties import holder_name, is_held
from holdfast.stores.protocol import Store
from holdfast.stores.rounds import together

DUTY = "alerts:"  # and the fingerprint of the alerts of a program
MESSAGES_MAX = 100
# The limits that decide on each kind.
_LIMITS: Mapping[str, tuple[str, ...]] = {
    "crashes": ("crashes",),
    "zombie_rate": ("zombies_max", "window_s"),
    "false_positives": ("false_max",),
    "backlog": ("backlog_s",),
    "no_worker": ("unserved_s",),
    "unknown_task": ("unserved_s",),
    "silent_worker": ("silent_s",),
    "recovery_rate": ("recovered_min",),
    "slow_detection": ("detection_s",),
    "error_rate": ("errors_max", "window_s"),
}


def alerts_view(store: Store) -> dict[str, Any]:
    """Show what alerts have reported, newest first, and their rules.

    It is read from the notes that notifiers leave with their duties: a program that has just started, or that was
    killed, may have sent a message that is not here.
    """
    duties, now = together(store.duties, store.now)
    noted = [(duty, notes_in(duty.note)) for duty in duties if duty.name.startswith(DUTY)]
    held = [(duty, notes) for duty, notes in noted if is_held(duty, now)]
    messages = [each for _, notes in noted for note in notes for each in note.messages]
    newest_first = sorted(messages, key=lambda each: each.at)[::-1]
    return {
        "rules": [_rule_view(note.rule, duty) for duty, notes in held for note in notes if note.rule is not None],
        "open": sorted(
            (each for duty, notes in noted for note in notes for each in _open(note, duty, held=is_held(duty, now))),
            key=lambda each: each["since"],
        ),
        "messages": [_message_view(each) for each in newest_first[:MESSAGES_MAX]],
    }


def _rule_view(rule: RuleNote, duty: Duty) -> dict[str, Any]:
    return {
        "sender": holder_name(duty),
        "channels": list(rule.channels),
        "on": [
            {"kind": kind, "limits": {name: rule.limits[name] for name in _LIMITS.get(kind, ()) if name in rule.limits}}
            for kind in rule.on
        ],
        "window_s": rule.limits.get("window_s"),
        "again_s": rule.limits.get("again_s"),
    }


def _open(note: AlertNote, duty: Duty, *, held: bool) -> list[dict[str, Any]]:
    """Show the incidents that are open. Without a notifier only those that stand are known to be: the end of the others
    is reported by nobody."""
    return [
        {
            "kind": kind,
            "task": None if kind in OF_QUEUES else about or None,
            "queue": about if kind in OF_QUEUES else None,
            "since": iso(incident.since),
            "told_at": iso(incident.told_at),
        }
        for kind, about, incident in note.open
        if held or kind in STANDING
    ]


def _message_view(message: MessageNote) -> dict[str, Any]:
    return {
        "at": message.at,
        "kind": message.kind,
        "status": message.status,
        "text": message.text,
        "task": message.task,
        "queue": message.queue,
        "jobs": message.jobs,
    }
