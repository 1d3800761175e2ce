"""The app: where tasks are declared, and the way to the store that holds their jobs."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from socket import gethostname
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, Unpack, get_args, overload

from holdfast.bulk import move_one
from holdfast.clock import Clock, SystemClock
from holdfast.continuity import PRODUCER, Continuity, check_whole
from holdfast.core import acts
from holdfast.core.batches import ABANDON_S
from holdfast.core.durations import iso
from holdfast.core.labels import meta_text, tags_of, tags_text
from holdfast.core.limits import Setting, setting
from holdfast.core.machine import State, States, states_named
from holdfast.core.payload import JSON, Codec, decode_value, encode_value
from holdfast.core.policy import Policy
from holdfast.core.records import Filter, NewJob, Schedule, Signal, Step
from holdfast.core.records import Job as Row
from holdfast.core.replay import STEPS_MAX, answer_to, first_named
from holdfast.core.retention import Age, Retention
from holdfast.core.schedule import Missed, every
from holdfast.core.text import check_storable
from holdfast.core.verdict import Verdict
from holdfast.enqueueing.batches import Batch, ThenTask
from holdfast.enqueueing.by_name import NamedTask, draft_by_name, task_named
from holdfast.enqueueing.many import ADD_AT_ONCE, EnqueueStream, OnProgress, StreamProgress, check_draft, store_many
from holdfast.enqueueing.stored_calls import changed_payload, check_codec
from holdfast.errors import IllegalMove, NotFound, Refused, UnknownTask, UsageError
from holdfast.extensions.enqueue_middleware import EL, EnqueueMiddleware
from holdfast.extensions.middleware import L, Middleware
from holdfast.extensions.resources import Opener, Resources
from holdfast.extensions.worker_hooks import WorkerHook, WorkerHooks
from holdfast.forks import importing
from holdfast.ids import new_id, new_job_id
from holdfast.jobs import Job
from holdfast.queues import pause_queue, resume_queue
from holdfast.runtime.closing import CLOSED, Closing
from holdfast.runtime.hooks import Hook, HookKind, Hooks
from holdfast.stores import fit, open_store
from holdfast.stores.protocol import Reply, Store
from holdfast.stores.urls import DEFAULT_URL, absolute_url
from holdfast.tasks import (
    Declare,
    Draft,
    EnqueueOptions,
    JobOptions,
    Sender,
    Task,
    TaskOptions,
    check_expiry,
    check_name,
    key_rule,
    module_of_caller,
)
from holdfast.workflow.definition import DeclareWorkflow, Workflow, WorkflowOptions
from holdfast.workflow.values import signal_name

if TYPE_CHECKING:
    from holdfast.admin import Admin, BatchView
    from holdfast.aio import AsyncApp
    from holdfast.alerts import Alert
    from holdfast.alerts.messages import WebhookForm
    from holdfast.alerts.rules import AlertKind, ThresholdOptions
    from holdfast.upkeep.embedded_reaper import EmbeddedReaper
    from holdfast.upkeep.reaper import Report
    from holdfast.worker.embedded import EmbeddedWorker
    from holdfast.worker.tick import TickReport

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

SIGNAL_ID_MAX = 255

Journal = Literal["short", "full"]
H = TypeVar("H", bound=WorkerHook)

_OF_KEYS = ("key_scope", "on_taken", "wait_max")
# All other options belong to the task alone.
_ON_THE_ROW = {*Policy.__dataclass_fields__, *JobOptions.__dataclass_fields__, *_OF_KEYS}


class App:
    """Tasks and their jobs. Making one does no I/O; the store is opened at its first use. Safe to share by threads.

    url: `sqlite:///jobs.db` (a path from here; four slashes for one from the root), `postgresql://user@host/database`,
    `redis://server`, `memory://`; by default `$HOLDFAST_DB`, or a file `holdfast.db` in this folder. codec: how
    payloads and results become text, when JSON does not serve; every program of the fleet needs the same. journal:
    "full" also records claims and successes. keep: how long ended jobs are kept, by state, such as
    {"done": "7d", "dead": "90d"}; what is not named is kept for ever. `holdfast worker` deletes the rest.
    migrate: False for those who run `holdfast db migrate` themselves; a stale schema is then refused.

        app = App("sqlite:///jobs.db")

        @app.task(queue="mail", retry=Retry(attempts_max=3))
        def send(to: str, subject: str = "hello") -> str:
            return f"sent to {to}"

        job = send.enqueue("ann@example.org")
        job.result(timeout=10)
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        codec: Codec | None = None,
        logger: logging.Logger | None = None,
        journal: Journal = "short",
        keep: Mapping[str, Age] | None = None,
        migrate: bool = True,
        clock: Clock | None = None,
    ) -> None:
        if journal not in get_args(Journal):
            raise UsageError(f'journal={journal!r} is not known; choose "short" or "full"')
        self.codec: Codec = codec if codec is not None else JSON
        self.logger = logger if logger is not None else logging.getLogger("holdfast")
        self.journal: Journal = journal
        self.keep = Retention.declare(keep)
        self._clock: Clock = clock if clock is not None else SystemClock()
        self.hooks = Hooks()
        self.layers = Middleware()
        self.enqueue_layers = EnqueueMiddleware()
        self.resources = Resources()
        self.worker_hooks = WorkerHooks()
        self.around: set[str] = set()  # modules that declare middleware, resources or worker hooks
        self.alerts: tuple[Alert, ...] = ()
        self.flow_looked_at = float("-inf")  # lease time of the last tick that looked for what alerts are about
        self.tasks: dict[str, Task[..., Any]] = {}
        self.schedules: dict[str, Schedule] = {}
        self.queues: dict[str, Setting] = {}  # the limits that it declares
        self.declared = False  # whether this program has declared its schedules in the store
        self._url = absolute_url(url if url is not None else os.environ.get("HOLDFAST_DB") or DEFAULT_URL)
        self._migrate = migrate
        self.opener: Callable[[], Store] = self._open_store  # a command opens only what is there
        self._store: Store | None = None
        self._continuity: Continuity | None = None
        self._closed = False
        self.in_test = False  # whether an `AppTester` runs its jobs
        self.closing = Closing(self.logger)
        self._aio: AsyncApp | None = None
        self._lock = threading.RLock()

    # -----------------------------------------------------------------------------declaring

    @property
    def task(self) -> Declare:
        """Turn a function into a task: `@app.task`, or `@app.task(…)` with options.

        name: what the store knows it by; `module.qualname` by default. queue: "default" by default. priority: larger is
        sooner; 0 by default. key: text, or a function of the arguments that returns text or None; while a live job has
        the key, an enqueue returns that job. key_scope, on_taken, wait_max: how long a job has its key, and what an
        enqueue does that finds it taken; as in `using`. tags, meta: text that jobs are found by;
        see docs/tasks.md. expires_s: how long a job may wait for a worker before it is
        cancelled; for ever by default.
        retry: how often and how soon after a failure; `Retry()` by default. on_crash: what becomes of a job whose
        worker died: "retry" (the default), "hold" for a person, or "fail". crashes_max: the most that it may have; 3.
        lease_s: how long a worker may be silent; 30. beat_s: how often it beats; a third of the lease. timeout_s: how
        long an attempt may run; no limit. stall_s: how long it may go without `ctx.progress()`; no limit.
        isolate: each attempt runs in a process of its own, which may crash. memory_max_mb: how much memory that process
        may use. hold_after: when this number of jobs with the same arguments have crashed and were given up or held
        within a day, new ones are held; leave it out for tasks that take no arguments or repeat the same ones.
        ignore_result: what the function returns is not stored, and `job.result()` returns None.
        on_done: a task to enqueue when a job is done. on_dead: one to enqueue when a job is dead or rolled back. It
        gets `job_id`, `state`, `error_kind` and `error` by name, as far as it takes them; see docs/callbacks.md.
        Raises `UsageError` for what can never work: a generator, a name that is taken, an argument that cannot travel.
        """
        return partial(self._declare, Task, TaskOptions.__optional_keys__)

    def cron(
        self,
        spec: str,
        task: Sender[..., Any] | Draft[Any],
        *,
        key: str | None = None,
        tz: str = "UTC",
        missed: Missed = "last",
        jitter_s: float = 0.0,
    ) -> None:
        """Enqueue the task at each instant of a cron expression, exactly once while workers run; see docs/schedules.md.

        task: the task, `task.using(…)`, or `task.job(…)` with its arguments. key: what the store knows the schedule by;
        by default the task's name. tz: the zone of the expression. missed: what becomes of instants at which nobody
        ran: "last" fires the last of them, "skip" none, `All(24)` the last 24. jitter_s: each job starts up to this
        much after its instant; always the same for one key and instant.
        """
        from holdfast.upkeep.scheduler import declaration

        made = declaration(self, key, spec, task, tz=tz, missed=missed, jitter_s=jitter_s)
        self.schedules = {**self.schedules, made.key: made}

    def every(
        self,
        *,
        seconds: float,
        task: Sender[..., Any] | Draft[Any],
        key: str | None = None,
        missed: Missed = "last",
        jitter_s: float = 0.0,
    ) -> None:
        """Enqueue the task at each multiple of `seconds` (at least 1) since 1970, each exactly once, as `cron` does.

        The other arguments are those of `cron`.
        """
        self.cron(every(seconds), task, key=key, missed=missed, jitter_s=jitter_s)

    def queue(
        self,
        name: str,
        *,
        limit: int | None = None,
        group_limit: int | None = None,
        rate: str | None = None,
        burst: int = 1,
    ) -> None:
        """Declare the limits of a queue; see docs/limits.md. They are in force once a worker of this app has started.

        limit: the most jobs of the queue that run at once, over all workers. group_limit: the most of each group. rate:
        the most starts, such as "100/60s". burst: how many of these may come at once after a quiet time. A limit that
        a person sets with `holdfast queues limit` wins.
        """
        given = {"limit": limit, "group_limit": group_limit, "rate": rate, "burst": None if burst == 1 else burst}
        declared = setting(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]
        self.queues = {**self.queues, check_name("queue", name): declared}

    @property
    def workflow(self) -> DeclareWorkflow:
        """Turn a function whose first argument is a `Flow` into a workflow; options are those of `task`.

        on_crash: after a death "retry" continues after the last recorded step, "rollback" undoes the recorded ones.
        version: what changes with the order of its steps. Keep the old function declared, under its old version and
        the same name=, until its jobs have ended.
        """
        return partial(self._declare, Workflow, WorkflowOptions.__optional_keys__)

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
        self, kind: type[Task[..., Any]], known: frozenset[str], fn: Callable[..., Any] | None = None, /, **given: Any
    ) -> Any:
        for unknown in given.keys() - known:
            raise TypeError(f"App.{kind.__name__.lower()}() got an unexpected keyword argument {unknown!r}")
        policy = Policy(**_fields(Policy, given))
        rule = key_rule(None, *(given.get(name) for name in _OF_KEYS))
        if given.get("expires_s") is not None:
            given["expires_s"] = check_expiry(given["expires_s"])
        if given.get("tags") is not None:
            given["tags"] = tags_text(given["tags"])
        if given.get("meta") is not None:
            given["meta"] = meta_text(given["meta"])
        options = JobOptions(policy=policy, key_rule=rule, **_fields(JobOptions, given))
        rest: dict[str, Any] = {name: given[name] for name in given.keys() - _ON_THE_ROW}

        def declare(fn: Callable[..., Any]) -> Task[..., Any]:
            return self._register(kind(self, fn, options, **rest))

        return declare if fn is None else declare(fn)

    def _register(self, task: Task[..., Any]) -> Task[..., Any]:
        with self._lock:
            if task.name in self.tasks:
                raise UsageError(f"this app has a task {task.name!r} already; give one of them another name=")
            self.tasks = {**self.tasks, task.name: task}  # a new dict, so that a loop over the old one is not disturbed
        return task

    @overload
    def on(self, kind: HookKind, hook: Hook) -> Hook: ...
    @overload
    def on(self, kind: HookKind) -> Callable[[Hook], Hook]: ...
    def on(self, kind: HookKind, hook: Hook | None = None) -> Hook | Callable[[Hook], Hook]:
        """Call `hook` with the event's details whenever one of this kind happens in this process.

        Without a hook it is a decorator. A hook that raises is logged and stops nothing.
        """
        return partial(self.hooks.on, kind) if hook is None else self.hooks.on(kind, hook)

    def alert(
        self,
        *,
        log: bool = False,
        command: Sequence[str] = (),
        webhook: str | None = None,
        secret: str | None = None,
        private: bool = False,
        form: WebhookForm | None = None,
        on: Iterable[AlertKind] | None = None,
        **limits: Unpack[ThresholdOptions],
    ) -> None:
        """Tell people, by these channels, when a job is held or dead, a queue is behind and so on: docs/alerts.md.

        command: a program and its arguments. webhook: an https address; each request is signed with `secret`; one on a
        private network needs `private`; form="slack" for the webhooks of Slack and the like. on: only these of "held",
        "dead", "crashes", "zombie_rate", "false_positives", "late_schedules", "backlog", "no_worker", "silent_worker",
        "unknown_task", "recovery_rate", "slow_detection", "error_rate".
        limits: `crashes=2`, `zombies_max=20`, `false_max=0.05`, `backlog_s=600`, `unserved_s=120`, `silent_s=30`,
        `recovered_min=0.9`, `detection_s=60`, `errors_max=0.5`, `window_s=600`, `again_s=300`.
        """
        from holdfast.alerts import declare

        to: dict[str, Any] = {"log": log, "command": command, "webhook": webhook, "private": private, "form": form}
        told = declare(**to, secret=secret, on=on, limits=limits)
        self.alerts = (*self.alerts, told)

    def middleware(self, layer: L) -> L:
        """Run a generator function around every attempt: `@app.middleware`. The first declared is the outermost.

        Its one argument is the `Context`. The code before its `yield` runs before the task, the code after it
        runs afterwards; an exception of the task is raised at the `yield`, and reaches the job also if the layer
        swallows it. A plain generator is for all tasks, an async one for async tasks only.
        """
        self.around.add(module_of_caller())
        return self.layers.add(layer)

    def enqueue_middleware(self, layer: EL) -> EL:
        """Let a function see, change or refuse each job before it is stored: `@app.enqueue_middleware`.

        It takes the draft and returns it, or `draft.using(…)`; what it raises reaches the caller, and nothing is
        stored. The first declared comes first. An async one is for awaited enqueues only. See docs/middleware.md.
        """
        return self.enqueue_layers.add(layer)

    def resource(self, kind: type[T], opener: Opener[T]) -> None:
        """Say how tasks get a `kind`, such as a pool of connections. It is opened once in each process that needs it.

        A task gets it as an argument that is annotated with the class, `db: Database = injected`, or asks for it with
        `ctx.resource(Database)`. Declare it before such a task. opener: a function that returns it, or a generator
        that yields it and then closes it; if it is async, only async tasks can have it.
        """
        self.resources.declare(kind, opener)
        self.around.add(module_of_caller())

    def on_worker_start(self, hook: H) -> H:
        """Call a function without arguments, sync or async, in each worker process before its first claim.

        If it raises, the worker does not start. An isolated process calls it before its first attempt.
        """
        self.around.add(module_of_caller())
        self.worker_hooks.on_start.append(hook)
        return hook

    def on_worker_stop(self, hook: H) -> H:
        """Call a function without arguments, sync or async, in each worker process after its last job. If it raises,
        that is logged. A process that is killed does not call it."""
        self.around.add(module_of_caller())
        self.worker_hooks.on_stop.append(hook)
        return hook

    # ------------------------------------------------------------------------------------- the store

    @property
    def url(self) -> str:
        """Return the address of the store, with an absolute path. It may be set until the store is first used."""
        return self._url

    @url.setter
    def url(self, url: str) -> None:
        wanted = absolute_url(url)
        with self._lock:
            if self._store is not None and wanted != self._url:
                raise UsageError("the store is open; set the url before its first use")
            self._url = wanted

    @property
    def clock(self) -> Clock:
        """Return the clock of the app and its store. It may be set until the store is first used."""
        return self._clock

    @clock.setter
    def clock(self, clock: Clock) -> None:
        with self._lock:
            if self._store is not None and clock is not self._clock:
                raise UsageError("the store is open and keeps its clock; set the clock before its first use")
            self._clock = clock

    @property
    def store(self) -> Store:
        """Return the store, opened and brought up to date at the first use."""
        store = self._store
        return store if store is not None else self._open()

    def _open(self) -> Store:
        with self._lock:
            if self._closed:
                raise UsageError(CLOSED)
            if self._store is None:
                store = self.opener()
                self._continuity = Continuity(store, self.clock, f"{gethostname()}:{os.getpid()}", PRODUCER)
                self._store = store
            return self._store

    def _open_store(self) -> Store:
        store = open_store(self._url, clock=self.clock, create=self._migrate)
        try:
            fit(store, migrate=self._migrate)
            check_whole(store)
        except BaseException:
            store.close()
            raise
        return store

    def _watched(self) -> Store:
        """Return the store, after a look whether it still is what it was."""
        store = self.store
        if self._continuity is not None:
            self._continuity.try_to_look()
        return store

    def close(self) -> None:
        """Close the store. Safe to call twice; the app is of no use afterwards.

        A tick or a worker of this app in another thread stops first: it claims nothing more, its running jobs may
        finish within its budget or grace period, and what has ended is saved. Raises `UsageError` in a job.
        """
        self.closing.drain()
        with self._lock:
            store, self._store, self._closed = self._store, None, True
        if store is not None:
            store.close()

    def __enter__(self) -> App:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def aio(self) -> AsyncApp:
        """Return the same verbs for `await`."""
        if self._aio is None:
            with importing:
                from holdfast.aio import AsyncApp

            self._aio = AsyncApp(self)
        return self._aio

    @property
    def admin(self) -> Admin:
        """Return the reads and acts of the command line: workers, queues, schedules, the journal, limits."""
        with importing:
            from holdfast.admin import Admin

        return Admin(self)

    # --------------------------------------------------------------------------------------- the jobs

    def enqueue_many(self, drafts: Iterable[Draft[R]]) -> list[Job[R]]:
        """Store many jobs, made by `task.job(…)`, and return them in order once they are durable.

        A thousand share one transaction, on Redis 50, and are stored all or none. If the store fails on the way, the
        error says how many are stored, and has their ids in `stored_ids`. Call it again with the same drafts: what is
        stored already is found again, not doubled.
        """
        wanted = list(drafts)
        for draft in wanted:
            check_draft(self, draft)
        return self._store_drafts([self.enqueue_layers.apply(draft) for draft in wanted])

    def _store_drafts(self, wanted: list[Draft[R]]) -> list[Job[R]]:
        """Store drafts that have passed the enqueue middleware."""
        connections = {id(draft.connection): draft.connection for draft in wanted}
        if len(connections) > 1:
            raise UsageError("these jobs are for several connections; enqueue those of each connection by themselves")
        added = store_many(self, [draft.new for draft in wanted], wanted[0].connection if wanted else None)
        return [Job(self, each.id, existed=each.existed) for each in added]

    def enqueue_stream(
        self,
        drafts: Iterable[Draft[Any]],
        *,
        chunk: int = ADD_AT_ONCE,
        on_progress: OnProgress | None = None,
    ) -> Iterator[StreamProgress]:
        """Store jobs from any iterable, made by `task.job(…)`, as you iterate over what this returns.

        It takes up to `chunk` jobs, stores them in one transaction, and yields how many were new, how many existed,
        and how many are stored by now; `on_progress` is called with the same. It keeps no job, so a generator may
        make millions. On SQLite it takes fewer at once, so that other writers wait for 20 ms at most.
        If the store fails, the error says how many are stored (`stored_count`). Iterate on, and the chunk that failed
        is tried again. A program that repeats the stream stores nothing twice if it chooses the ids (`using(id=…)`).
        """
        return EnqueueStream(self, drafts, chunk, on_progress)

    def batch(self, then: ThenTask = None, *, id: str | None = None, abandon_s: float = ABANDON_S) -> Batch:
        """Return a batch to add jobs to: `with app.batch(then=summarise) as batch: batch.add(resize.job("a.mov"))`.

        then: a task, `task.using(…)`, `task.job(…)` or a name. Its job is stored once, when all jobs of the batch have
        ended: done, dead, cancelled or rolled back. It gets `counts`, `complete` and `batch_id` by name, as far as it
        takes them; see docs/batches.md. id: the caller's own, so that a program that was interrupted may repeat the
        block: nothing is stored twice. abandon_s: a batch to which nobody adds for this long is closed, and `complete`
        is False. After an error in the block, too; with `id` the batch stays open for the repetition.
        """
        return Batch(self, then, id, abandon_s)

    def get_batch(self, id: str) -> BatchView:
        """Return a batch with its jobs by state, or raise `NotFound`."""
        return self.admin.batch(id)

    def batch_jobs(self, id: str, state: States = None, *, limit: int = 100) -> list[Job[Any]]:
        """Return jobs of a batch, at most `limit`. `state` is one, several, or None for any."""
        check_storable(id=id)
        return [self._handle(row) for row in self.store.batches.jobs(id, states_named(state), limit)]

    def enqueue_by_name(
        self, task: str, arguments: Mapping[str, Any] | Sequence[Any] = (), /, **options: Unpack[EnqueueOptions]
    ) -> Job[Any]:
        """Store one job of a task whose code this program need not have; see docs/by-name.md.

        arguments: a mapping of keyword arguments or a list of positional ones. options: those of `task.using`.
        Queue, priority, policy and checks are those that workers have published of the task. Raises `UnknownTask` if
        none has, unless `on_crash` is stated, and `PayloadError` for arguments that do not fit; then nothing is stored.
        """
        return self._enqueue(draft_by_name(self, task, arguments, options))

    def task_named(self, name: str) -> NamedTask | Task[..., Any]:
        """Return a task by its name, as workers have published it, to enqueue many jobs of it: it has `enqueue`,
        `using` and `job` as the task itself. Raises `UnknownTask`."""
        return task_named(self, name)

    def _enqueue(self, draft: Draft[R]) -> Job[R]:
        """Store one job of a task of ours."""
        if draft.connection is not None or self.enqueue_layers or draft.new.awaits:
            return self.enqueue_many([draft])[0]
        [added] = self.store.add([draft.new])
        self._note_added(added.id)
        return Job(self, added.id, existed=added.existed)

    def _note_added(self, job_id: str) -> None:
        """Wake a worker of this process, and remember a job that the store has acknowledged."""
        if self._store is not None:
            self._store.wake()
        if self._continuity is not None:
            self._continuity.added(job_id)

    def get(self, id: str) -> Job[Any]:
        """Return the job, or raise `NotFound`."""
        return self._handle(self._row(id))

    def find(
        self,
        state: States = None,
        *,
        queue: str | None = None,
        task: str | None = None,
        key: str | None = None,
        limit: int = 100,
        group: str | None = None,
        tags: Sequence[str] = (),
        meta: Mapping[str, str] | None = None,
    ) -> list[Job[Any]]:
        """Return the jobs that match, newest first, at most `limit`. `state` is one, several, or None for any.

        They have all of these tags and all of this metadata.

        task: its name; the last part will do where only one task of this app has it.
        """
        check_storable(queue=queue, task=task, key=key, group=group)
        if task is not None and any(known.rpartition(".")[2] == task for known in self.tasks):
            task = self.named(task).name
        labels = {"tags": tuple(tags_of(tags_text(tags))), "meta": tuple((meta or {}).items())}
        named = {"queue": queue, "task": task, "key": key, "group": group}
        where = Filter(states=states_named(state), limit=limit, **named, **labels)  # type: ignore[arg-type]
        return [self._handle(row) for row in self.store.find(where)]

    def counts(self) -> dict[str, int]:
        """Return how many jobs are in each of the eight states, over all queues."""
        total = {state.value: 0 for state in State}
        for states in self.store.counts().values():
            for state, number in states.items():
                total[state.value] += number
        return total

    def cancel(self, id: str, *, by: str = "app", note: str | None = None, fence: int | None = None) -> Job[Any]:
        """Stop a job that has not ended, and return it. A running one is asked to stop, and may still succeed.

        fence: the one that you saw, `job.row.fence`; then it counts only if the job has not moved since. Raises
        `NotFound`; `IllegalMove` when it has ended; `Refused` when it moved on meanwhile: look again.
        """
        row = self._seen(id, fence)
        return self._move(row, acts.cancel(row, actor=by, reason=note))

    def revive(
        self,
        id: str,
        *,
        by: str = "app",
        note: str | None = None,
        fence: int | None = None,
        repeat_step: bool = False,
    ) -> Job[Any]:
        """Bring a held, dead or cancelled job back, ready now and with fresh budgets, and return it.

        fence: as in `cancel`; a repeated revive cannot start a second run. repeat_step: steps that must not be
        repeated were begun and not recorded, and all of them may be run again. Raises `NotFound`; `IllegalMove` from
        any other state, and when there is such a step and nobody said so; `KeyTaken` when another live job has its key;
        `Refused` when it moved on meanwhile: look again.
        """
        now = self.store.now().wall
        row = self._seen(id, fence)
        steps = self.store.steps(id, limit=STEPS_MAX) if row.open_step is not None else []
        verdict = acts.revive(row, now, actor=by, reason=note, repeat_step=repeat_step, steps=steps)
        return self._move(row, verdict)

    def resolve(
        self,
        id: str,
        answer: acts.Choice,
        *,
        by: str = "app",
        note: str | None = None,
        result: Any = ...,
        fence: int | None = None,
    ) -> Job[Any]:
        """Answer for a held job, and return it: "retry" runs it again, "done" says that it happened, "fail" gives up;
        "rollback" undoes what a workflow did.

        `result` goes with "done", and must be what the task would have returned; it is taken as it is where this app
        does not have the task. If a workflow is held with an open step, it is the result of that step and required; the
        workflow continues after that step. A worker checks it against the step's annotation, and asks again if it does
        not fit. If a rollback is stuck, "done" says that the next undo was done by hand. A workflow that asks a person
        is answered with "retry" for yes and "fail" for no. fence: as in `cancel`. Raises as `revive`;
        also `UsageError` where the job was stored with another codec.
        """
        if answer not in get_args(acts.Choice):
            raise UsageError(f'{answer!r} is not an answer; choose "retry", "done", "fail" or "rollback"')
        if result not in (None, ...) and answer != "done":
            raise UsageError(f'a result goes with "done" only, not with {answer!r}')
        now = self.store.now().wall
        row = self._seen(id, fence)
        if answer in ("retry", "fail") and row.question is not None:
            return self._answer(row, answer == "retry", by, note)
        if row.question is None and row.state is not State.HELD and (answered := self._last_answer(id)):
            raise IllegalMove(f"job {id} is {row.state.value} and asks nobody{answered}")
        asks_of_steps = row.open_step is not None or row.rolling_back
        steps = self.store.steps(id, limit=STEPS_MAX) if asks_of_steps else []
        said = result is not ... and (result is not None or row.open_step is not None)
        text = self._result_text(row, result) if said else None
        return self._move(row, acts.resolve(row, answer, now, actor=by, reason=note, result=text, steps=steps))

    def schedule(
        self,
        key: str,
        spec: str,
        task: Sender[..., Any] | Draft[Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        tz: str = "UTC",
        missed: Missed = "last",
        jitter_s: float = 0.0,
    ) -> None:
        """Store a schedule now, or change the one with this key; no program need declare it, and any worker fires it.

        spec: a cron expression, or "@every 30s". The other arguments are those of `cron`. A new expression counts from
        now. Raises `Refused` if a running program declares the key with `cron`, and `UsageError` or `PayloadError` for
        what can never work; then nothing is stored.
        """
        from holdfast.upkeep.scheduler import make_schedule

        make_schedule(self, key, spec, task, args, kwargs, tz=tz, missed=missed, jitter_s=jitter_s)

    def unschedule(self, key: str) -> bool:
        """Remove a schedule that was made with `schedule`; False if there is none. Jobs that it stored stay.

        Raises `Refused` if a running program declares the key with `cron`.
        """
        from holdfast.upkeep.scheduler import drop_schedule

        return drop_schedule(self.store, key)

    def pause(
        self,
        queue: str,
        *,
        group: str | None = None,
        until: datetime | None = None,
        by: str = "app",
        note: str | None = None,
    ) -> None:
        """Start no jobs of a queue, or of a group in it, until an instant with a time zone, or `resume`."""
        pause_queue(self.store, queue, group, until, by, note)

    def resume(self, queue: str, *, group: str | None = None, by: str = "app", note: str | None = None) -> None:
        """Let jobs of a queue, or of one group in it, start again."""
        resume_queue(self.store, queue, group, by, note)

    def reap(self, *, grace_s: float = 0.0) -> Report:
        """Find attempts whose worker is lost, decide what becomes of their jobs, and report. Safe to run anywhere.

        It looks twice, a moment apart, so that a worker that was only held up comes first. On PostgreSQL it waits one
        beat for a worker that beats and has not renewed a lease. Hooks and alerts get what it found.
        """
        with importing:
            from holdfast.alerts.notifier import tell_once
            from holdfast.upkeep.reaper import reap

        store = self._watched()
        since = store.now().wall
        report = reap(store, self.clock, hooks=self.hooks, grace_s=grace_s)
        tell_once(store, self.clock, self.alerts, name="reap", since=since)
        return report

    def tick(self, budget_s: float = 25.0, *, queues: Iterable[str] = (), slots: int = 20) -> TickReport:
        """Fire schedules, recover lost jobs, run what is due, send alerts and prune, all within `budget_s` seconds.

        For serverless functions, cron jobs and requests: it returns early when nothing is left to do, and gives back
        what it cannot finish in time; a started job with on_crash="hold" is held instead. A handler that does not react
        to being stopped is left to its lease. Any number of ticks may run at once.
        """
        with importing:
            from holdfast.worker.options import WorkerOptions
            from holdfast.worker.tick import tick

        self._watched()
        report = tick(self, budget_s, WorkerOptions(queues=tuple(queues), slots=slots, reaper=False))
        self._watched()  # the store has counted the worker of this tick: an older copy of the store has not
        return report

    def worker(
        self,
        *,
        queues: Iterable[str] = (),
        slots: int = 20,
        name: str | None = None,
        grace_period_s: float = 30.0,
        reaper: bool = True,
        release: str | None = None,
    ) -> EmbeddedWorker:
        """Return a worker for this program: `with app.worker(slots=4):` runs it on threads of this process.

        The options are those of `holdfast worker`. `async with` does the same without blocking the event loop. It has
        no supervisor: a death of this process is found by other workers, or when the lease ends.
        """
        with importing:
            from holdfast.worker.embedded import EmbeddedWorker
            from holdfast.worker.options import WorkerOptions, release_of_environment

        if isinstance(queues, str):
            raise UsageError(f"queues={queues!r} is text; write a list: queues=[{queues!r}]")
        names, release = tuple(queues), release or release_of_environment()
        settings = WorkerOptions(names, slots, 1, name, grace_period_s, reaper, release=release)
        return EmbeddedWorker(self, settings)

    def reaper(
        self,
        *,
        name: str | None = None,
        interval_s: float = 0.5,
        grace_s: float = 0.0,
        ttl_s: float | None = None,
        renewal_s: float | None = None,
        retry_s: float | None = None,
    ) -> EmbeddedReaper:
        """Return a reaper for this program: `with app.reaper():` runs `holdfast reaper` on threads of this process.

        One of several replicas is active. It renews its duty every `renewal_s` (a third of `ttl_s`); the others ask for
        it every `retry_s`, and one takes over when it stops, or `ttl_s` after its last renewal. It needs no tasks.
        """
        with importing:
            from holdfast.upkeep.embedded_reaper import EmbeddedReaper

        timing = {"ttl_s": ttl_s, "renewal_s": renewal_s, "retry_s": retry_s}
        return EmbeddedReaper(self, name=name, interval_s=interval_s, grace_s=grace_s, **timing)

    # -----------------------------------------------------------------------------workflows

    def signal(
        self,
        id: str,
        name: str,
        value: Any = None,
        *,
        by: str = "app",
        note: str | None = None,
        signal_id: str | None = None,
    ) -> bool:
        """Send a signal to a workflow; `flow.wait(name)` returns the value. It is kept until the workflow asks for it.

        signal_id: the caller's own, for repeating a call whose answer was lost: each workflow gets one signal of that
        id. Returns False if this workflow had it already. Raises `NotFound`, and `Refused` if the job has ended or is
        not a workflow; `UsageError` if it was stored with another codec.
        """
        check_storable(by=by, note=note)
        check_storable(SIGNAL_ID_MAX, signal_id=signal_id)
        text = self._encoded(self._row(id), value, f"signal {name!r}: the value")
        signal = Signal(id=signal_id or new_id(), job_id=id, name=signal_name(name), value=text, actor=by, note=note)
        return self._send(signal)

    def _send(self, signal: Signal) -> bool:
        id = signal.job_id
        answer = self.store.signal(signal)
        if answer is Reply.GONE:
            row = self._row(id)
            if row.workflow and row.ended_at is None and signal.seen_fence is not None:
                raise Refused(f"workflow {id} is {row.state.value} and does not ask that any more; look again")
            what = f"has ended ({row.state.value})" if row.workflow else "is not a workflow"
            raise Refused(f"job {id} {what}: no signal can reach it")
        self.store.wake()
        return answer is Reply.ACCEPTED

    def approve(
        self, id: str, yes: bool = True, *, by: str = "app", note: str | None = None, fence: int | None = None
    ) -> Job[Any]:
        """Answer the question of a workflow that asks a person with `flow.approve`, and return it.

        The first answer counts. fence: as in `cancel`. Raises `NotFound`, and `Refused` if it asks nobody, was answered
        before, or did not wait for it any longer; `UsageError` if it was stored with another codec.
        """
        return self._answer(self._seen(id, fence), yes, by, note)

    def _answer(self, row: Row, yes: bool, by: str, note: str | None) -> Job[Any]:
        check_storable(by=by, note=note)
        id = row.id
        name = answer_to(row.awaits or ())
        if name is None or row.question is None:
            raise Refused(f"job {id} is {row.state.value} and asks nobody{self._last_answer(id)}")
        # Two answers to one question are one signal; the fence is in its name because it may be asked again.
        once = f"{id}:signal:{name}:{row.fence}"
        text = self._encoded(row, yes, "the answer")
        signal = Signal(
            id=once, job_id=id, name=name, value=text, actor=by, note=note, seen_fence=row.fence, answer=yes
        )
        if not self._send(signal):
            raise Refused(f"the question of workflow {id} was answered before; look again")
        job = self.get(id)
        job.answered = row.question
        return job

    def _last_answer(self, id: str) -> str:
        """Say who gave the last answer to a question of this workflow, and when; nothing if nobody did."""
        events = self.store.journal(id, kinds=("signalled",), limit=STEPS_MAX)
        for event in reversed(events):
            if (yes := event.detail.get("answer")) is not None:
                return f"; {event.actor} answered its last question with {'yes' if yes else 'no'} at {iso(event.at)}"
        return ""

    def rollback(self, id: str, *, by: str = "app", note: str | None = None, fence: int | None = None) -> Job[Any]:
        """Undo what a workflow did, in the reverse order, and return it. A running one is stopped first.

        fence: as in `cancel`. Raises `NotFound`; `IllegalMove` when it is not a workflow, or is done; `Refused` when it
        moved on meanwhile.
        """
        now = self.store.now().wall
        row = self._seen(id, fence)
        return self._move(row, acts.rollback(row, now, actor=by, reason=note))

    def retry_from(
        self,
        id: str,
        step: str,
        *,
        by: str = "app",
        note: str | None = None,
        fence: int | None = None,
        repeat_step: bool = False,
    ) -> Job[Any]:
        """Run a held, dead or cancelled workflow again from a step, by its name or path, and return it.

        Records before that step stay; that step and later ones are set aside, and never undone. repeat_step: as in
        `revive`, and also for recorded steps; not needed for the step that is named. Raises
        `NotFound` for a step that is not on record, and otherwise as `revive` does.
        """
        now = self.store.now().wall
        row = self._seen(id, fence)
        steps = self.store.steps(id, limit=STEPS_MAX)  # after the row: if they change meanwhile, its fence does, too
        first = _named(id, steps, step)
        return self._move(row, acts.retry_from(row, first, steps, now, actor=by, reason=note, repeat_step=repeat_step))

    def fork(
        self,
        id: str,
        step: str,
        *,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        by: str = "app",
        note: str | None = None,
        repeat_step: bool = False,
    ) -> Job[Any]:
        """Start a new workflow with what an ended one has recorded before a step, by its name or path, and return it.

        It is called with the arguments of the old one, except those that `args` and `kwargs` replace. The copied steps
        belong to the old one: the new one never undoes them. repeat_step: as in `retry_from`. Raises
        `NotFound`; `PayloadError` if this app has the workflow, and the arguments do not fit it; `Refused` if the old
        one has not ended, or what it began with is not finished, or what must not be repeated would be.
        """
        row = self._row(id)
        acts.check_forkable(row)
        steps = self.store.steps(id, limit=STEPS_MAX)
        first = _named(id, steps, step)
        line = acts.fork(row, first, steps, actor=by, reason=note, repeat_step=repeat_step)
        self._check_children(row, steps, first)
        new = NewJob(
            id=new_job_id(self.clock),
            task=row.task,
            payload=changed_payload(self, row, tuple(args), dict(kwargs or {})),
            queue=row.queue,
            priority=row.priority,
            policy=row.policy,
            workflow=True,
            group=row.group,
            callbacks=row.callbacks,
        )
        added = self.store.fork(new, id, row.fence, first.position, line)
        if added is None:
            raise Refused(f"workflow {id} was run again meanwhile; nothing was forked, look again")
        self.store.wake()
        return self.get(added.id)

    def _check_children(self, row: Row, steps: list[Step], first: Step) -> None:
        """Raise if a child that the new one would wait for is still on its way: its end wakes the old one only."""
        for each in steps:
            if each.kind == "start" and each.position < first.position and each.result is not None:
                check_codec(self, row)
                child = self.store.get(str(decode_value(each.result, None, "a child", codec=self.codec)))
                if child is not None and child.ended_at is None:
                    raise Refused(f"job {child.id}, which it started, is {child.state.value}; wait for its end")

    def _encoded(self, row: Row, value: Any, where: str) -> str:
        """Return an answer to a job as text that the job's own app can read."""
        check_codec(self, row)
        return encode_value(value, where, codec=self.codec)

    def steps(self, id: str, *, aside: bool = False) -> list[Step]:
        """Return the recorded steps of a workflow, in their order; with `aside` also those that were set aside."""
        self._row(id)
        return self.store.steps(id, limit=STEPS_MAX, aside=aside)

    # ---------------------------------------------------------------------------------------- inside

    def _move(self, row: Row, verdict: Verdict) -> Job[Any]:
        move_one(self.store, row, verdict)
        self.store.wake()
        return self.get(row.id)

    def _seen(self, id: str, seen_fence: int | None) -> Row:
        return acts.as_seen(self._row(id), seen_fence)

    def _row(self, id: str) -> Row:
        check_storable(id=id)
        row = self.store.get(id)
        if row is None:
            raise NotFound(f"there is no job {id!r}")
        return row

    def _handle(self, row: Row) -> Job[Any]:
        return Job(self, row.id, row=row)

    def _result_text(self, row: Row, result: Any) -> str:
        task = self.tasks.get(row.task)
        if task is None or row.open_step is not None:
            return self._encoded(row, result, f"job {row.id}: the result")
        text = task.encode_result(result)
        task.decode_result(text)  # a person's answer is held to the annotation: nothing is lost by asking again
        return text


def _fields(kind: type[Policy | JobOptions], given: Mapping[str, object]) -> dict[str, Any]:
    return {name: given[name] for name in kind.__dataclass_fields__ if name in given}


def _named(id: str, steps: list[Step], name: str) -> Step:
    found = first_named(steps, name)
    if found is None:
        known = ", ".join(dict.fromkeys(step.name for step in steps)) or "none"
        raise NotFound(f"workflow {id} has no step {name!r} on record; known: {known}")
    return found
