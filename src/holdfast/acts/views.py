"""Views for the reads of `app.admin`: the fields of the command's `--json`, with instants as datetimes in UTC."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, TypedDict

import msgspec

from holdfast import insight
from holdfast.core.access import Role
from holdfast.core.records import Detector
from holdfast.insight.status import Trouble


class OrderView(msgspec.Struct, frozen=True, kw_only=True):
    """An order of a person for workers: `drain` or `stop`. `name`: of the workers, or of their supervisor."""

    name: str
    act: str
    by: str | None
    note: str | None
    at: datetime


class WorkerView(msgspec.Struct, frozen=True, kw_only=True):
    """A worker, as `holdfast workers list` shows it."""

    id: str
    name: str
    state: str
    host: str
    pid: int
    queues: list[str]
    tasks: list[str] | None
    slots: int
    running: int
    rss_mb: float | None
    version: str
    release: str | None
    started_at: datetime
    last_beat: datetime
    gone_at: datetime | None
    gone_cause: str | None
    exit_kind: str | None
    exit_code: int | None
    order: OrderView | None


class EndedView(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt that a worker has ended, as `holdfast workers show` shows it."""

    id: str
    task: str
    outcome: str
    state: str
    at: datetime
    took_s: float | None


class WorkerReport(WorkerView, frozen=True, kw_only=True):
    """A worker and what it did last, as of its last beat. The newest ending comes first, the newest log line last."""

    jobs: list[dict[str, Any]]
    endings: list[EndedView]
    log: list[str]


class QueueView(msgspec.Struct, frozen=True, kw_only=True):
    """A queue with its jobs by state and the limits that are in force, as `holdfast queues list` shows it."""

    queue: str
    paused: bool
    served: bool
    unserved: dict[str, int]  # due jobs of tasks that no living worker would claim there, by task
    missing: dict[str, int]  # those of them that no living worker has at all
    unroused: int
    ready: int
    running: int
    waiting: int
    held: int
    done: int
    dead: int
    cancelled: int
    rolled_back: int
    oldest_due_s: float | None
    oldest_served_s: float | None
    in_per_s: float  # jobs that were added in the last five minutes, per second
    out_per_s: float  # jobs that ended
    drain_s: float | None  # how long the ready jobs last at that speed; None: they do not get fewer
    lasts_s: float | None  # how long they last if no more come; None: none ends, or none is due
    limit: int | None
    group_limit: int | None
    rate: str | None
    burst: int
    paused_until: datetime | None
    paused_groups: dict[str, datetime | None]
    paused_by: str | None
    paused_at: datetime | None
    paused_note: str | None


