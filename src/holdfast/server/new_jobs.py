"""Checks new jobs that clients send through the verbs of the store, where no `App` has checked them.

A program of Holdfast sends nothing that is refused here. Others could store a row that breaks every list, or reach
queues that their token does not see: by a callback, or by the key of another job.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from holdfast.core.callbacks import callbacks_of
from holdfast.core.dependencies import ids_of, things
from holdfast.core.labels import meta_text, tags_text
from holdfast.core.limits import check_group
from holdfast.core.machine import LIVE
from holdfast.core.records import Filter, NewJob
from holdfast.core.text import check_storable
from holdfast.errors import UsageError
from holdfast.server.call import Call
from holdfast.tasks import ID, PRIORITY_MAX, RUN_AFTER_MAX_S, WALL_MAX, check_expiry, check_key, check_name, key_rule

KEYS_MAX = 100  # jobs with one key
_LIVE = tuple(LIVE)


def check_id(text: str) -> None:
    """Raise `UsageError` for what cannot be the id of a job or of a batch."""
    if not ID.fullmatch(text):
        raise UsageError(f"id={text[:100]!r} must be 1 to 64 letters, digits or any of _ . : -")


def check_new(call: Call, new: NewJob, *, nested: bool = False) -> None:
    """Raise `UsageError` for a job that no App would store, and `not_found` for one of another queue."""
    if not nested:
        check_id(new.id)
    check_name("task", new.task)
    check_name("queue", new.queue)
    call.need_queue(new.queue, f"queue {new.queue!r}")
    if new.key is not None:
        check_key(new.key)
    if new.group is not None:
        check_group(new.group)
    if abs(new.priority) > PRIORITY_MAX:
        raise UsageError(f"priority={new.priority} must be from -{PRIORITY_MAX} to {PRIORITY_MAX}")
    if new.run_at is not None and not 0 <= new.run_at <= WALL_MAX:
        raise UsageError(f"run_at={new.run_at:g} must lie between the years 1970 and 9999")
    if not 0 <= new.delay_s <= RUN_AFTER_MAX_S:
        raise UsageError(f"delay_s={new.delay_s:g} must be a number of seconds from now, not negative")
    if new.expires_s is not None:
        check_expiry(new.expires_s)
    if new.key_rule is not None:
        key_rule(None, new.key_rule.scope, new.key_rule.on_taken, new.key_rule.wait_max_s)
    check_storable(len(new.payload), payload=new.payload)
    _check_labels(new)
    _check_awaits(new)
    if new.parent is not None:
        check_storable(64, parent=new.parent)
    if new.callbacks is not None and not nested and not _is_declared(call, new):
        _check_callbacks(call, new.callbacks)


def _is_declared(call: Call, new: NewJob) -> bool:
    """Say whether the author of the task has declared its callbacks: these may go to any queue."""
    return any(each.job.task == new.task and each.job.callbacks == new.callbacks for each in call.store.published())


def _check_callbacks(call: Call, text: str) -> None:
    try:
        declared = callbacks_of(text)
    except ValueError as error:
        raise UsageError(f"the callbacks cannot be read: {error}") from None
    for each in (declared.done, declared.dead):
        if each is not None:
            check_new(call, each.job, nested=True)


def _check_awaits(new: NewJob) -> None:
    ids = ids_of(new.awaits)
    if not all(map(ID.fullmatch, ids)) or new.awaits != things(ids, new.awaits[-1].name if ids else None):
        raise UsageError(
            "awaits is not as an App sends it: the jobs to run after, and what to do if one did not succeed"
        )


def _check_labels(new: NewJob) -> None:
    if new.tags is not None and tags_text(_json("tags", new.tags)) != new.tags:
        raise UsageError("tags are not as a row has them")
    if new.meta is not None and meta_text(_json("meta", new.meta)) != new.meta:
        raise UsageError("meta is not as a row has it")


def _json(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise UsageError(f"{name} is not JSON") from None


def need_own_jobs(call: Call, new: Iterable[NewJob]) -> None:
    """Raise `not_found` for jobs that the token does not see: one that has the id or the key of a new one, which an
    enqueue would name or cancel, and one to run after, whose end would show."""
    if call.user.queues is None:
        return
    new = list(new)
    ids = tuple(sorted({each.id for each in new}))
    for known in call.store.find(Filter(ids=ids, limit=len(ids))) if ids else ():
        call.need_queue(known.queue, f"job {known.id!r}")
    for job_id in {job_id for each in new for job_id in ids_of(each.awaits)}:
        if (row := call.store.get(job_id)) is not None:
            call.need_queue(row.queue, f"job {job_id!r}")
    for key in {each.key for each in new if each.key is not None}:
        for row in call.store.find(Filter(key=key, states=_LIVE, limit=KEYS_MAX)):
            call.need_queue(row.queue, "job with this key")
