"""Tasks: functions that can be enqueued. Made by `app.task`; everything about one is checked when it is declared."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import PurePath
from types import FrameType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    Protocol,
    TypedDict,
    TypeVar,
    Union,
    Unpack,
    get_args,
    overload,
)

import msgspec

from holdfast.core.callbacks import FACTS, Callback, with_callbacks
from holdfast.core.callbacks import Kind as CallbackKind
from holdfast.core.dependencies import AfterFailed, check_no_after, things
from holdfast.core.labels import merged, meta_text, tags_text
from holdfast.core.limits import check_group
from holdfast.core.payload import JSON, Signature, decode_value, encode_value
from holdfast.core.policy import OnCrash, Policy, Retry
from holdfast.core.published import PublishedTask, arguments_schema, parameters_of
from holdfast.core.records import KeyRule, KeyScope, NewJob, OnTaken
from holdfast.core.row_text import Awaited
from holdfast.core.text import check_storable
from holdfast.errors import PayloadError, PolicyError, UsageError
from holdfast.ids import new_job_id
from holdfast.jobs import Job
from holdfast.runtime.log_fields import current_attempt

if TYPE_CHECKING:
    from holdfast.app import App
    from holdfast.enqueueing.by_name import NamedTask
    from holdfast.extensions.resources import Resources
    from holdfast.worker.context import Context

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

NAME_MAX = 200
KEY_MAX = 255
PRIORITY_MAX = 1_000_000
MEMORY_MIN_MB = 64  # with less, Python and the user's modules alone would not fit
RUN_AFTER_MAX_S = 10.0**10  # three centuries
WALL_MAX = 253_402_300_799.0  # the last second of the year 9999: people can be shown no later one
ID = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
_MAIN = ("__main__", "__mp_main__")

After = Union[Job[Any], "Draft[Any]", str]  # a job that another one runs after
CallbackTask = Union["Sender[..., Any]", str]  # a task, `task.using(…)`, or its name
Key = str | Callable[..., str | None] | None
Scope = KeyScope | float | timedelta


class TaskOptions(TypedDict, total=False):
    """The options of `app.task`. The defaults are those of `Policy`, `JobOptions` and `Task`."""

    name: str | None
    queue: str
    priority: int
    key: Key
    key_scope: Scope | None
    on_taken: OnTaken | None
    wait_max: float | timedelta | None
    expires_s: float | timedelta | None
    tags: Sequence[str] | None
    meta: Mapping[str, str] | None
    retry: Retry
    crashes_max: int
    on_crash: OnCrash
    lease_s: float
    beat_s: float | None
    timeout_s: float | None
    stall_s: float | None
    isolate: bool
    memory_max_mb: int | None
    hold_after: int | None
    ignore_result: bool
    on_done: CallbackTask | None
    on_dead: CallbackTask | None


class EnqueueOptions(TypedDict, total=False):
    """The options of `task.using` and `app.enqueue_by_name`; what is None is as the task declares it."""

    run_after: float | timedelta | None
    run_at: datetime | None
    key: str | None
    key_scope: Scope | None
    on_taken: OnTaken | None
    wait_max: float | timedelta | None
    expires_s: float | timedelta | None
    tags: Sequence[str] | None
    meta: Mapping[str, str] | None
    after: After | Sequence[After] | None
    after_failed: AfterFailed | None
    priority: int | None
    queue: str | None
    id: str | None
    group: str | None
    retry: Retry | None
    crashes_max: int | None
    on_crash: OnCrash | None
    lease_s: float | None
    timeout_s: float | None
    stall_s: float | None
    on_done: CallbackTask | None
    on_dead: CallbackTask | None
    connection: Any


@dataclass(frozen=True, slots=True)
class JobOptions:
    """The options of an enqueue, validated once when they are made."""

    queue: str = "default"
    priority: int = 0
    key: Key = None
    id: str | None = None
    run_at: float | None = None
    delay_s: float = 0.0
    policy: Policy = field(default_factory=Policy)
    connection: Any = None
    group: str | None = None
    callbacks: str | None = None  # as `NewJob` has them
    key_rule: KeyRule | None = None
    expires_s: float | None = None
    tags: str | None = None  # as `NewJob` has them, and so is the next one
    meta: str | None = None
    awaits: tuple[Awaited, ...] = ()  # the jobs that they run after

    def __post_init__(self) -> None:
        check_name("queue", self.queue)
        whole = isinstance(self.priority, int) and not isinstance(self.priority, bool)
        if not whole or abs(self.priority) > PRIORITY_MAX:
            raise UsageError(
                f"priority={self.priority!r} must be a whole number from -{PRIORITY_MAX} to {PRIORITY_MAX}"
            )
        if self.key is not None and not callable(self.key):
            check_key(self.key)
        if self.group is not None:
            check_group(self.group)
        if self.expires_s is not None and self.delay_s >= self.expires_s:
            raise UsageError(f"expires_s={self.expires_s:g}: the job would expire before run_after lets it start")
        if self.id is not None and not (isinstance(self.id, str) and ID.fullmatch(self.id)):
            raise UsageError(f"id={self.id!r} must be 1 to 64 letters, digits or any of _ . : -")

    def key_for(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
        """Return the key of one call; a callable key is asked."""
        if not callable(self.key):
            return self.key
        key = self.key(*args, **kwargs)
        if key is not None:
            check_key(key)
        return key


@dataclass(frozen=True, slots=True)
class Draft(Generic[R_co]):
    """One job that is not stored yet, for `app.enqueue_many`. It has its id: stored twice, it is still one job."""

    task: Task[..., R_co] | NamedTask
    new: NewJob
    connection: Any = None  # of the caller: the job is stored by its transaction
    has_own_id: bool = False  # the caller chose it

    @property
    def arguments(self) -> dict[str, Any]:
        """Return the arguments in plain JSON types, by their names; those that are left out have their defaults."""
        task = f"task {self.task.name}: the payload"
        plain: dict[str, Any] = decode_value(self.new.payload, None, task, codec=self.task.app.codec)
        return plain

    def using(self, **options: Unpack[EnqueueOptions]) -> Draft[R_co]:
        """Return the draft with other options, as `task.using` has them; not with another id or connection."""
        for name in ("id", "connection"):
            if options.get(name) is not None:
                raise UsageError(f"a draft keeps its {name}: choose it with task.using({name}=…) before task.job(…)")
        names = [each.name for each in dataclasses.fields(JobOptions) if each.name not in ("id", "connection")]
        before = JobOptions(**{name: getattr(self.new, name) for name in names})
        after = Sender(self.task, before).using(**options)._options
        new = msgspec.structs.replace(self.new, **{name: getattr(after, name) for name in names})
        return dataclasses.replace(self, new=new)


class Sender(Generic[P, R]):
    """A task with the options of its next jobs: what `task.using(…)` returns. It may be kept and used again."""

    def __init__(self, task: Task[P, R] | NamedTask, options: JobOptions) -> None:
        self._task = task
        self._options = options

    if not TYPE_CHECKING:  # a type checker says so before it happens

        def __call__(self, *args: Any, **kwargs: Any) -> None:
            raise TypeError(
                f"task {self._task.name}: using(…) only chooses options; call .enqueue(…) on it to store a job, "
                "or call the task itself, without using(…), to run it here and now"
            )

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Store one job that calls the task with these arguments; return once it is durable.

        Raises `PayloadError`, and stores nothing, when an argument does not fit the signature or cannot travel. If the
        key belongs to a live job, or the id is known, that job is returned and its `existed` is true.
        If the store fails on the way, the job may have been stored: repeat with the same `using(id=…)`, and there is
        still only one.
        """
        return self._task.app._enqueue(self.job(*args, **kwargs))

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Do as `enqueue` does, without blocking the event loop."""
        draft = self.job(*args, **kwargs)
        return (await self._task.app.aio.enqueue_many([draft]))[0]

    def job(self, *args: P.args, **kwargs: P.kwargs) -> Draft[R]:
        """Return a job that is checked but not stored; give it to `app.enqueue_many` or `app.enqueue_stream`."""
        task, options = self._task, self._options
        new = self._new(
            task.encode(args, kwargs), options.id or new_job_id(task.app.clock), options.key_for(args, kwargs)
        )
        return Draft(task, new, options.connection, options.id is not None)

    def _new(self, payload: str, id: str, key: str | None) -> NewJob:
        task, options = self._task, self._options
        return NewJob(
            id=id,
            task=task.name,
            payload=payload,
            queue=options.queue,
            key=key,
            priority=options.priority,
            run_at=options.run_at,
            delay_s=options.delay_s,
            policy=options.policy,
            workflow=task.is_workflow,
            group=options.group,
            callbacks=options.callbacks,
            key_rule=options.key_rule,
            expires_s=options.expires_s,
            tags=options.tags,
            meta=merged(_inherited_meta(), options.meta),
            awaits=options.awaits,
        )

    def _template(self) -> NewJob:
        """Return what its jobs have in common; without a key if a function makes it."""
        check_no_after(self._options.awaits, f"task {self._task.name}: a job that Holdfast stores by itself")
        return self._new("{}", "", self._options.key if isinstance(self._options.key, str) else None)

    def using(
        self,
        *,
        run_after: float | timedelta | None = None,
        run_at: datetime | None = None,
        key: str | None = None,
        key_scope: Scope | None = None,
        on_taken: OnTaken | None = None,
        wait_max: float | timedelta | None = None,
        expires_s: float | timedelta | None = None,
        tags: Sequence[str] | None = None,
        meta: Mapping[str, str] | None = None,
        after: After | Sequence[After] | None = None,
        after_failed: AfterFailed | None = None,
        priority: int | None = None,
        queue: str | None = None,
        id: str | None = None,
        group: str | None = None,
        retry: Retry | None = None,
        crashes_max: int | None = None,
        on_crash: OnCrash | None = None,
        lease_s: float | None = None,
        timeout_s: float | None = None,
        stall_s: float | None = None,
        on_done: CallbackTask | None = None,
        on_dead: CallbackTask | None = None,
        connection: Any = None,
    ) -> Sender[P, R]:
        """Return the task with other options for its jobs; what is None stays as it was.

        run_after: seconds from now, counted by the store's clock. run_at: an instant with a time zone; one that has
        passed means now. key: while a live job has it, an enqueue returns that job. key_scope: how long a job has its
        key instead: "queued" until a worker claims it, a number of seconds, or "ever". on_taken: what an enqueue does
        when the key is taken: "keep" (the default) returns the job that has it, "replace" gives that job its arguments
        and its time, "cancel" cancels that job and stores the new one. wait_max: the longest time by which replacements
        put a job off. See docs/keys.md. expires_s: seconds from now after which a job that no worker has claimed is
        cancelled. after: the jobs to run after, once they have succeeded; handles, drafts or ids. after_failed: what
        happens if one did not: "cancel" (the default), "hold" for a person, or "run"; see docs/dependencies.md.
        priority: larger is sooner. id: the caller's own, for repeating an enqueue whose answer was lost. group: whose
        work it is, such as a tenant; groups of a queue take turns, see docs/limits.md. connection: the caller's own, to
        the same store: of the driver (`sqlite3`, `psycopg`), of SQLAlchemy or of Django. The job is stored by the
        transaction that is open on it, and rolled back with it; if none is open, one is begun. With one that is awaited
        use `aenqueue`.
        The rest is as in `app.task`.
        """
        if retry is not None and isinstance(retry, Retry) and retry.is_code:
            raise PolicyError(
                f"task {self._task.name}: on, never and backoff are code, which a job's row cannot carry; "
                "declare them on the task: @app.task(retry=Retry(…))"
            )
        given = _given(retry=retry, crashes_max=crashes_max, on_crash=on_crash)
        given |= _given(lease_s=lease_s, timeout_s=timeout_s, stall_s=stall_s)
        changes = _given(key=key, priority=priority, queue=queue, id=id, group=group, connection=connection)
        if given:
            changes["policy"] = self._task.check_policy(dataclasses.replace(self._options.policy, **given))
        if on_done is not None or on_dead is not None:
            changes["callbacks"] = self._callbacks(on_done, on_dead)
        if key_scope is not None or on_taken is not None or wait_max is not None:
            if key is None and self._options.key is None:
                raise UsageError("key_scope, on_taken and wait_max are about a key; give one: key=…")
            changes["key_rule"] = key_rule(self._options.key_rule, key_scope, on_taken, wait_max)
        changes |= _given(expires_s=None if expires_s is None else check_expiry(expires_s))
        if tags is not None:
            changes["tags"] = tags_text(tags)
        if meta is not None:
            changes["meta"] = meta_text(meta, self._options.meta)
        changes |= _given(awaits=_awaits(after, after_failed))
        if run_after is not None or run_at is not None:
            changes["run_at"], changes["delay_s"] = _when(run_after, run_at)
        return Sender(self._task, dataclasses.replace(self._options, **changes))

    def _callbacks(self, on_done: CallbackTask | None, on_dead: CallbackTask | None) -> str | None:
        """Return the callbacks of its next jobs, with these in place of those before."""
        app = self._task.app
        done = None if on_done is None else callback_to(app, on_done, "done")
        dead = None if on_dead is None else callback_to(app, on_dead, "dead")
        return with_callbacks(self._options.callbacks, done, dead)


Sender.using.__qualname__ = "Task.using"  # an error of Python's about its arguments names the class that users know


class Task(Sender[P, R]):
    """A function that workers run. Calling it runs it here and now, as if it were not decorated.

    `name` is what the store knows it by: jobs outlive programs, so a task that is renamed leaves its jobs behind.
    """

    is_workflow = False

    def __init__(
        self,
        app: App,
        fn: Callable[..., Any],
        options: JobOptions,
        name: str | None = None,
        *,
        isolate: bool = False,
        memory_max_mb: int | None = None,
        hold_after: int | None = None,
        ignore_result: bool = False,
        on_done: CallbackTask | None = None,
        on_dead: CallbackTask | None = None,
    ) -> None:
        fn = fn.__func__ if isinstance(fn, staticmethod) else fn
        _check_function(fn)
        self.app = app
        self.fn = fn
        self.name = check_name("task name", name if name is not None else default_name(fn))
        self.is_async = inspect.iscoroutinefunction(fn)
        self._signature = Signature(fn, self.name, codec=app.codec, names=_names_around(), resources=app.resources)
        self.injected = self._check_resources(app.resources)
        self.takes_context = self._signature.takes_context
        self.isolate = isolate
        self.memory_max_mb = _checked_memory(memory_max_mb, isolate)
        self.hold_after = None if hold_after is None else check_whole("hold_after", hold_after)
        if not isinstance(ignore_result, bool):
            raise UsageError(f"ignore_result={ignore_result!r} must be True or False")
        self.ignore_result = ignore_result
        self.check_policy(options.policy)
        super().__init__(self, dataclasses.replace(options, policy=options.policy.of_a_row))
        # The defaults of its jobs, which `using` overrides; the policy travels on their rows.
        self.queue = options.queue
        self.priority = options.priority
        self.policy = options.policy
        if on_done is not None or on_dead is not None:
            self._options = dataclasses.replace(self._options, callbacks=self._callbacks(on_done, on_dead))
        functools.update_wrapper(self, fn, updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.fn(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    def _check_resources(self, resources: Resources) -> dict[str, type]:
        """Return the resources that its function gets, by the names of its arguments."""
        wanted = self._signature.injected
        if wanted and self.is_workflow:
            raise UsageError(
                f"workflow {self.name}: {next(iter(wanted))!r} is a resource, which only tasks get; "
                "let a step call current_job().resource(…)"
            )
        for name, kind in wanted.items():
            if resources.is_awaited(kind) and not self.is_async:
                raise UsageError(
                    f"task {self.name}: {name!r} is a resource that is opened with await; make the task async, "
                    f"or open {kind.__name__} with a plain function"
                )
        return wanted

    def check_policy(self, policy: Policy) -> Policy:
        """Return the policy if this task can follow it."""
        return check_rollback(self.name, policy, self.is_workflow)

    def takes(self, facts: Mapping[str, object], given: str = "{}") -> tuple[str, ...]:
        """Return which of these arguments, by name, the task takes beside those of a payload.

        Raises `PayloadError` if a call with them fails.
        """
        names = tuple(p.name for p in self._signature.parameters if p.name in facts)
        self.decode(JSON.encode(JSON.decode(given) | {name: facts[name] for name in names}))
        return names

    @property
    def published(self) -> PublishedTask:
        """Return what workers publish of it."""
        return PublishedTask(
            job=self._template(),
            parameters=parameters_of(self._signature),
            schema=arguments_schema(self._signature),
            own_codec=self.app.codec is not JSON,
            key_is_code=callable(self._options.key),
        )

    def encode(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Return a call as a payload, or raise `PayloadError`."""
        return self._signature.encode(args, kwargs)

    def change(self, payload: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Return the payload with these arguments in place of its own, or raise `PayloadError`."""
        return self._signature.change(payload, args, kwargs)

    def decode(self, payload: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the call that a payload holds, without the context. Raises only `PayloadError`."""
        return self._signature.decode(payload)

    def encode_result(self, value: Any) -> str:
        """Return what the function returned as text, or raise `PayloadError`."""
        return encode_value(value, f"task {self.name}: the result", codec=self.app.codec)

    def decode_result(self, text: str) -> R:
        """Return a stored result as the type that the function is annotated with. Raises only `PayloadError`."""
        where = f"task {self.name}: the result"
        value: R = decode_value(text, self._signature.result, where, codec=self.app.codec)
        return value


if TYPE_CHECKING:
    # To a type checker a declared task is a `Task` that is called as its function is. At run time all are `Task`.

    class SyncTask(Task[P, R]):
        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...

    class AsyncTask(Task[P, R]):
        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]: ...

    class ContextTask(Task[P, R]):
        def __call__(self, ctx: Context, /, *args: P.args, **kwargs: P.kwargs) -> R: ...

    class AsyncContextTask(Task[P, R]):
        def __call__(self, ctx: Context, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]: ...


