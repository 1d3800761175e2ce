"""`holdfast dead`: see, revive and purge jobs that gave up."""

from __future__ import annotations

from functools import partial

import click
from msgspec.structs import replace

from holdfast import insight
from holdfast.acts.mass import MassAct
from holdfast.cli.base import Group, acknowledge
from holdfast.cli.confirming import confirm
from holdfast.cli.db import purge as purge_ended
from holdfast.cli.filters import Chosen, page_options
from holdfast.cli.jobs import revive as revive_each
from holdfast.cli.jobs import show_jobs
from holdfast.cli.loading import opened_store
from holdfast.cli.mass import act_on_chosen, chooses, mass_options
from holdfast.cli.output import show_json
from holdfast.cli.types import (
    JobId,
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
from holdfast.core.records import Job
from holdfast.errors import Refused, UsageError


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
def list_(chosen: Chosen, limit: int, before: str | None, as_json: bool) -> None:
    """Show the jobs that gave up and why, newest first."""
    with opened_store() as store:
        show_jobs(store, replace(chosen.on(store), states=("dead",)), limit, before, as_json)


@dead.command(
    epilog="""
    holdfast dead revive 01930f3c-8f5e-7cc1-b2a4-0d9c1a2b3c4d
    holdfast dead revive --task send --error 3f2a9c0d1e4b --since 14:00 --dry-run
    holdfast dead revive --all --note "the mail server is back" -y
    """
)
@click.argument("job_ids", metavar="[ID...]", nargs=-1, type=JobId())
@partial(mass_options, states=False)
@repeat_step_option
@person_options
@fence_option
@json_option
def revive(
    job_ids: tuple[str, ...],
    chosen: Chosen,
    every: bool,
    dry_run: bool,
    yes: bool,
    repeat_step: bool,
    by: str | None,
    note: str | None,
    fence: int | None,
    as_json: bool,
) -> None:
    """Bring dead jobs back, ready now and with fresh budgets.

    Name the jobs, or choose them by options. A workflow that has begun a step which must not be repeated is left
    alone, and options pass it by: find out whether the step happened, then name the workflow and say --repeat-step,
    or roll it back.
    """
    require_one(fence, job_ids)
    if not chooses(job_ids, chosen, every, dry_run):
        revive_each(job_ids, repeat_step, by, note, fence, as_json, _check_dead)
        return
    if repeat_step:
        raise UsageError("--repeat-step is said of jobs that you name, one by one, not of those that options choose")
    act = MassAct(name="revive", actor=person(by), note=note)
    act_on_chosen(act, chosen, dry_run=dry_run, yes=yes, as_json=as_json)


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


@dead.command(
    epilog="""
    holdfast dead purge --older-than 7d -y
    """
)
@older_than_option
@person_options
@yes_option
@json_option
def purge(older_than: float, by: str, note: str | None, yes: bool, as_json: bool) -> None:
    """Delete dead jobs that gave up long ago, with their history."""
    confirm(f"Delete every job that has been dead for {insight.duration(older_than)} for good?", yes)
    with opened_store(bulk=True) as store:
        number = purge_ended(store, [State.DEAD], older_than, by, note)
    if as_json:
        show_json({"deleted": number})
    else:
        acknowledge(f"{number} deleted")
