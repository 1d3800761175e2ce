"""Declaring tasks and workflows: the part of `App` that turns functions into them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar, Unpack, cast, overload

from holdfast.core.policy import Policy
from holdfast.core.records import Schedule
from holdfast.errors import UnknownTask, UsageError
from holdfast.tasks import Declare, Draft, Options, Sender, Task, TaskOptions
from holdfast.workflow.definition import DeclareWorkflow, Workflow, WorkflowOptions

if TYPE_CHECKING:
    from holdfast.app import App
    from holdfast.tasks import AsyncContextTask, AsyncTask, ContextTask, SyncTask
    from holdfast.worker.context import Context
    from holdfast.workflow.definition import AsyncWorkflow, SyncWorkflow
    from holdfast.workflow.flow import AsyncFlow, Flow

P = ParamSpec("P")
R = TypeVar("R")

_ON_THE_ROW = {*Policy.__dataclass_fields__, *Options.__dataclass_fields__}  # the rest is the task's alone


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
    def task(self, fn: None = None, /, **options: Unpack[TaskOptions]) -> Declare: ...
    def task(self, fn: Callable[..., Any] | None = None, /, **options: Unpack[TaskOptions]) -> Any:
        """Turn a function into a task: `@app.task`, or `@app.task(…)` with options.

        name: what the store knows it by; `module.qualname` by default. queue: "default" by default. priority: larger is
        sooner; 0 by default. key: text, or a function of the arguments that returns text or None; while a live job has
        the key, an enqueue returns that job.
        retry: how often and how soon after a failure; `Retry()` by default. on_crash: what becomes of a job whose
        worker died: "retry" (the default), "hold" for a person, or "fail". crashes_max: the most that it may have; 3.
        lease_s: how long a worker may be silent; 30. beat_s: how often it beats; a third of the lease. timeout_s: how
        long an attempt may run; no limit. stall_s: how long it may go without `ctx.progress()`; no limit.
        isolate: each attempt runs in a process of its own, which may crash. memory_max_mb: how much memory that process
        may use. hold_after: when this number of jobs with the same arguments have crashed and were given up or held
        within a day, new ones are held; leave it out for tasks that take no arguments or repeat the same ones.
        Raises `UsageError` for what can never work: a generator, a name that is taken, an argument that cannot travel.
        """
        return self._declare(Task, fn, TaskOptions.__optional_keys__, options)

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
    def workflow(self, fn: None = None, /, **options: Unpack[WorkflowOptions]) -> DeclareWorkflow: ...
    def workflow(self, fn: Callable[..., Any] | None = None, /, **options: Unpack[WorkflowOptions]) -> Any:
        """Turn a function whose first argument is a `Flow` into a workflow; options are those of `task`.

        on_crash: after a death "retry" goes on behind the last recorded step, "rollback" undoes the recorded ones.
        version: what changes with the order of its steps. Keep the old function declared, under its old version and
        the same name=, until its jobs have ended.
        """
        return self._declare(Workflow, fn, WorkflowOptions.__optional_keys__, options)

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

    def _declare(
        self,
        kind: type[Task[..., Any]],
        fn: Callable[..., Any] | None,
        known: frozenset[str],
        given: Mapping[str, object],
    ) -> Any:
        for unknown in given.keys() - known:
            raise TypeError(f"App.{kind.__name__.lower()}() got an unexpected keyword argument {unknown!r}")
        policy = Policy(**_fields(Policy, given))
        options = Options(policy=policy, **_fields(Options, given))
        rest: dict[str, Any] = {name: given[name] for name in given.keys() - _ON_THE_ROW}

        def declare(fn: Callable[..., Any]) -> Task[..., Any]:
            return self._register(kind(cast("App", self), fn, options, **rest))

        return declare if fn is None else declare(fn)

    def _register(self, task: Task[..., Any]) -> Task[..., Any]:
        with self._lock:
            if task.name in self.tasks:
                raise UsageError(f"this app has a task {task.name!r} already; give one of them another name=")
            self.tasks = {**self.tasks, task.name: task}  # a new dict: whoever walks the old one is not disturbed
        return task


def _fields(kind: type[Policy | Options], given: Mapping[str, object]) -> dict[str, Any]:
    return {name: given[name] for name in kind.__dataclass_fields__ if name in given}


for _verb in ("task", "cron", "workflow"):  # an error of Python's about their arguments names the class that users know
    getattr(Decorators, _verb).__qualname__ = f"App.{_verb}"