class Declare(Protocol):
    """The type of `app.task` and `app.task(…)`: they turn a function into a task with the function's own signature."""

    @overload
    def __call__(  # type: ignore[overload-overlap]  # an async function fits the next one too
        self, fn: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /
    ) -> AsyncContextTask[P, R]: ...
    @overload
    def __call__(self, fn: Callable[Concatenate[Context, P], R], /) -> ContextTask[P, R]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]  # an async function fits the next one too
        self, fn: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> SyncTask[P, R]: ...
    @overload
    def __call__(self, fn: None = None, /, **options: Unpack[TaskOptions]) -> Declare: ...


def callback_to(app: App, target: object, kind: CallbackKind) -> Callback:
    """Return what a row needs to store a job of this task at its end. Raises `UsageError` for what could never run."""
    option = f"on_{kind}"
    if isinstance(target, str):
        target = app.named(target)
    task = target._task if isinstance(target, Sender) else None
    if not isinstance(target, Sender) or not isinstance(task, Task) or task.app is not app:
        raise UsageError(f"{option}={target!r} must be a task of this app, its name, or task.using(…)")
    if app.codec is not JSON:
        raise UsageError(
            f"{option} needs an App without codec=: the reaper, which has no code of yours, writes the call"
        )
    takes: tuple[str, ...] = ()
    for facts in FACTS[kind]:
        try:
            takes = task.takes(facts)
        except PayloadError as error:
            raise UsageError(
                f"{option}={task.name}: a callback gets {', '.join(facts)} by name, as far as it takes them, such as "
                f"{facts}: {error}"
            ) from error
    return Callback(msgspec.structs.replace(target._template(), key=None), takes)


