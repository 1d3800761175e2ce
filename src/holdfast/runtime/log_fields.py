"""Fields that say which attempt a log line is about: `log.warning("job %s …", job.id, extra=about(job))`.

The text of the line stays for people. `cli/logs.py` writes the fields with `--log-format json`.
"""

from __future__ import annotations

import sys
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.core.labels import meta_of

if TYPE_CHECKING:
    from holdfast.worker.attempt import Attempt

FIELDS = "holdfast"  # the attribute of a record that has them


current_attempt: ContextVar[Attempt | None] = ContextVar("holdfast_attempt", default=None)


class AboutJob(Protocol):
    """The part of a job that log lines name."""

    @property
    def id(self) -> str: ...
    @property
    def task(self) -> str: ...
    @property
    def attempt(self) -> int: ...
    @property
    def fence(self) -> int: ...


def about(job: AboutJob, **more: str | None) -> dict[str, Any]:
    """Return the `extra` of a log line about a job's attempt."""
    return {FIELDS: {**fields_of(job), **{name: value for name, value in more.items() if value is not None}}}


def fields_of(job: AboutJob) -> dict[str, Any]:
    """Return the fields that name an attempt."""
    fields = {"job": job.id, "task": job.task, "attempt": job.attempt, "fence": job.fence}
    meta = getattr(job, "meta", None)
    return fields if meta is None else {**fields, "meta": meta_of(meta)}


def trace_fields() -> dict[str, str]:
    """Return the ids of the current OpenTelemetry span, if this program uses OpenTelemetry and one is open."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return {}
    found = trace.get_current_span().get_span_context()
    return {"trace_id": f"{found.trace_id:032x}", "span_id": f"{found.span_id:016x}"} if found.is_valid else {}
