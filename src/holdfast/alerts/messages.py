"""Make the messages: bounded in size, on one line where people read it, and free of secrets.

A message names jobs, tasks, workers and reasons. It never has a payload, an argument or a result; a reason is what
an exception said, so it is cut short and passwords in it are hidden.
"""

from __future__ import annotations

import hashlib
from typing import Any, Literal

import msgspec

from holdfast.core.durations import iso
from holdfast.core.text import hide_secrets
from holdfast.stores.urls import shown_url

BODY_MAX = 16_000  # bytes: less than a pipe holds
JOBS_MAX = 10
NAME_MAX = 200
REASON_MAX = 300
TEXT_MAX = 600
SLACK_JOBS_MAX = 3


WebhookForm = Literal["json", "slack"]


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One alert."""

    kind: str
    status: Literal["new", "more", "over", "test"]
    text: str
    task: str | None  # None: it is about the fleet, or about a queue
    queue: str | None = None
    since: str
    at: str
    jobs_concerned: int = 0
    jobs: list[dict[str, Any]] = []  # the newest, at most `JOBS_MAX`
    numbers: dict[str, Any] = {}

    @property
    def about(self) -> tuple[str, str]:
        """Name the incident: kind and task, or queue. Messages about the same one have the same."""
        return self.kind, self.task or self.queue or ""

    def body(self, url: str) -> bytes:
        """Write it as JSON, at most `BODY_MAX` bytes. `url` is that of the store, and shown without its password."""
        told: dict[str, Any] = {
            "id": hashlib.sha256(repr((self.about, self.status, self.at, self.since)).encode()).hexdigest()[:32],
            "kind": self.kind,
            "status": self.status,
            "text": one_line(self.text, TEXT_MAX),
            "task": None if self.task is None else one_line(self.task, NAME_MAX),
            "queue": None if self.queue is None else one_line(self.queue, NAME_MAX),
            "since": self.since,
            "at": self.at,
            "store": one_line(shown_url(url), NAME_MAX),
            "jobs_concerned": self.jobs_concerned,
            "jobs": [_shown(job) for job in self.jobs],
            "numbers": self.numbers,
        }
        while len(body := msgspec.json.encode(told)) > BODY_MAX and told["jobs"]:
            told["jobs"].pop()
        return body


def for_slack(message: Message, url: str) -> bytes:
    """Write a message as Slack, Mattermost and others read it: one text, in which nobody is called by name."""
    told = one_line(message.text, TEXT_MAX)
    store = one_line(shown_url(url), NAME_MAX)
    first = f"{_MARKS[message.status]} {message.kind.replace('_', ' ')}: {told}"
    lines = [first, *(f"• {job['id']} {job['task']}" for job in map(_shown, message.jobs[:SLACK_JOBS_MAX]))]
    text = "\n".join([*lines, f"{store}, since {message.since}"])
    for char, written in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):  # else <!channel> would call everybody
        text = text.replace(char, written)
    return msgspec.json.encode({"text": text})


_MARKS = {"new": "🔴", "more": "🟠", "over": "🟢", "test": "⚪"}


def a_test(wall: float) -> Message:
    """Make a message that says that nothing is wrong."""
    at = iso(wall)
    text = "a test of this channel; nothing is wrong"
    return Message(kind="test", status="test", text=text, task=None, since=at, at=at)


def one_line(text: str, most: int) -> str:
    """Return text that fits a log line: no breaks, no control characters, passwords hidden, cut at a limit."""
    text = hide_secrets(text[: 4 * most])
    text = "".join(char if char.isprintable() else " " for char in text)
    text = " ".join(text.split())
    return text if len(text) <= most else text[: most - 1] + "…"


def span(seconds: float) -> str:
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s"


def _shown(job: dict[str, Any]) -> dict[str, Any]:
    most = {"reason": REASON_MAX}
    return {
        name: one_line(value, most.get(name, NAME_MAX)) if isinstance(value, str) else value
        for name, value in job.items()
    }
