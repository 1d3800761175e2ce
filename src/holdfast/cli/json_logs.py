"""The log as JSON: `--log-format json`."""

from __future__ import annotations

import logging
from typing import Any

import msgspec

from holdfast.core.durations import iso
from holdfast.runtime.log_fields import FIELDS, current_attempt, fields_of, trace_fields

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", FIELDS}
_OF_CONTEXT = {"job_id", "task"}  # what `ctx.log` gives to each record: it is in the fields
_TRACE = ("trace_id", "span_id")


class JsonFormatter(logging.Formatter):
    """One JSON object on one line for each record, whatever its text has in it.

    A line that a job has logged, or that is about a job, names the job, its task, the attempt and the fence. It also
    has the ids of the current OpenTelemetry span, and under `extra` what the caller has given.
    """

    def __init__(self, worker: str | None = None) -> None:
        super().__init__()
        self._always = {"worker": worker} if worker is not None else {}

    def format(self, record: logging.LogRecord) -> str:
        attempt = current_attempt.get()
        own = vars(record)
        line: dict[str, Any] = {
            "at": iso(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **self._always,
            **(own.get(FIELDS) or (fields_of(attempt.job) if attempt is not None else {})),
            **({name: own[name] for name in _TRACE if name in own} or trace_fields()),
            "pid": record.process,
        }
        if record.exc_info and record.exc_info[0] is not None:
            line["trace"] = self.formatException(record.exc_info)
        elif record.exc_text:  # it comes from an isolated process
            line["trace"] = record.exc_text
        if record.stack_info:
            line["stack"] = record.stack_info
        known = {*_STANDARD, *_TRACE, *(_OF_CONTEXT if "job" in line else ())}
        extra = {name: value for name, value in own.items() if name not in known}
        if extra:
            line["extra"] = extra
        return msgspec.json.encode(_plain(line)).decode()


def _plain(value: Any, depth: int = 0) -> Any:
    """Return the value as JSON can hold it: text without lone surrogates, names as text, at most a few levels deep."""
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, bool | int | float | None):
        return value if not isinstance(value, float) or value - value == 0 else str(value)
    if depth > 5:
        return _plain(str(value))
    if isinstance(value, dict):
        return {_plain(str(name)): _plain(each, depth + 1) for name, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(each, depth + 1) for each in value]
    return _plain(str(value))