def default_name(fn: Callable[..., Any]) -> str:
    """Return `module.qualname`. A script's `__main__` is replaced by the module's name or the file's stem, so that the
    script and a worker that imports it agree."""
    module = getattr(fn, "__module__", None)
    qualname = getattr(fn, "__qualname__", None)
    if not module or not qualname or "<lambda>" in qualname:
        raise UsageError(f"{fn!r} has no name that a worker could find again; give it one with name=")
    if module in _MAIN:
        main = sys.modules.get(module)
        spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
        module = spec.name if spec is not None else PurePath(file).stem if file else module
    return f"{module}.{qualname}"


def check_rollback(name: str, policy: Policy, is_workflow: bool) -> Policy:
    """Return the policy if a task, or a workflow, can follow it."""
    if policy.on_crash == "rollback" and not is_workflow:
        raise PolicyError(
            f'task {name}: on_crash="rollback" needs recorded steps with undos, which only workflows have; '
            'use "retry", "hold" or "fail"'
        )
    return policy


def check_name(what: str, name: object) -> str:
    """Return the name if it can be stored and shown."""
    if not isinstance(name, str) or not 1 <= len(name) <= NAME_MAX or not name.isprintable() or name != name.strip():
        raise UsageError(f"{what} {name!r} must be 1 to {NAME_MAX} printable characters without space around them")
    return name


