"""Enqueues by name: tasks whose code this program does not have, as workers have published them."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from holdfast.core.payload import JSON, Signature, encode_value
from holdfast.core.policy import OnCrash, Policy
from holdfast.core.published import PublishedSignature, PublishedTask, SchemaShape
from holdfast.core.records import NewJob
from holdfast.core.text import check_storable
from holdfast.errors import UnknownTask, UsageError
from holdfast.stores.protocol import Store
from holdfast.tasks import Draft, JobOptions, Sender, Task, check_rollback

if TYPE_CHECKING:
    from holdfast.app import App

_OF_ONE_JOB = {"id", "run_at", "delay_s", "connection"}


class NamedTask(Sender[..., Any]):
    """A task by its name: what `app.task_named` returns. It checks and enqueues as the task itself, and cannot run it.

    It is as the store had it when it was asked for. Ask again after a deployment.
    """

    def __init__(self, app: App, published: PublishedTask, signature: Signature | None) -> None:
        self.app = app
        self.name = published.name
        self.is_workflow = published.job.workflow
        self.published = published
        self._signature = signature
        shared = {field.name for field in fields(JobOptions)} - _OF_ONE_JOB
        options = {name: getattr(published.job, name) for name in shared}
        if published.key_is_code:
            options["key"] = self._refuse_key
        super().__init__(self, JobOptions(**options))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    def check_policy(self, policy: Policy) -> Policy:
        """Return the policy if this task can follow it."""
        return check_rollback(self.name, policy, self.is_workflow)

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """Return a call as a payload, or raise `PayloadError`."""
        if self._signature is not None:
            return self._signature.encode(args, kwargs)
        if args:
            raise UsageError(f"no worker has published task {self.name!r}: give its arguments by their names")
        anything = {name: SchemaShape({}, {}, f"task {self.name}: argument {name!r}") for name in kwargs}
        plain = {name: anything[name].to_plain(value) for name, value in kwargs.items()}
        return encode_value(plain, f"task {self.name}: the arguments", codec=self.app.codec)

    def _refuse_key(self, *args: Any, **kwargs: Any) -> str | None:
        raise UsageError(
            f"task {self.name}: a function makes the keys of its jobs, and only a program with the task can call it; "
            "state the key of this one: key=…"
        )


def task_named(app: App, name: str, on_crash: OnCrash | None = None) -> NamedTask | Task[..., Any]:
    """Return a task as workers have published it or, if none has, as this app declares it.

    Raises `UnknownTask`, unless the caller has stated `on_crash`.
    """
    check_storable(task=name)
    for published in app.store.published([name]):
        if published.own_codec != (app.codec is not JSON):
            theirs = "a codec of their own" if published.own_codec else "JSON"
            raise UsageError(
                f"task {name}: its workers read arguments as {theirs}, and this app has another codec; use an App with "
                "the same codec="
            )
        return NamedTask(app, published, PublishedSignature(published, app.codec))
    if name in app.tasks:
        return app.tasks[name]
    if on_crash is None:
        raise UnknownTask(_unknown(app.store, name))
    policy = check_rollback(name, Policy(on_crash=on_crash), False)
    return NamedTask(app, PublishedTask(job=NewJob(id="", task=name, payload="{}", policy=policy)), None)


def _unknown(store: Store, name: str) -> str:
    known = [task.name for task in store.published()]
    near = difflib.get_close_matches(name, known, n=3) or [each for each in known if each.rpartition(".")[2] == name]
    guess = f"did you mean {' or '.join(near)}? Otherwise start" if near else "start"
    return (
        f"no worker has published a task {name!r}; {guess} a worker that has it, or state on_crash= to store the job "
        "without its policy and checks"
    )


def draft_by_name(
    app: App, name: str, arguments: Mapping[str, Any] | Sequence[Any], options: Mapping[str, Any]
) -> Draft[Any]:
    """Return a job of a task by its name, checked and not stored."""
    return draft_of(task_named(app, name, options.get("on_crash")), arguments, options)


def draft_of(
    task: NamedTask | Task[..., Any], arguments: Mapping[str, Any] | Sequence[Any], options: Mapping[str, Any]
) -> Draft[Any]:
    """Return a job of a task that `task_named` has returned, checked and not stored."""
    if isinstance(arguments, Mapping):
        return task.using(**options).job(**arguments)
    if isinstance(arguments, str | bytes) or not isinstance(arguments, Sequence):
        raise UsageError(
            f"task {task.name}: the arguments must be a list of positional or a mapping of keyword arguments, "
            f"not {type(arguments).__name__}"
        )
    return task.using(**options).job(*arguments)


def publish(store: Store, tasks: Mapping[str, Task[..., Any]]) -> int:
    """Tell the store of a worker's tasks, as far as it is news; return how many were."""
    if not tasks:
        return 0
    known = {task.name: task for task in store.published(list(tasks))}
    news = [task.published for name, task in sorted(tasks.items())]
    news = [task for task in news if not task.is_same(known.get(task.name))]
    if news:
        store.publish(news)
    return len(news)
