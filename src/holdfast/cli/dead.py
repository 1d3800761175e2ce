"""`holdfast dead`: see, revive and purge jobs that gave up."""

from __future__ import annotations

import click

from holdfast import insight
from holdfast.admin import dead_jobs, revival
from holdfast.bulk import move_all
from holdfast.cli.base import Group, acknowledge, say
from holdfast.cli.db import purge as purge_ended
from holdfast.cli.filters import page_options
from holdfast.cli.jobs import confirm, show_jobs
from holdfast.cli.jobs import revive as revive_each
from holdfast.cli.leaving import noting
from holdfast.cli.loading import opened_store, suggest_task
from holdfast.cli.output import Progress, clean, show_json
from holdfast.cli.types import (
    JobId,
    Text,
    fence_option,
    json_option,
    older_than_option,
    person,
    person_options,
    repeat_step_option,
    require_one,
    yes_option,
)
from holdfast.core.machine import State
from holdfast.core.records import Filter, Job
from holdfast.errors import Refused, UsageError

_PAGE = 500


@click.group(cls=Group, epilog="holdfast dead list", elsewhere={"show": "holdfast jobs show ID"})
def dead() -> None:
    """See, revive and purge jobs that gave up."""


@dead.command(
    "list",
    epilog="""
    holdfast dead list
    holdfast dead list --task mail.send --json
    """,
)
@page_options
@json_option
def list_(where: Filter, as_json: bool) -> None:
    """Show the jobs that gave up and why, newest first."""
    with opened_store() as store:
        show_jobs(store, ["dead"], where, as_json)


@dead.command(
    epilog="""
    holdfast dead revive 01930f3c-8f5e-7cc1-b2a4-0d9c1a2b3c4d
    holdfast dead revive --all --task mail.send --note "mail is back" -y
    """
)
@click.argument("job_ids", metavar="[ID...]", nargs=-1, type=JobId())
@click.option("--all", "every", is_flag=True, help="Every dead job, or those that --queue and --task leave.")
@click.option("--queue", type=Text(), help="With --all: only of this queue.")
@click.option("--task", type=Text(), help="With --all: only of this task, by its full name.")
@repeat_step_option
@person_options
@fence_option
@yes_option
@json_option
def revive(
    job_ids: tuple[str, ...],
    every: bool,
    queue: str | None,
    task: str | None,
    repeat_step: bool,
    by: str | None,
    note: str | None,
    fence: int | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Bring dead jobs back, ready now and with fresh budgets.

    A workflow that has begun a step which must not be repeated is left alone, and --all passes it by: find out whether
    the step happened, then name the workflow and say --repeat-step, or roll it back.
    """
    if every == bool(job_ids):
        raise UsageError("name the jobs to revive, or say --all")
    if (queue or task) and not every:
        raise UsageError("--queue and --task go with --all")
    if repeat_step and every:
        raise UsageError("--repeat-step is said of jobs that you name, one by one, not of --all")
    require_one(fence, job_ids)
    if every:
        _revive_all(Filter(states=(State.DEAD,), queue=queue, task=task, limit=_PAGE), person(by), note, yes, as_json)
    else:
        revive_each(job_ids, repeat_step, by, note, fence, as_json, _check_dead)


def _check_dead(job: Job) -> None:
    """Refuse a job that was brought back meanwhile, or that waits for another decision than this one."""
    if job.state is State.HELD:
        raise Refused(
            f"job {job.id} is held, not dead: it waits for an answer. Look at it, then run it again with "
            f"`holdfast held approve {job.id}`"
        )
    if job.state is State.CANCELLED:
        raise Refused(f"job {job.id} is cancelled, not dead; to bring it back: holdfast jobs retry {job.id}")
    if job.state is not State.DEAD:
        raise Refused(f"job {job.id} is {job.state.value}, not dead; nothing was changed")


def _revive_all(where: Filter, by: str, note: str | None, yes: bool, as_json: bool) -> None:
    """Revive page by page those that were dead when we began; what moved on meanwhile is left alone."""
    with opened_store(bulk=True) as store:
        listed, opened = dead_jobs(store, where)
        if not listed and not opened:
            suggest_task(store, where.task, [State.DEAD])
        if listed:
            confirm(f"Revive {insight.counted(len(listed), 'dead job')}?", yes)
        revived = 0
        refused: list[str] = []
        how_far = noting(
            lambda: f"at least {revived} of {insight.counted(len(listed), 'job')} revived; repeat it for the others"
        )
        with Progress("reviving", len(listed)) as progress, how_far:
            for page in move_all(store, listed, lambda job: revival(store, job, by, note)):
                refused += [str(acted.error) for acted in page if acted.error is not None]
                revived += sum(acted.error is None for acted in page)
                progress.advance(len(page))
    if as_json:
        show_json({"revived": revived, "refused": len(refused), "open_steps": len(opened)})
    else:
        acknowledge(f"{revived} revived")
    for reason in refused[:10]:
        say(f"Left alone: {reason}")
    if len(refused) > 10:
        say(f"… and {len(refused) - 10} more.")
    if opened:
        say(
            f"Left alone: {insight.counted(len(opened), 'workflow')} with a step that may have happened and must not "
            f"be repeated: {', '.join(clean(f'{job_id} ({step})') for job_id, step in opened[:10])}"
            f"{', …' if len(opened) > 10 else ''}. Find out for each: holdfast workflows show ID"
        )


@dead.command(
    epilog="""
    holdfast dead purge --older-than 7d -y
    """
)
@older_than_option
@yes_option
@json_option
def purge(older_than: float, yes: bool, as_json: bool) -> None:
    """Delete dead jobs that gave up long ago, with their history."""
    confirm(f"Delete every job that has been dead for {insight.duration(older_than)} for good?", yes)
    with opened_store(bulk=True) as store:
        number = purge_ended(store, [State.DEAD], older_than)
    if as_json:
        show_json({"deleted": number})
    else:
        acknowledge(f"{number} deleted")