def key_rule(
    before: KeyRule | None, scope: object = None, on_taken: object = None, wait_max: object = None
) -> KeyRule | None:
    """Return the rule of a key, with these in place of what it said before; None for the rule that needs no mention."""
    said = before or KeyRule()
    if on_taken is not None and on_taken not in get_args(OnTaken):
        raise UsageError(f'on_taken={on_taken!r} must be "keep", "replace" or "cancel"')
    if scope is None and before is None and on_taken == "replace":
        scope = "queued"  # with any other scope an enqueue would find a job that runs with the old arguments
    found = said.scope if scope is None else _scope(scope)
    longest = said.wait_max_s if wait_max is None else _positive("wait_max", wait_max)
    rule = KeyRule(found, said.on_taken if on_taken is None else on_taken, longest)  # type: ignore[arg-type]
    if wait_max is not None and rule.on_taken != "replace":
        raise UsageError('wait_max bounds how long a job is put off, so it needs on_taken="replace"')
    return None if (rule.scope, rule.on_taken) == ("live", "keep") else rule


def _scope(scope: object) -> KeyScope | float:
    if isinstance(scope, str):
        if scope not in get_args(KeyScope):
            raise UsageError(f'key_scope={scope!r} must be "queued", "live", "ever" or a number of seconds')
        return scope  # type: ignore[return-value]
    return _positive("key_scope", scope)


