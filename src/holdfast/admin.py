"""The reads and acts of the command line for Python: `app.admin`. Both call the same functions."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, Unpack

import msgspec
from msgspec import UNSET, UnsetType

from holdfast import insight
from holdfast.acts import store as store_acts
from holdfast.acts.mass import ACTS, ActName, MassAct, Outcome, act_on_selected
from holdfast.acts.views import (
    BatchView,
    ErrorView,
    JobFilter,
    JobRecord,
    QueueView,
    Report,
    ScheduleView,
    Series,
    StatusView,
    TokenView,
    WorkerReport,
    WorkerView,
)
from holdfast.acts.workers import forget_workers, order_workers, resume_workers
from holdfast.core.access import Role
from holdfast.core.audit import Act
from holdfast.core.limits import Limits, setting
from holdfast.core.machine import ENDED, State
from holdfast.core.published import PublishedTask
from holdfast.core.records import Event, EventKind, Job
from holdfast.core.text import check_storable
from holdfast.errors import NotFound, UsageError
from holdfast.ids import new_job_id
from holdfast.insight import Selection
from holdfast.insight.diagnosis import diagnose
from holdfast.insight.explain import Explanation
from holdfast.insight.findings import Finding
from holdfast.insight.zombies import Lookback
from holdfast.queues import choose_limits, pause_queue, queue_named, resume_queue
from holdfast.stores.protocol import Store
from holdfast.upkeep.reaper import Reaper

if TYPE_CHECKING:
    from holdfast.app import App

__all__ = [
    "Admin",
    "AsyncAdmin",
    "BatchView",
    "ErrorView",
    "JobFilter",
    "JobRecord",
    "QueueView",
    "Report",
    "ScheduleView",
    "Series",
    "StatusView",
    "TokenView",
    "WorkerReport",
    "WorkerView",
]

V = TypeVar("V", bound=msgspec.Struct)
_PAGE = 200  # jobs whose history is read at once


class Admin:
    """The reads and acts of the command line for Python. Use it as `app.admin`, or `app.aio.admin` with `await`."""

    def __init__(self, app: App) -> None:
        self._app = app

    @property
    def _store(self) -> Store:
        return self._app.store

    def status(self, window_s: float = 3600.0) -> StatusView:
        """Return what is broken now, the worst first, and what changed in the last `window_s` seconds."""
        return _typed([insight.status_view(self._store, window_s)], StatusView)[0]

    def doctor(self) -> list[Finding]:
        """Check the store, its workers, jobs and settings, and whether this app has the tasks of due jobs.

        A finding that is not "ok" says in `fix` what to do.
        """
        return list(diagnose(self._store, self._app.clock, self._app))

    def explain(self, id: str) -> Explanation:
        """Return why a job is where it is, in a sentence, and the acts that would bring it on. Raises `NotFound`."""
        check_storable(id=id)
        return insight.explain(self._store, insight.job_named(self._store, id))

    def workers(self, *, gone: bool = False) -> list[WorkerView]:
        """Return the workers, oldest first; with `gone` also those that stopped or died, with the cause."""
        return _typed(insight.worker_views(self._store, gone=gone), WorkerView)

    def worker(self, name: str) -> list[WorkerReport]:
        """Return the workers of a name, and the children of a supervisor of that name, with what each did last.

        The living ones; if there are none, the one that has gone last. Empty: no worker of that name is known.
        """
        check_storable(name=name)
        return _typed(insight.worker_reports(self._store, name), WorkerReport)

    def drain(self, name: str, *, by: str = "app", note: str | None = None) -> int:
        """Ask workers to claim nothing more, until `resume_workers`; what runs goes on.

        They obey with their next beat; those that are started meanwhile obey too. Returns how many are alive now.
        Raises `NotFound` when no worker of that name is known, nor a supervisor.
        """
        return len(order_workers(self._store, name, "drain", by, note))

    def stop(self, name: str, *, by: str = "app", note: str | None = None) -> int:
        """Ask workers to leave as SIGTERM would. One that is started again claims nothing until `resume_workers`.

        Returns how many are alive now. Raises `NotFound` as `drain` does.
        """
        return len(order_workers(self._store, name, "stop", by, note))

    def resume_workers(self, name: str, *, by: str = "app", note: str | None = None) -> list[str]:
        """Let workers claim again; return the names that were asked to drain or to stop.

        Raises `NotFound` when nothing was asked of the name, `Refused` when it was asked of the supervisor.
        """
        return resume_workers(self._store, name, by, note)

    def forget_worker(self, name: str, *, by: str = "app", note: str | None = None) -> int:
        """Declare the silent workers of a name dead and recover their jobs; return how many jobs.

        For a worker whose death cannot be proved. Raises `NotFound` when there is none of that name, `Refused` when
        it still beats.
        """
        reaper = Reaper(self._store, self._app.clock, hooks=self._app.hooks, name="forget")
        return forget_workers(self._store, reaper, insight.silent_workers(self._store, name), by, note)

    def queues(self) -> list[QueueView]:
        """Return every queue that has jobs, limits or a worker, or is paused, by name."""
        return _typed(insight.queue_views(self._store), QueueView)

    def series(self, window: insight.Window = "hour", *, queue: str | None = None) -> Series:
        """Return how many jobs came and ended in the last hour, day or week, and how long they waited and ran.

        Jobs that were deleted since stay counted.
        """
        check_storable(queue=queue)
        return msgspec.convert(insight.series_view(self._store, window, queue), Series)

    def schedules(self) -> list[ScheduleView]:
        """Return every schedule, by key."""
        return _typed(insight.schedule_views(self._store), ScheduleView)

    def pause_schedule(self, key: str, *, by: str = "app", note: str | None = None) -> None:
        """Stop firing a schedule until `resume_schedule`; stored jobs stay. Raises `NotFound`."""
        [found] = insight.schedules_named(self._store, [key])
        store_acts.pause_schedule(self._store, found.key, True, by, note)

    def resume_schedule(self, key: str, *, by: str = "app", note: str | None = None) -> None:
        """Fire a schedule again, from the next instant on. Raises `NotFound`."""
        [found] = insight.schedules_named(self._store, [key])
        store_acts.pause_schedule(self._store, found.key, False, by, note)

    def fire_schedule(self, key: str, *, by: str = "app", note: str | None = None) -> str:
        """Enqueue the job of a schedule now and return its id; with a key that is taken, that of the job that has it.

        The regular instants stay as they are. Raises `NotFound`.
        """
        [found] = insight.schedules_named(self._store, [key])
        return store_acts.fire_schedule(self._store, found, new_job_id(self._app.clock), by, note).id

    def forget_schedule(self, key: str, *, by: str = "app", note: str | None = None) -> None:
        """Remove a schedule that no program declares any more; stored jobs stay. Raises `NotFound`."""
        [found] = insight.schedules_named(self._store, [key])
        store_acts.forget_schedule(self._store, found.key, by, note)

    def batch(self, id: str) -> BatchView:
        """Return a batch with its jobs by state, or raise `NotFound`."""
        check_storable(id=id)
        return _typed([insight.batch_view(self._store, id)], BatchView)[0]

    def batches(self, *, limit: int = 100) -> list[BatchView]:
        """Return the batches that were opened last, newest first."""
        return _typed(insight.batch_views(self._store, limit), BatchView)

    def tasks(self) -> list[PublishedTask]:
        """Return the tasks that workers have published, by name."""
        return self._store.published()

    def forget_task(self, name: str, *, by: str = "app", note: str | None = None) -> None:
        """Remove what workers have published of a task that is gone. Raises `NotFound`."""
        check_storable(name=name)
        if not self._store.published([name]):
            raise NotFound(f"no worker has published a task {name!r}")
        store_acts.forget_task(self._store, name, by, note)

    def tokens(self) -> list[TokenView]:
        """Return the tokens of the HTTP API, by name."""
        now = self._store.now().wall
        return _typed([insight.token_view(token, now) for token in self._store.tokens.all()], TokenView)

    def add_token(
        self,
        name: str,
        role: Role,
        *,
        queues: Sequence[str] | None = None,
        expires_s: float | None = None,
        by: str = "app",
        note: str | None = None,
    ) -> str:
        """Make a token of the HTTP API and return its secret, which the store does not keep.

        Raises `Refused` when there is one of that name.
        """
        return store_acts.new_token(self._store, name, role, queues, expires_s, by, note)[1]

    def revoke_token(self, name: str, *, by: str = "app", note: str | None = None) -> None:
        """Refuse a token from now on; servers do so within 5 seconds. Raises `NotFound`."""
        check_storable(name=name)
        store_acts.revoke_token(self._store, name, by, note)

    def purge(self, states: Sequence[str], older_than_s: float, *, by: str = "app", note: str | None = None) -> int:
        """Delete jobs that ended in these states longer ago than that, with their history; return how many."""
        wanted = [State(state) for state in states if state in ENDED]
        if not wanted or len(wanted) != len(states):
            raise UsageError(f"states={list(states)!r} must name states of ended jobs: {', '.join(sorted(ENDED))}")
        if not older_than_s >= 0:
            raise UsageError(f"older_than_s={older_than_s!r} must be a number of seconds")
        return sum(store_acts.purge_pages(self._store, wanted, older_than_s, by, note))

    def journal(
        self,
        id: str | None = None,
        *,
        kinds: Sequence[EventKind] = (),
        since: datetime | None = None,
        before: int | None = None,
        limit: int = 1000,
    ) -> list[Event]:
        """Return events, oldest first: of one job its first `limit`, of all jobs the newest.

        kinds: only these. since: only those of this instant and later. before: only those with a smaller `seq`, for
        the page before.
        """
        check_storable(id=id)
        id = None if id is None else insight.full_id(self._store, id)
        instant = None if since is None else _instant("since", since)
        return self._store.journal(id, tuple(kinds), limit, since=instant, before=before)

    def zombies(self, since_s: float = 86_400.0) -> Lookback:
        """Return the attempts that lost their worker in the last `since_s` seconds, and what became of their jobs."""
        return insight.look_back(self._store, since_s)

    def errors(self, since_s: float = 86_400.0, *, task: str | None = None, limit: int = 100) -> list[ErrorView]:
        """Return which errors attempts ended with in the last `since_s` seconds, the most frequent first."""
        check_storable(task=task)
        found = insight.error_views(self._store, self._store.now().wall - since_s, task, limit)
        return _typed(found, ErrorView)

    def pause(
        self,
        queue: str,
        *,
        group: str | None = None,
        until: datetime | None = None,
        by: str = "app",
        note: str | None = None,
    ) -> None:
        """Do as `app.pause` does."""
        pause_queue(self._store, queue, group, until, by, note)

    def resume(self, queue: str, *, group: str | None = None, by: str = "app", note: str | None = None) -> None:
        """Do as `app.resume` does."""
        resume_queue(self._store, queue, group, by, note)

    def audit(
        self, since_s: float | None = None, *, by: str | None = None, before: int | None = None, limit: int = 100
    ) -> list[Act]:
        """Return the acts of people and of programs in their own name, newest first.

        since_s: only those of the last `since_s` seconds. by: only those of this actor. before: only those with a
        smaller `seq`, for the page after.
        """
        check_storable(by=by)
        since = None if since_s is None else self._store.now().wall - since_s
        return insight.acts_of_people(self._store, since, by, limit, before)

    def limit(
        self,
        queue: str,
        *,
        limit: int | UnsetType | None = UNSET,
        group_limit: int | UnsetType | None = UNSET,
        rate: str | UnsetType | None = UNSET,
        burst: int | UnsetType = UNSET,
        clear: bool = False,
        by: str = "app",
        note: str | None = None,
    ) -> Limits:
        """Set limits of a queue that win over what the app declares, and return those that are in force.

        They are in force when it returns. A limit that is not named stays; None means no limit. clear: forget what was
        set before.
        """
        chosen = msgspec.structs.asdict(setting(limit, group_limit, rate, burst))
        given = {name: value for name, value in chosen.items() if value is not UNSET}
        if not given and not clear:
            return queue_named(self._store, queue).limits
        return choose_limits(self._store, queue, given, by, note, clear=clear)

    def select(self, *, limit: int = 100, before: str | None = None, **chosen: Unpack[JobFilter]) -> list[Job]:
        """Return the rows of the jobs that match, newest first; the crashed ones by their last crash.

        before: the id of the last job of the page before. Raises `NotFound` when that job was deleted.
        """
        check_storable(before=before)
        if before is not None and self._store.get(before) is None:
            raise NotFound(f"there is no job {before!r} to continue after")
        selection = insight.with_full_task(self._store, _selection(chosen))
        selection.check()
        return insight.first_selected(self._store, selection, limit, before)

    def export(
        self, *, limit: int = 100, before: str | None = None, step_arguments: bool = False, **chosen: Unpack[JobFilter]
    ) -> list[JobRecord]:
        """Return a page of the jobs that match, newest first, with their arguments and history.

        before: as for `select`. step_arguments: with those of steps, which an undo is called with.
        """
        rows = self.select(limit=limit, before=before, **chosen)
        records = insight.job_records(self._store, iter(rows), min(limit, _PAGE), arguments=step_arguments)
        return _typed(list(records), JobRecord)

    def report(self, since_s: float = 7200.0) -> Report:
        """Return what went wrong in the last `since_s` seconds: what died, how it was found, errors, acts of people."""
        if not since_s > 0:
            raise UsageError(f"since_s={since_s!r} must be more than 0")
        return _typed([insight.incident_view(self._store, lambda now: now - since_s)], Report)[0]

    def act(
        self,
        act: ActName,
        *,
        by: str = "app",
        note: str | None = None,
        dry_run: bool = False,
        to_queue: str | None = None,
        priority: int | None = None,
        run_at: datetime | None = None,
        **chosen: Unpack[JobFilter],
    ) -> Outcome:
        """Act on all jobs that match, page by page, and return what became of them.

        act: "revive" dead jobs; "retry" dead ones, or with state= also held and cancelled ones; "approve" or "fail"
        held ones; "cancel" or "hold" live ones; "delete" ended ones; "move" ready ones with to_queue=; "set" priority=
        or run_at= of ready ones. A job that needs a decision of its own is left alone: one with a step that may have
        happened and must not be repeated, or a question. With `dry_run` nothing is changed. Each job has a line in the
        journal. An act that was interrupted can be repeated.
        """
        if act not in ACTS:
            raise UsageError(f"{act!r} is not an act: {', '.join(ACTS)}")
        at = None if run_at is None else _instant("run_at", run_at)
        said = MassAct(name=act, actor=by, note=note, queue=to_queue, priority=priority, run_at=at)
        return act_on_selected(self._store, said, _selection(chosen), dry_run=dry_run)


P = ParamSpec("P")
R = TypeVar("R")


def _awaited(
    verb: Callable[Concatenate[Admin, P], R],
) -> Callable[Concatenate[AsyncAdmin, P], Coroutine[Any, Any, R]]:
    """Return the verb with its signature and docstring, run in a thread and awaited."""

    @functools.wraps(verb)
    async def awaited(self: AsyncAdmin, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await asyncio.to_thread(verb, self._admin, *args, **kwargs)

    return awaited


class AsyncAdmin:
    """The verbs of `Admin`, each awaited. Use it as `app.aio.admin`."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin

    status = _awaited(Admin.status)
    doctor = _awaited(Admin.doctor)
    explain = _awaited(Admin.explain)
    workers = _awaited(Admin.workers)
    worker = _awaited(Admin.worker)
    drain = _awaited(Admin.drain)
    stop = _awaited(Admin.stop)
    resume_workers = _awaited(Admin.resume_workers)
    forget_worker = _awaited(Admin.forget_worker)
    queues = _awaited(Admin.queues)
    series = _awaited(Admin.series)
    schedules = _awaited(Admin.schedules)
    pause_schedule = _awaited(Admin.pause_schedule)
    resume_schedule = _awaited(Admin.resume_schedule)
    fire_schedule = _awaited(Admin.fire_schedule)
    forget_schedule = _awaited(Admin.forget_schedule)
    batch = _awaited(Admin.batch)
    batches = _awaited(Admin.batches)
    tasks = _awaited(Admin.tasks)
    forget_task = _awaited(Admin.forget_task)
    tokens = _awaited(Admin.tokens)
    add_token = _awaited(Admin.add_token)
    revoke_token = _awaited(Admin.revoke_token)
    purge = _awaited(Admin.purge)
    journal = _awaited(Admin.journal)
    zombies = _awaited(Admin.zombies)
    errors = _awaited(Admin.errors)
    pause = _awaited(Admin.pause)
    resume = _awaited(Admin.resume)
    audit = _awaited(Admin.audit)
    limit = _awaited(Admin.limit)
    select = _awaited(Admin.select)
    export = _awaited(Admin.export)
    report = _awaited(Admin.report)
    act = _awaited(Admin.act)


_CHOSEN_BY = ("queue", "task", "group", "key", "worker", "workflow", "error", "release", "detector")


def _selection(given: JobFilter) -> Selection:
    states = given.get("state", ())
    since, until = given.get("since"), given.get("until")
    return Selection(
        states=(states,) if isinstance(states, str) else tuple(states),
        **{name: given.get(name) for name in _CHOSEN_BY},  # type: ignore[arg-type]
        crashed=given.get("crashed", False),
        tags=tuple(given.get("tags", ())),
        meta=tuple(given.get("meta", {}).items()),
        since=None if since is None else _instant("since", since),
        until=None if until is None else _instant("until", until),
    )


def _typed(views: list[dict[str, Any]], kind: type[V]) -> list[V]:
    """Return what the command line shows as objects; instants become datetimes in UTC."""
    return msgspec.convert(views, list[kind])  # type: ignore[valid-type]


def _instant(name: str, instant: datetime) -> float:
    if not isinstance(instant, datetime) or instant.utcoffset() is None:
        raise UsageError(f"{name}={instant!r} must be a datetime with a time zone, such as datetime.now(UTC)")
    return instant.timestamp()
