"""A backend for Django's tasks, on `django.tasks` of Django 6 or on its backport: what both have in common.

Each task of Django's is a task of Holdfast, by its module path. It is registered where it is declared, so nothing is
imported by a name that comes from the store.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from asgiref.sync import sync_to_async
from django.conf import settings
from django.core import checks
from django.utils import timezone

from holdfast.core.machine import State
from holdfast.core.policy import OnCrash, Retry
from holdfast.core.records import Event
from holdfast.core.records import Job as Row
from holdfast.errors import GiveUp, HoldfastError, NotFound, RetryLater, Snooze
from holdfast.integrations.django.configuration import project_app
from holdfast.tasks import Draft
from holdfast.worker.context import Context

_STATUS = {
    State.RUNNING: "RUNNING",
    State.DONE: "SUCCESSFUL",
    State.DEAD: "FAILED",
    State.CANCELLED: "FAILED",
    State.ROLLED_BACK: "FAILED",
}  # all others are READY: just enqueued, or to be executed again
_ENDINGS = ("failed", "timed_out", "stalled", "zombie", "released", "snoozed")
_LOST = "holdfast.integrations.django.task_backend.WorkerLost"
_STOPPED = "holdfast.integrations.django.task_backend.AttemptStopped"


class WorkerLost(Exception):
    """The error of an attempt whose worker died."""


class AttemptStopped(Exception):
    """The error of an attempt that ran into a time limit, or of one whose exception is not known."""


class Api(NamedTuple):
    """The classes and signals of one of the two packages."""

    result: Any
    status: Any
    error: Any
    context: Any
    does_not_exist: Any
    enqueued: Any
    started: Any
    finished: Any
    normalize: Callable[[Any], Any]


@dataclass(frozen=True, kw_only=True)
class Policies:
    """The options of a task beyond Django's own: `@task(on_crash="hold")`. None: as the backend's OPTIONS say."""

    retry: Retry | None = None
    on_crash: OnCrash | None = None
    crashes_max: int | None = None
    lease_s: float | None = None
    timeout_s: float | None = None
    stall_s: float | None = None
    isolate: bool | None = None


OPTIONS = tuple(each.name for each in fields(Policies))


class BackendMixin:
    """The backend, without its base class: see `backend.py` and `backport.py`."""

    api: Api
    alias: str
    options: Mapping[str, Any]
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, params)  # type: ignore[call-arg]
        self._tasks: dict[str, Any] = {}  # as they were declared

    def validate_task(self, task: Any) -> None:
        """Check a task, and register it where it is declared. Touches no database."""
        super().validate_task(task)  # type: ignore[misc]
        if task.module_path not in self._tasks:
            self._register(task)

    def enqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Store a job; inside `atomic()` of the jobs' database, by that transaction."""
        self.validate_task(task)
        draft = self._draft(task, args, kwargs)
        job = project_app().enqueue_many([draft])[0]
        result = self._new_result(task, job.id, args, kwargs)
        self.api.enqueued.send(sender=type(self), task_result=result)
        return result

    async def aenqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Do as `enqueue` does, without blocking the event loop."""
        self.validate_task(task)
        draft = self._draft(task, args, kwargs)
        [job] = await project_app().aio.enqueue_many([draft])
        result = self._new_result(task, job.id, args, kwargs)
        await self.api.enqueued.asend(sender=type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> Any:
        """Return the result as it is now. Raises `TaskResultDoesNotExist`."""
        try:
            job = project_app().get(str(result_id))
        except (NotFound, HoldfastError) as error:
            if not isinstance(error, NotFound):
                raise
            raise self.api.does_not_exist(result_id) from error
        if job.row.task not in self._tasks:
            raise self.api.does_not_exist(result_id)
        return self._result_of(job.row, job.events())

    async def aget_result(self, result_id: str) -> Any:
        """Do as `get_result` does, without blocking the event loop."""
        return await sync_to_async(self.get_result, thread_sensitive=False)(result_id)

    def check(self, **_: Any) -> Sequence[Any]:
        """Return what is wrong with the settings of the backend."""
        unknown = sorted(self.options.keys() - set(OPTIONS))
        if not unknown:
            return []
        words = f"TASKS[{self.alias!r}]['OPTIONS'] has no {unknown[0]!r}; known: {', '.join(OPTIONS)}"
        return [checks.Error(words, id="holdfast.E002")]

    # ---------------------------------------------------------------------------------------- inside

    def _register(self, task: Any) -> None:
        app, name = project_app(), task.module_path
        own = {each: getattr(task, each, None) for each in OPTIONS}
        known = {each: value for each, value in self.options.items() if each in OPTIONS}
        given = known | {each: value for each, value in own.items() if value is not None}
        if name not in app.tasks:
            run = self._async_runner(name) if inspect.iscoroutinefunction(task.func) else self._runner(name)
            app.task(name=name, queue=task.queue_name, priority=task.priority, **given)(run)
        self._tasks[name] = task

    def _draft(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Draft[Any]:
        sender = project_app().tasks[task.module_path].using(queue=task.queue_name, priority=task.priority)
        if task.run_after is not None:
            at = task.run_after if timezone.is_aware(task.run_after) else timezone.make_aware(task.run_after)
            sender = sender.using(run_at=at)
        return sender.job(self.api.normalize(list(args)), self.api.normalize(dict(kwargs)))

    def _runner(self, name: str) -> Callable[..., Any]:
        def run(ctx: Context, args: list[Any], kwargs: dict[str, Any]) -> Any:
            result = self._begun(name, ctx, args, kwargs)
            task = result.task
            given = [self.api.context(task_result=result)] if task.takes_context else []
            self.api.started.send(sender=type(self), task_result=result)
            try:
                value = self.api.normalize(task.func(*given, *args, **kwargs))
            except Exception as error:
                if self._failed(ctx, result, error):
                    self.api.finished.send(sender=type(self), task_result=result)
                raise
            self.api.finished.send(sender=type(self), task_result=self._succeeded(result, value))
            return {"value": value, "worker": ctx.job.worker}

        return run

    def _async_runner(self, name: str) -> Callable[..., Any]:
        async def run(ctx: Context, args: list[Any], kwargs: dict[str, Any]) -> Any:
            result = await sync_to_async(self._begun, thread_sensitive=False)(name, ctx, args, kwargs)
            task = result.task
            given = [self.api.context(task_result=result)] if task.takes_context else []
            await self.api.started.asend(sender=type(self), task_result=result)
            try:
                value = self.api.normalize(await task.func(*given, *args, **kwargs))
            except Exception as error:
                if self._failed(ctx, result, error):
                    await self.api.finished.asend(sender=type(self), task_result=result)
                raise
            await self.api.finished.asend(sender=type(self), task_result=self._succeeded(result, value))
            return {"value": value, "worker": ctx.job.worker}

        return run

    def _begun(self, name: str, ctx: Context, args: list[Any], kwargs: dict[str, Any]) -> Any:
        events = project_app().store.journal(ctx.job.id) if ctx.attempt > 1 else []
        return self._result_of(ctx.job, events)

    def _failed(self, ctx: Context, result: Any, error: Exception) -> bool:
        """Note the error for the journal; say whether the job has failed for good."""
        if isinstance(error, RetryLater | Snooze):
            return False
        kind = type(error)
        path = f"{kind.__module__}.{kind.__qualname__}"
        with suppress(HoldfastError):
            ctx.heartbeat(exception=path)
        result.errors.append(self.api.error(exception_class_path=path, traceback=""))
        job = ctx.job
        if not isinstance(error, GiveUp) and job.failures + job.crashes + 1 < job.attempts_max:
            return False
        self._change(result, status=self.api.status.FAILED, finished_at=_now())
        return True

    def _succeeded(self, result: Any, value: Any) -> Any:
        self._change(result, status=self.api.status.SUCCESSFUL, finished_at=_now(), _return_value=value)
        return result

    def _new_result(self, task: Any, id: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        times = {"enqueued_at": _now(), "started_at": None, "finished_at": None, "last_attempted_at": None}
        call = {"args": list(args), "kwargs": dict(kwargs)}
        kept: dict[str, Any] = {"errors": [], "worker_ids": [], "backend": self.alias, "status": self.api.status.READY}
        return self.api.result(task=task, id=id, **call, **times, **kept)

    def _result_of(self, row: Row, events: Sequence[Event]) -> Any:
        declared = project_app().tasks[row.task]
        call: dict[str, Any] = project_app().codec.decode(row.payload)
        task = self._tasks[row.task]
        if not self.queues or row.queue in self.queues:  # type: ignore[attr-defined]  # a person may have moved it
            task = replace(task, queue_name=row.queue, priority=max(-100, min(100, row.priority)))
        result = self._new_result(task, row.id, call["args"], call["kwargs"])
        ends = [each for each in events if each.kind in _ENDINGS]
        workers = [each.worker for each in ends if each.worker]
        value = declared.decode_result(row.result) if row.state is State.DONE and row.result else None
        last = row.worker if row.state is State.RUNNING else value["worker"] if isinstance(value, dict) else None
        self._change(
            result,
            status=getattr(self.api.status, _STATUS.get(row.state, "READY")),
            enqueued_at=_instant(row.created_at),
            started_at=_instant(ends[0].at if ends else row.claimed_at),
            last_attempted_at=_instant(row.claimed_at),
            finished_at=_instant(row.ended_at),
            worker_ids=[*workers, *([last] if last else [])],
            errors=[self._error_of(each) for each in ends if each.kind not in ("released", "snoozed")],
            _return_value=value.get("value") if isinstance(value, dict) else value,
        )
        return result

    def _error_of(self, event: Event) -> Any:
        said = event.detail.get("beat_data") or {}
        path = _LOST if event.kind == "zombie" else said.get("exception", _STOPPED)
        trace = event.detail.get("traceback") or event.detail.get("error") or event.kind
        return self.api.error(exception_class_path=path, traceback=str(trace))

    def _change(self, result: Any, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(result, name, value)  # it is frozen for its users


def _instant(seconds: float | None) -> datetime | None:
    if seconds is None:
        return None
    at = datetime.fromtimestamp(seconds, UTC)
    return at if settings.USE_TZ else timezone.make_naive(at)


def _now() -> datetime | None:
    return _instant(project_app().clock.wall())