class ScheduleView(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule, as `holdfast schedules list` shows it."""

    key: str
    spec: str
    tz: str
    missed: str
    missed_max: int
    jitter_s: float
    task: str
    queue: str
    paused: bool
    declared: bool
    kept: bool
    next: datetime | None
    next_s: float | None
    late_s: float | None
    late_instants: int
    last: datetime | None
    last_s: float | None
    job: str | None
    job_state: str | None


class TokenView(msgspec.Struct, frozen=True, kw_only=True):
    """A token of the HTTP API without its secret. `queues`: None means all."""

    name: str
    role: Role
    queues: list[str] | None
    created_at: datetime
    used_at: datetime | None
    expires_at: datetime | None
    expired: bool


class StatusView(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a store: troubles, the worst first, and what changed, as `holdfast status` shows it."""

    store: str
    at: datetime
    healthy: bool
    summary: str
    troubles: list[Trouble]
    jobs: dict[str, int]  # by state
    in_per_s: float
    out_per_s: float
    workers: dict[str, int]  # by state
    errors: list[ErrorView]
    window_s: float
    lost: int  # attempts that lost their worker
    changes: list[dict[str, Any]]


class BatchView(msgspec.Struct, frozen=True, kw_only=True):
    """A batch, as `holdfast batches show` shows it."""

    id: str
    state: str  # "open": jobs may still be added; "running": one of them has not ended; "ended"
    complete: bool  # its producer has added all that it wanted to
    jobs: int
    progress: float | None  # the share of its jobs that have ended
    counts: dict[str, int]  # its jobs by state, as they are now
    counts_at_end: dict[str, int] | None
    then: str | None  # the id of its last job, which is stored at the end
    then_task: str | None
    created_at: datetime
    added_at: datetime
    closed_at: datetime | None
    ended_at: datetime | None


class SeriesSum(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs and attempts of a length of time. None: no attempt has a known time."""

    arrived: int  # jobs that were stored or revived
    ended: int  # attempts that ended their jobs: the next four together
    done: int
    dead: int
    cancelled: int
    rolled_back: int
    attempts: int  # also those that are to be tried again, are held, or wait
    lost: dict[str, int]  # by detector
    wait_p50_s: float | None  # from when a job was due to the start of its attempt
    wait_p95_s: float | None
    wait_p99_s: float | None
    run_p50_s: float | None
    run_p95_s: float | None
    run_p99_s: float | None


class SeriesPoint(SeriesSum, frozen=True, kw_only=True):
    """The sum of the time from `at` to the next point."""

    at: datetime


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """A window of one queue, or of all of them together, as points; and each queue as a sum."""

    window: insight.Window
    step_s: int
    queue: str | None
    at: datetime
    points: list[SeriesPoint]  # the last one is not over yet
    total: SeriesSum
    queues: dict[str, SeriesSum]


class ErrorView(msgspec.Struct, frozen=True, kw_only=True):
    """Attempts of one task that ended with the same error, as `holdfast errors` shows them."""

    task: str
    fingerprint: str  # for the filters of other commands
    kind: str
    origin: str | None
    message: str
    attempts: int
    first_seen: datetime
    last_seen: datetime
    releases: list[str]
    example: str  # the id of the job that had it last


class JobFilter(TypedDict, total=False):
    """The jobs that an act is about. Each name that is given narrows it.

    tags, meta: jobs that have all of these. worker: the id of the worker that runs them. workflow: whether they are
    workflows. error: the fingerprint of the last error. release: of the worker that ran the attempt with that error.
    since, until: when the jobs ended, or failed, or were added; with `error` or `release` the time of the error, with
    `crashed` or `detector` that of the crash.
    """

    state: str | Sequence[str]
    queue: str
    task: str
    group: str
    key: str
    error: str
    release: str
    since: datetime
    until: datetime
    crashed: bool
    detector: Detector
    tags: Sequence[str]
    meta: Mapping[str, str]
    worker: str
    workflow: bool


class EventView(msgspec.Struct, frozen=True, kw_only=True):
    """A line in the history of a job."""

    at: datetime
    kind: str
    fence: int
    worker: str | None
    actor: str | None
    detail: dict[str, Any]


class StepView(msgspec.Struct, frozen=True, kw_only=True):
    """A step of a workflow. `arguments_bytes`: the size of what its undo will be called with."""

    name: str
    state: str
    attempt: int
    tries: int
    started_at: datetime
    ended_at: datetime | None
    result: Any
    error: str | None
    arguments_bytes: int | None
    arguments: Any = None  # only if they were asked for


class JobRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A job with its arguments and history, as `holdfast jobs export` writes it."""

    id: str
    task: str
    queue: str
    group: str | None
    batch: str | None
    tags: list[str]
    meta: dict[str, str]
    after: list[str]
    state: str
    attempt: int
    fence: int
    failures: int
    crashes: int
    zombies: int
    priority: int
    on_crash: str
    created_at: datetime
    run_at: datetime
    claimed_at: datetime | None
    ended_at: datetime | None
    expires_at: datetime | None
    lease_until: datetime | None
    worker: str | None
    arguments: Any
    result: Any
    error: str | None
    fingerprint: str | None
    release: str | None
    stop_reason: str | None
    rollback_cause: str | None
    progress: dict[str, Any] | None
    log: list[str] | None
    beat_data: Any
    key: str | None
    key_scope: str | float | None
    events: list[EventView]
    steps: list[StepView]


class ActView(msgspec.Struct, frozen=True, kw_only=True):
    """An act of a person, as `holdfast audit` shows it."""

    seq: int
    at: datetime
    by: str
    act: str
    job: str | None
    about: str
    name: str
    note: str | None
    detail: dict[str, Any]


class StoppedView(msgspec.Struct, frozen=True, kw_only=True):
    """A job that was held or died in the time of a report, and its state by now."""

    at: datetime
    kind: str
    by: str | None
    id: str
    task: str | None
    queue: str | None
    why: str | None
    now: str


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A report of an incident, with the fields of `holdfast report --json`.

    lost: the attempts that lost their worker, as in `holdfast zombies --json`. failures: counts in steps of `step_s`
    seconds. is_cut: there was more than the report reads.
    """

    store: str
    since: datetime
    until: datetime
    seconds: float
    version: str
    schema: int
    healthy: bool
    summary: str
    troubles: list[Trouble]
    lost: dict[str, Any]
    failures: dict[str, Any]
    is_cut: bool
    errors: list[ErrorView]
    held: list[StoppedView]
    dead: list[StoppedView]
    held_total: int
    dead_total: int
    held_now: int
    acts: list[ActView]
    workers: list[WorkerView]
    workers_total: int
    queues: list[dict[str, Any]]  # with limits, or paused
    tasks: list[dict[str, Any]]