def _awaits(after: object, after_failed: object) -> tuple[Awaited, ...] | None:
    if after is None and after_failed is None:
        return None
    if after is None:
        raise UsageError("after_failed is about the jobs of after=[…]; give them, too")
    jobs = after if isinstance(after, Sequence) and not isinstance(after, str) else [after]
    ids: list[str] = []
    for job in jobs:
        found = job.new.id if isinstance(job, Draft) else job.id if isinstance(job, Job) else job
        if not isinstance(found, str) or not ID.fullmatch(found):
            raise UsageError(f"after={job!r} must be a job, a draft or an id, or a list of them")
        ids.append(found)
    return things(ids, after_failed)


def _inherited_meta() -> str | None:
    """Return the metadata of the job whose code runs here."""
    attempt = current_attempt.get()
    return None if attempt is None else attempt.job.meta


def check_expiry(expires_s: object) -> float:
    """Return the time in seconds that a job may wait for a worker."""
    return _positive("expires_s", expires_s)


def _positive(name: str, given: object) -> float:
    seconds = given.total_seconds() if isinstance(given, timedelta) else given
    number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not number or not 0 < seconds <= RUN_AFTER_MAX_S:  # type: ignore[operator]
        raise UsageError(f"{name}={given!r} must be a number of seconds above 0, or a timedelta")
    return float(seconds)  # type: ignore[arg-type]


