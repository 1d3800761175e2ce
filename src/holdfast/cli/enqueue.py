"""`holdfast enqueue`: add a job."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, get_args

import click

from holdfast import insight
from holdfast.app import App
from holdfast.cli.base import Command, say
from holdfast.cli.loading import import_options, named_app, opened_app
from holdfast.cli.output import clean, show_json
from holdfast.cli.types import Duration, Json, KeyScopeType, Pair, Text, call_of, json_option
from holdfast.core.dependencies import AfterFailed
from holdfast.core.policy import OnCrash
from holdfast.core.records import Job as Row
from holdfast.core.records import NewJob, OnTaken
from holdfast.enqueueing.by_name import NamedTask, task_named
from holdfast.errors import UnknownTask
from holdfast.tasks import Task
from holdfast.workflow.definition import Workflow

_CALL = (
    """Write an array of positional arguments, '["ann@example.org", 3]', or an object of keyword arguments, """
    """'{"order": 42, "cents": 999}', in single quotes for the shell."""
)


@click.command(
    cls=Command,
    epilog="""
    holdfast enqueue jobs:app send '["ann@example.org"]'
    holdfast enqueue jobs:app charge '{"order": 42, "cents": 999}' --key o-42
    holdfast enqueue jobs:app report --run-after 1h --json
    holdfast enqueue jobs:app index --key docs --on-taken replace --run-after 30s
    holdfast enqueue --by-name billing.charge '{"order": 42}'
    """,
)
@click.argument("words", metavar="APP TASK [JSON]", nargs=-1, type=Text())
@click.option("--by-name", metavar="TASK", type=Text(), help="A task by its full name, as workers have published it.")
@click.option("--queue", type=Text(), help="Use this queue instead of the task's.")
@click.option("--key", type=Text(), help="Add no second job while a live one has this key.")
@click.option(
    "--key-scope",
    type=KeyScopeType(),
    metavar="SCOPE",
    help="How long the job has its key: live (the default), queued until it is claimed, ever, or a time such as 10m.",
)
@click.option(
    "--on-taken",
    type=click.Choice(get_args(OnTaken)),
    help="If the key is taken: keep that job (the default), replace its arguments and time, or cancel it.",
)
@click.option("--wait-max", type=Duration(), metavar="TIME", help="The longest time by which replacing puts a job off.")
@click.option("--tag", "tags", multiple=True, type=Text(), help="Give the job this tag; may be repeated.")
@click.option(
    "--meta", multiple=True, type=Pair(), metavar="NAME=VALUE", help="Give it this metadata; may be repeated."
)
@click.option(
    "--expires", "expires_s", type=Duration(), metavar="TIME", help="Cancel it unless it begins in this time."
)
@click.option(
    "--after", multiple=True, metavar="ID", type=Text(), help="Run it when this job has succeeded; may be repeated."
)
@click.option(
    "--after-failed",
    type=click.Choice(get_args(AfterFailed)),
    help="If one of those did not succeed: cancel the job (the default), hold it, or run it.",
)
@click.option("--run-after", type=Duration(), metavar="TIME", help="Start the job after this delay: seconds, 15m, 2h.")
@click.option("--priority", type=int, help="Larger is sooner.")
@click.option("--id", type=Text(), help="Your own id. Repeating the command with it adds no second job.")
@click.option(
    "--on-crash", type=click.Choice(get_args(OnCrash)), help="The action if its worker dies; rollback: workflows only."
)
@import_options
@json_option
def enqueue(words: tuple[str, ...], by_name: str | None, as_json: bool, **given: Any) -> None:
    """Add a job.

    TASK is a task of APP (module:name); its last part is enough if only one task has it. JSON is an array of
    positional or an object of keyword arguments; - reads it from stdin. Both are checked against the task before
    anything is stored.

    With --by-name, write only [JSON]: no code is imported. The policy and the checks are those that workers have
    published. A task that no worker has published needs --on-crash.
    """
    opened, rest = _opened(words, by_name)
    arguments = Json(_CALL).convert(rest[0], None, None) if rest else None
    with opened as found:
        wanted = _task(found, words[1]) if by_name is None else task_named(found, by_name, given["on_crash"])
        args, kwargs = call_of(arguments, _CALL)
        given |= {"tags": given["tags"] or None, "meta": dict(given["meta"]) or None}
        given["after"] = given["after"] or None
        draft = wanted.using(**given).job(*args, **kwargs)
        [job] = found.enqueue_many([draft])
        state = job.row.shown_state(found.store.now().wall)
    if as_json:
        show_json({"id": job.id, "existed": job.existed, "state": state})
    else:
        click.echo(job.id)
    other = _difference(job.row, draft.new)
    if job.existed and (other or not as_json):
        say(f"This job was there already{other}, and is {state}; no second one was added.")
    if newer := _newer_version(found, wanted):
        say(f"{clean(wanted.name)} has a newer version, which only its own name starts: {clean(newer)}")


def _opened(words: tuple[str, ...], by_name: str | None) -> tuple[AbstractContextManager[App], tuple[str, ...]]:
    """Return the app to enqueue with, and what is left of the words of the command."""
    needed = ("APP", "TASK") if by_name is None else ()
    if len(words) < len(needed):
        raise click.UsageError(f"Missing argument '{needed[len(words)]}'.")
    rest = words[len(needed) :]
    if len(rest) > 1:
        raise click.UsageError(f"Got unexpected extra argument ({rest[1]})")
    return (named_app(words[0]) if needed else opened_app()), rest


def _newer_version(app: App, wanted: Task[..., Any] | NamedTask) -> str | None:
    """Return the name of the newest version of a workflow, if that is not the one that was enqueued."""
    if not isinstance(wanted, Workflow):
        return None
    family = [task for task in app.tasks.values() if isinstance(task, Workflow) and task.family == wanted.family]
    newest = max(family, key=lambda task: task.version)
    return newest.name if newest.version > wanted.version else None


def _difference(there: Row, wanted: NewJob) -> str:
    """Say what is other about the job that is there than about the one that was wanted."""
    if there.task != wanted.task:
        return f", of task {clean(there.task)}"
    return "" if insight.parsed(there.payload) == insight.parsed(wanted.payload) else ", with other arguments"


def _task(app: App, name: str) -> Task[..., Any]:
    try:
        return app.named(name)
    except UnknownTask as error:
        guesses = insight.near(name, app.tasks)
        if not guesses:
            raise
        raise UnknownTask(f"this app has no task {name!r}; did you mean {' or '.join(guesses)}?") from error
