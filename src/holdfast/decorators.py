"""Declaring tasks and workflows: the part of `App` that turns functions into them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar, cast, overload

from holdfast.core.policy import OnCrash, Policy, Retry
from holdfast.core.records import Schedule
from holdfast.errors import UnknownTask, UsageError
from holdfast.tasks import Declare, Draft, Key, Options, Sender, Task
from holdfast.workflow.definition import DeclareWorkflow, Workflow

if TYPE_CHECKING:
    from holdfast.app import App
    from holdfast.tasks import AsyncContextTask, AsyncTask, ContextTask, SyncTask
    from holdfast.worker.context import Context
    from holdfast.workflow.definition import AsyncWorkflow, SyncWorkflow
    from holdfast.workflow.flow import AsyncFlow, Flow

P = ParamSpec("P")
R = TypeVar("R")


class Decorators:
    """See the module's docstring."""

    tasks: dict[str, Task[..., Any]]
    schedules: dict[str, Schedule]
    _lock: threading.RLock

    @overload
    def task(  # type: ignore[overload-overlap]  # an async function fits the next one too
        self, fn: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /
    ) -> AsyncContextTask[P, R]: ...
    @overload
    def task(self, fn: Callable[Concatenate[Context, P], R], /) -> ContextTask[P, R]: ...
    @overload
    def task(  # type: ignore[overload-overlap]  # an async function fits the next one too
        self, fn: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def task(self, fn: Callable[P, R], /) -> SyncTask[P, R]: ...
    @overload
    def task(
        self,
        fn: None = None,
        /,
        *,
        name: str | None = None,
        queue: str = "default",
        retry: Retry = ...,
        crashes_max: int = 3,
        on_crash: OnCrash = "retry",
        lease_s: float = 30.0,
        beat_s: float | None = None,
        timeout_s: float | None = None,
        stall_s: float | None = None,
        priority: int = 0,
        key: Key = None,
        isolate: bool = False,
        memory_max_mb: int | None = None,
        hold_after: int | None = None,
    ) -> Declare: ...
    def task(
        self,
        fn: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        queue: str = "default",
        retry: Retry = Retry(),  # noqa: B008  frozen
        crashes_max: int = 3,
        on_crash: OnCrash = "retry",
        lease_s: float = 30.0,
        beat_s: float | None = None,
        timeout_s: float | None = None,
        stall_s: float | None = None,
        priority: int = 0,
        key: Key = None,
        isolate: bool = False,
        memory_max_mb: int | None = None,
        hold_after: int | None = None,
    ) -> Any:
        """Turn a function into a task: `@app.task`, or `@app.task(…)` with options.

        name: what the store knows it by; `module.qualname` by default. retry: how often and how soon after a failure.
        on_crash: what becomes of a job whose worker died: "retry", "hold" for a person, or "fail"; at most
        `crashes_max` crashes. lease_s: how long a worker may be silent. timeout_s: how long an attempt may run.
        stall_s: how long it may go without `ctx.progress()`. key: text, or a function of the arguments that returns
        text or None; while a live job has the key, an enqueue returns that job. isolate: each attempt runs in a process
        of its own, which may crash; memory_max_mb: how much memory that process may use. hold_after: when so many jobs
        with the same arguments have crashed and were given up or held within a day, new ones are held. Of the task and
        not of the app, because who takes no arguments, or is meant to come again, is better without.
        Raises `UsageError` for what can never work: a generator, a name that is taken, an argument that cannot travel.
        """
        policy = Policy(retry, crashes_max, on_crash, lease_s, beat_s, timeout_s, stall_s)
        options = Options(queue=queue, priority=priority, key=key, policy=policy)

        def declare(fn: Callable[..., Any]) -> Task[..., Any]:
            return self._register(
                Task(
                    cast("App", self),
                    fn,
                    options,
                    name,
                    isolate=isolate,
                    memory_max_mb=memory_max_mb,
                    hold_after=hold_after,
                )
            )

        return declare if fn is None else declare(fn)

    def cron(
        self,
        spec: str,
        task: Sender[..., Any] | Draft[Any],
        *,
        key: str | None = None,
        tz: str = "UTC",
        missed: Literal["last", "skip"] = "last",
    ) -> None:
        """Enqueue the task at each instant of a cron expression, exactly once while workers run; see docs/schedules.md.

        task: the task, `task.using(…)`, or `task.job(…)` with its arguments. key: what the store knows the schedule by;
        by default the task's name. tz: the zone of the expression. missed: what becomes of instants at which nobody
        ran: "last" fires the last of them, "skip" none.
        """
        from holdfast.scheduler import declaration

        made = declaration(cast("App", self), spec, task, key, tz, missed)
        self.schedules = {**self.schedules, made.key: made}

    @overload
    def workflow(  # type: ignore[overload-overlap]  # an async function fits the next one too
        self, fn: Callable[Concatenate[AsyncFlow, P], Coroutine[Any, Any, R]], /
    ) -> AsyncWorkflow[P, R]: ...
    @overload
    def workflow(self, fn: Callable[Concatenate[Flow, P], R], /) -> SyncWorkflow[P, R]: ...
    @overload
    def workflow(
        self,
        fn: None = None,
        /,
        *,
        version: int = 1,
        name: str | None = None,
        queue: str = "default",
        retry: Retry = ...,
        crashes_max: int = 3,
        on_crash: OnCrash = "retry",
        lease_s: float = 30.0,
        beat_s: float | None = None,
        timeout_s: float | None = None,
        stall_s: float | None = None,
        priority: int = 0,
        key: Key = None,
        isolate: bool = False,
        memory_max_mb: int | None = None,
        hold_after: int | None = None,
    ) -> DeclareWorkflow: ...
    def workflow(
        self,
        fn: Callable[..., Any] | None = None,
        /,
        *,
        version: int = 1,
        name: str | None = None,
        queue: str = "default",
        retry: Retry = Retry(),  # noqa: B008  frozen
        crashes_max: int = 3,
        on_crash: OnCrash = "retry",
        lease_s: float = 30.0,
        beat_s: float | None = None,
        timeout_s: float | None = None,
        stall_s: float | None = None,
        priority: int = 0,
        key: Key = None,
        isolate: bool = False,
        memory_max_mb: int | None = None,
        hold_after: int | None = None,
    ) -> Any:
        """Turn a function whose first argument is a `Flow` into a workflow; options are those of `task`.

        on_crash: after a death "retry" goes on behind the last recorded step, "rollback" undoes the recorded ones.
        version: what changes with the order of its steps. Keep the old function declared, under its old version and
        the same name=, until its jobs have ended.
        """
        policy = Policy(retry, crashes_max, on_crash, lease_s, beat_s, timeout_s, stall_s)
        options = Options(queue=queue, priority=priority, key=key, policy=policy)

        def declare(fn: Callable[..., Any]) -> Task[..., Any]:
            app = cast("App", self)
            limits: dict[str, Any] = {"memory_max_mb": memory_max_mb, "hold_after": hold_after}
            return self._register(Workflow(app, fn, options, name, version=version, isolate=isolate, **limits))

        return declare if fn is None else declare(fn)

    def named(self, name: str) -> Task[..., Any]:
        """Return the task of this name; its last part will do where only one task has it. Raises `UnknownTask`."""
        if name in self.tasks:
            return self.tasks[name]
        found = [task for task in self.tasks.values() if task.name.rpartition(".")[2] == name]
        if len(found) == 1:
            return found[0]
        known = ", ".join(sorted(task.name for task in found or self.tasks.values())) or "none"
        what = "several tasks are called" if found else "this app has no task"
        raise UnknownTask(f"{what} {name!r}; known: {known}")

    def _register(self, task: Task[..., Any]) -> Task[..., Any]:
        with self._lock:
            if task.name in self.tasks:
                raise UsageError(f"this app has a task {task.name!r} already; give one of them another name=")
            self.tasks = {**self.tasks, task.name: task}  # a new dict: whoever walks the old one is not disturbed
        return task


for _verb in ("task", "cron", "workflow"):  # an error of Python's about their arguments names the class that users know
    getattr(Decorators, _verb).__qualname__ = f"App.{_verb}"