def check_key(key: object) -> None:
    """Raise `UsageError` for a key that no store can hold."""
    if not isinstance(key, str) or not 1 <= len(key) <= KEY_MAX:
        raise UsageError(f"key={key!r} must be text of 1 to {KEY_MAX} characters")
    check_storable(key=key)


def _when(run_after: float | timedelta | None, run_at: datetime | None) -> tuple[float | None, float]:
    """Return (run_at, delay_s) as the row has them."""
    if run_after is not None and run_at is not None:
        raise UsageError("run_after and run_at contradict each other; give one of them")
    if run_at is not None:
        if not isinstance(run_at, datetime) or run_at.utcoffset() is None:
            raise UsageError(f"run_at={run_at!r} must be a datetime with a time zone, such as datetime.now(UTC)")
        instant = run_at.timestamp()
        if not 0 <= instant <= WALL_MAX:
            raise UsageError(f"run_at={run_at!r} must lie between the years 1970 and 9999")
        return instant, 0.0
    seconds = run_after.total_seconds() if isinstance(run_after, timedelta) else run_after
    number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not number or not 0 <= seconds <= RUN_AFTER_MAX_S:  # type: ignore[operator]
        raise UsageError(f"run_after={run_after!r} must be a number of seconds from now, or a timedelta, not negative")
    return None, float(seconds)  # type: ignore[arg-type]


