"""Propose a map from the definition of a table, its checks and the values that are in it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from holdfast.errors import UsageError
from holdfast.rescue.map import Value
from holdfast.rescue.tables import Column, Table

# Usual names of each column and value, the likeliest first.
_COLUMNS = {
    "id": ("id", "job_id", "task_id", "uuid", "pk"),
    "status": ("status", "state", "job_status", "job_state"),
    "started": (
        *("started_at", "started", "start_time", "claimed_at", "locked_at", "picked_at"),
        *("reserved_at", "run_started_at", "updated_at", "modified_at"),
    ),
    "attempts": ("attempts", "attempt", "tries", "retries", "retry_count", "attempt_count", "num_attempts", "failures"),
    "attempts_max": ("attempts_max", "max_attempts", "max_retries", "retries_max", "max_tries"),
    "error": ("last_error", "error", "error_message", "error_text", "failure_reason", "message"),
    "updated": ("heartbeat_at", "last_heartbeat", "heartbeat", "last_seen_at", "last_seen", "seen_at", "pinged_at"),
    "worker": ("worker", "worker_id", "locked_by", "claimed_by", "owner", "hostname", "node"),
}
_VALUES = {
    "running": ("running", "in_progress", "in-progress", "processing", "started", "active", "working", "executing"),
    "ready": ("queued", "ready", "pending", "waiting", "new", "created", "scheduled", "enqueued", "todo"),
    "dead": ("failed", "dead", "error", "errored", "failure", "aborted"),
    "held": ("held", "on_hold", "review", "paused"),
}
_REQUIRED = ("id", "status", "running", "ready", "dead", "started", "attempts", "attempts_max", "error")
_QUOTED = re.compile(r"'((?:[^']|'')+)'")
_ZONED = re.compile(r"with time zone|timestamptz|int|real|double|numeric|float|decimal", re.IGNORECASE)
STALE_AFTER_S = 900
ATTEMPTS = 5


class Proposal(NamedTuple):
    """A map as TOML. `missing`: the keys that a person has to fill in."""

    text: str
    missing: tuple[str, ...]


def propose(opened: Table, table: str) -> Proposal:
    """Return the map that fits the table best. Raises `UsageError` if there is no such table."""
    columns = opened.columns(table)
    if not columns:
        raise UsageError(f"there is no table {table!r} at this address, or its owner does not let you see it")
    found: dict[str, Any] = {key: _column(columns, names) for key, names in _COLUMNS.items()}
    if found["id"] is None:
        found["id"] = next((column.name for column in columns if column.is_key), None)
    values = _statuses(opened, table, columns, found["status"])
    for key, words in _VALUES.items():
        found[key] = _value(values, words)
    found["attempts_max"] = found["attempts_max"] or ATTEMPTS
    missing = tuple(key for key in _REQUIRED if found[key] is None)
    return Proposal("\n".join(_lines(table, columns, values, found)) + "\n", missing)


def _column(columns: Sequence[Column], names: Sequence[str]) -> str | None:
    there = {column.name.lower(): column.name for column in columns}
    return next((there[name] for name in names if name in there), None)


def _value(values: Sequence[Value], words: Sequence[str]) -> Value | None:
    there = {str(value).lower(): value for value in values}
    return next((there[word] for word in words if word in there), None)


def _statuses(opened: Table, table: str, columns: Sequence[Column], status: str | None) -> list[Value]:
    """Return the values that the column of the status has or may have."""
    if status is None:
        return []
    values = [value for value, _ in opened.statuses(table, status) if isinstance(value, str | int)]
    for definition in opened.definitions(table):
        after = definition.partition(status)[2]
        if definition.startswith("CREATE"):  # the rest of the table's definition is about other columns
            places = [after.find(f" {column.name} ") for column in columns if column.name != status]
            after = after[: min((place for place in places if place > 0), default=None)]
        values += [text.replace("''", "'") for text in _QUOTED.findall(after)]
    return list(dict.fromkeys(values))


def _lines(table: str, columns: Sequence[Column], values: Sequence[Value], found: dict[str, Any]) -> list[str]:
    lines = [
        f"# A map for `holdfast rescue`, proposed for {_comment(table)}. Read each line before you use it.",
        "# The columns: " + _comment(", ".join(f"{column.name} ({column.type or 'any'})" for column in columns)),
        "# Values of the status: " + _comment(", ".join(map(str, values)) or "none found"),
        f"table = {json.dumps(table, ensure_ascii=False)}",
    ]
    for key in _REQUIRED:
        comment = "  # FILL IN: nothing of a known name was found" if found[key] is None else ""
        lines.append(f"{key} = {_toml(found[key])}{comment or _NOTES.get(key, '')}")
    lines.append(f"stale_after_s = {STALE_AFTER_S}{_STALE[found['updated'] is not None]}")
    for key in ("updated", "worker", "held"):
        if found[key] is not None:
            lines.append(f"{key} = {_toml(found[key])}{_NOTES.get(key, '')}")
    by_name = {column.name: column for column in columns}
    worker = by_name.get(found["worker"] or "")
    if worker is not None and not worker.not_null:
        lines.append(f"clear = [{_toml(worker.name)}]  # set to NULL, so that another worker may take the row")
    times = [by_name[name] for name in (found["started"], found["updated"]) if name is not None]
    if any(not _ZONED.search(column.type) or "without" in column.type for column in times):
        lines.append('time_zone = "UTC"  # that of the programs that write these times; a wrong one is dangerous')
    lines.append("# concurrency = 5  # how many rows your application lets run at once")
    lines.append('# on_crash = "hold"  # for work that must not be repeated unasked; needs `held`')
    lines.append('# attempts_counted = "at_start"  # if your application counts an attempt when it begins')
    return lines


_NOTES = {
    "attempts_max": "  # after this many attempts a row is dead; a number or a column",
    "updated": "  # the column that a living worker renews while it works",
}
_STALE = {
    True: "  # longer than three times the pause between two renewals of `updated`",
    False: "  # longer than the longest job: nothing tells a long one from a dead one",
}


def _toml(value: object) -> str:
    return '""' if value is None else json.dumps(value, ensure_ascii=False)


def _comment(text: str) -> str:
    """Return text for a comment, which ends with its line."""
    return "".join(char if char.isprintable() else " " for char in text)
