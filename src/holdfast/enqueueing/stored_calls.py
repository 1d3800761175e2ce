"""The calls that jobs were stored with: read and changed by an app that may not have their tasks."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from holdfast.core.payload import JSON, LIMITS, decode_plain, encode_value
from holdfast.core.records import Job
from holdfast.errors import PayloadError, UsageError

if TYPE_CHECKING:
    from holdfast.app import App


def changed_payload(app: App, row: Job, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Return the payload of a job with these arguments in place of its own."""
    task = app.tasks.get(row.task)
    if task is not None:
        return task.change(row.payload, args, kwargs)
    if args:
        raise UsageError(f"this app has no workflow {row.task!r}: give its arguments by their names")
    if not kwargs:
        return row.payload
    return encode_value({**_arguments(app, row), **kwargs}, f"{row.task}: the arguments", codec=app.codec)


def check_codec(app: App, row: Job) -> None:
    """Raise `UsageError` if the job was stored with another codec than this app has."""
    if row.task not in app.tasks:
        _arguments(app, row)


def _arguments(app: App, row: Job) -> dict[str, Any]:
    """Return a job's plain arguments. Raises `UsageError` if it was stored with another codec than this app has."""
    plain = None
    if app.codec is not JSON or not _has_own_codec(app, row.task):
        with contextlib.suppress(PayloadError):
            plain = decode_plain(row.payload, "the arguments", LIMITS, app.codec, outer=1)
    if isinstance(plain, dict):
        return plain
    raise UsageError(
        f"job {row.id} was stored with another codec than this app has; its workers could not read what this app "
        f"writes, so nothing was changed. Use the app that declares {row.task!r}: on the command line, "
        "add --app MODULE:NAME"
    )


def _has_own_codec(app: App, task: str) -> bool:
    """Say whether living workers have another codec for this task than JSON; its text may still be JSON."""
    known = (worker.tasks or {} for worker in app.store.workers())
    return any(task in tasks and tasks[task].own_codec for tasks in known)