def _check_function(fn: Any) -> None:
    what = None
    if isinstance(fn, Sender):
        what = f"{fn!r} is a task already"
    elif isinstance(fn, type):
        what = f"{fn.__name__} is a class"
    elif inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        what = f"{fn!r} is a generator, which has no single result"
    elif not callable(fn) or not (inspect.isroutine(fn) or isinstance(fn, functools.partial)):
        what = f"{fn!r} is not a function"
    elif _first_parameter(fn) in ("self", "cls"):
        what = f"{fn!r} is a method, and a worker has no object to call it on"
    if what is not None:
        raise UsageError(f"only functions can be tasks; {what}. Decorate a plain or async function")


def check_whole(name: str, number: object, least: int = 1) -> int:
    """Return the number if it is whole and large enough."""
    if not isinstance(number, int) or isinstance(number, bool) or number < least:
        raise UsageError(f"{name}={number!r} must be a whole number of at least {least}")
    return number


def _checked_memory(memory_max_mb: object, isolate: object) -> int | None:
    if not isinstance(isolate, bool):
        raise UsageError(f"isolate={isolate!r} must be True or False")
    if memory_max_mb is None:
        return None
    memory_max_mb = check_whole("memory_max_mb", memory_max_mb, MEMORY_MIN_MB)
    if not isolate:
        raise UsageError("memory_max_mb bounds a process, and this task shares one with others; add isolate=True")
    return memory_max_mb


def _first_parameter(fn: Callable[..., Any]) -> str | None:
    try:
        return next(iter(inspect.signature(fn).parameters), None)
    except ValueError as error:
        raise UsageError(f"{fn!r} is built in and does not tell its arguments; wrap it in a function") from error


def _names_around() -> dict[str, Any]:
    """Return the local names where the task is being declared: annotations that are text may speak of them."""
    frame = _frame_of_caller()
    return {} if frame is None else dict(frame.f_locals)


def module_of_caller() -> str:
    """Return the name of the module whose code calls Holdfast; `__main__` for the program itself."""
    frame = _frame_of_caller()
    name = "" if frame is None else str(frame.f_globals.get("__name__", ""))
    return "__main__" if name in _MAIN else name


def _frame_of_caller() -> FrameType | None:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__", "")).partition(".")[0] == "holdfast":
        frame = frame.f_back
    return frame


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
