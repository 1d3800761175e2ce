"""The jobs that a list or an act is about: one filter for the command line, `app.admin` and the HTTP API."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import get_args

import msgspec
from msgspec.structs import replace

from holdfast.core.machine import State
from holdfast.core.records import Detector, Filter, Job
from holdfast.core.text import check_storable, listed
from holdfast.errors import AmbiguousName, NotFound, UsageError
from holdfast.insight.views import SHOWN_STATES, all_jobs, sampled_tasks, store_filter
from holdfast.stores.protocol import Store
from holdfast.stores.rounds import together

PAGE = 1_000  # jobs that are read at once
DETECTORS: tuple[str, ...] = get_args(Detector)
_EVENTS = 2_000
_FITTING_MAX = 100  # jobs that are read to see whether a short id fits one only
_NAMED_MAX = 6  # jobs or tasks that an error names


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """A choice of jobs. Each field that is given narrows it.

    since, until: wall times; a job counts from `since` on and before `until`. The time is that of the crash with
    `crashed` or `detector`, of the last error with `error` or `release`. Otherwise it is that of the end of the job; of
    one that has not ended, that of its last error, or of its enqueue.
    """

    states: tuple[str, ...] = ()  # as people call them: also "scheduled" and "retrying"
    queue: str | None = None
    task: str | None = None
    key: str | None = None
    group: str | None = None
    worker: str | None = None
    workflow: bool | None = None
    error: str | None = None  # the fingerprint of the last error
    release: str | None = None  # of the worker that ran the attempt with the last error
    since: float | None = None
    until: float | None = None
    crashed: bool = False  # lost its worker
    detector: str | None = None  # and this is how that was found
    tags: tuple[str, ...] = ()
    meta: tuple[tuple[str, str], ...] = ()

    @property
    def of_crashes(self) -> bool:
        """Say whether it asks for jobs that lost their worker."""
        return self.crashed or self.detector is not None

    @property
    def narrows(self) -> bool:
        """Say whether it asks for anything but states."""
        return replace(self, states=()) != Selection()

    def check(self) -> None:
        """Raise `UsageError` for what no job can match, or a store cannot be asked."""
        for state in self.states:
            if state not in SHOWN_STATES:
                raise UsageError(f"{state!r} is not a state: {', '.join(SHOWN_STATES)}")
        if self.detector is not None and self.detector not in DETECTORS:
            raise UsageError(f"{self.detector!r} is not a detector: {', '.join(DETECTORS)}")
        names = ("queue", "task", "key", "group", "worker", "error", "release")
        check_storable(**{name: getattr(self, name) for name in names})
        for text in (*self.tags, *(part for pair in self.meta for part in pair)):
            check_storable(labels=text)
        if self.since is not None and self.until is not None and self.until <= self.since:
            raise UsageError("`until` must be later than `since`")

    def filter(self, limit: int, before: str | None = None) -> Filter:
        """Return what the store is asked, apart from crashes."""
        return Filter(
            queue=self.queue,
            task=self.task,
            key=self.key,
            group=self.group,
            worker=self.worker,
            workflow=self.workflow,
            fingerprint=self.error,
            release=self.release,
            tags=self.tags,
            meta=self.meta,
            since=None if self.of_crashes else self.since,
            until=None if self.of_crashes else self.until,
            limit=limit,
            before=before,
        )


def selected(store: Store, chosen: Selection, *, page: int = PAGE, before: str | None = None) -> Iterator[Job]:
    """Walk over the chosen jobs, newest first; the crashed ones by their last crash. `before`: only those after it."""
    where = store_filter(store, chosen.states, chosen.filter(page, before))
    if not chosen.of_crashes:
        yield from all_jobs(store, where)
        return
    where, skips = replace(where, before=None), before
    for ids in _crashed(store, chosen, page):
        found = {job.id: job for job in store.find(replace(where, ids=tuple(ids), limit=len(ids)))}
        for job_id in ids:
            if skips is None and job_id in found:
                yield found[job_id]
            skips = None if job_id == skips else skips


def _crashed(store: Store, chosen: Selection, page: int) -> Iterator[list[str]]:
    """Walk over the ids of jobs that lost their worker, those that did last first, page by page."""
    known: set[str] = set()
    earliest, before = chosen.since or 0.0, None
    fresh: list[str] = []
    while events := store.journal(kinds=("zombie",), since=earliest, before=before, limit=_EVENTS):
        before = events[0].seq
        for event in reversed(events):
            late = chosen.until is not None and event.at >= chosen.until
            other = chosen.detector is not None and event.detail.get("detector") != chosen.detector
            if not late and not other and event.job_id not in known:
                known.add(event.job_id)
                fresh.append(event.job_id)
            if len(fresh) == page:
                yield fresh
                fresh = []
        if len(events) < _EVENTS:
            break
    if fresh:
        yield fresh


def first_selected(store: Store, chosen: Selection, limit: int, before: str | None = None) -> list[Job]:
    """Return a page of the chosen jobs."""
    return list(islice(selected(store, chosen, page=min(limit, PAGE), before=before), limit))


def asking_jobs(store: Store, chosen: Selection) -> Iterator[Job]:
    """Walk over the chosen workflows that ask a person something, whatever states are chosen."""
    yield from all_jobs(store, replace(chosen.filter(PAGE), states=(State.WAITING,), asking=True))


# ------------------------------------------------------------------------------------------- names in short


def task_named(store: Store, name: str, states: Sequence[str] = ()) -> str:
    """Return the full name of a task that may be given by its last parts: `send` for `shop.mail.send`.

    Known are the published tasks and those of the newest jobs, of all and in these states. A name that a job or a
    published task has is taken as it is, and so is one that fits no known task. Raises `AmbiguousName` when several
    would fit.
    """
    published, sampled, own = together(
        store.published,
        lambda: sampled_tasks(store, states),
        lambda: store.find(Filter(task=name, limit=1)),
    )
    known: set[str] = {task.name for task in published} | sampled
    meant = sorted(each for each in known if each.endswith(f".{name}"))
    if not meant or name in known or own:
        return name
    if len(meant) > 1:
        raise AmbiguousName(f"{name!r} may be the task {' or '.join(meant[:_NAMED_MAX])}: write the full name")
    return meant[0]


def with_full_task(store: Store, chosen: Selection) -> Selection:
    """Return the selection with the full name of its task."""
    return chosen if chosen.task is None else replace(chosen, task=task_named(store, chosen.task, chosen.states))


PREFIX_LEAST = 4  # characters of an id
_UUID = 36  # characters: only ids that Holdfast made may be shortened
_HEX = frozenset("0123456789abcdef-")


def full_id(store: Store, text: str) -> str:
    """Return the id that begins with this text, if it is the only one; the text itself if it is an id, or none fits.

    Only ids that Holdfast has made may be shortened: `order-1` never means a job `order-12`. Raises `AmbiguousName`
    when several fit.
    """
    if not _may_be_short(text) or store.get(text) is not None:
        return text
    job = _only_one(text, store.find(Filter(prefix=text, limit=_FITTING_MAX)))
    return text if job is None else job.id


def _only_one(text: str, found: Sequence[Job]) -> Job | None:
    """Return the only one of these jobs whose id Holdfast has made; None if there is none."""
    fitting = [job for job in found if _is_made(job.id)]
    if len(fitting) > 1:
        names = listed([f"{job.id} ({job.task}, {job.state.value})" for job in fitting], _NAMED_MAX)
        raise AmbiguousName(f"several jobs have an id that begins with {text!r}: {names}; nothing was changed")
    return fitting[0] if fitting else None


def _may_be_short(text: str) -> bool:
    return PREFIX_LEAST <= len(text) < _UUID and _HEX.issuperset(text)


def _is_made(job_id: str) -> bool:
    return len(job_id) == _UUID and _HEX.issuperset(job_id) and [job_id[at] for at in (8, 13, 18, 23)] == ["-"] * 4


def job_named(store: Store, text: str) -> Job:
    """Return the job with this id, or with the only id that begins with it. Raises `NotFound`, `AmbiguousName`."""
    where = Filter(prefix=text, limit=_FITTING_MAX)
    job, fitting = together(lambda: store.get(text), lambda: store.find(where) if _may_be_short(text) else [])
    named: Job | None = job or _only_one(text, fitting)
    if named is None:
        raise NotFound(f"there is no job {text!r}")
    return named


def full_ids(store: Store, texts: Sequence[str]) -> list[str]:
    """Return the full ids, each once. Those that no job has stay as they are."""
    return list(dict.fromkeys(full_id(store, text) for text in texts))
