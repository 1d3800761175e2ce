"""`holdfast jobs`: see, export, retry, cancel and delete jobs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import click

from holdfast import insight
from holdfast.admin import revival
from holdfast.app import App
from holdfast.bulk import READ, Acted, delete_all, move_all
from holdfast.cli import job_page
from holdfast.cli.base import Group, acknowledge, complain, error_text, is_quiet, say
from holdfast.cli.exit_codes import Exit, code_of
from holdfast.cli.export import export
from holdfast.cli.filters import page_options, state_option
from holdfast.cli.leaving import noting
from holdfast.cli.loading import opened_app, opened_store, suggest_task
from holdfast.cli.output import Column, Progress, clean, is_terminal, show_json, show_table, styled
from holdfast.cli.types import (
    JobId,
    fence_option,
    json_option,
    person,
    person_options,
    repeat_step_option,
    require_one,
    yes_option,
)
from holdfast.core import acts
from holdfast.core.machine import LIVE, State
from holdfast.core.records import Filter, Job, Moment, Seen
from holdfast.core.verdict import Verdict
from holdfast.errors import NotFound, Refused, UsageError
from holdfast.stores.protocol import Store, rows_of

_MANY = 20  # jobs that are named at once: more take a while


@click.group(cls=Group, epilog="holdfast jobs list --state held")
def jobs() -> None:
    """See, export, retry, cancel and delete jobs."""


jobs.add_command(export)


# ---------------------------------------------------------------------------------------------- seeing


@jobs.command(
    "list",
    epilog="""
    holdfast jobs list
    holdfast jobs list --state retrying --queue mail
    holdfast jobs list --state dead --json | jq -r '.[].id'
    """,
)
@state_option
@partial(page_options, key=True)
@json_option
def list_(states: tuple[str, ...], where: Filter, as_json: bool) -> None:
    """Show jobs, newest first.

    A ready job whose time has not come is shown as scheduled, or as retrying after a failure or crash; --state ready
    finds these too.
    """
    with opened_store() as store:
        show_jobs(store, states, where, as_json)


def show_jobs(
    store: Store, states: Sequence[str], where: Filter, as_json: bool, what: str = "jobs", asking: bool = False
) -> None:
    """Find jobs and print them: the list behind `jobs`, `workflows`, `held` and `dead`.

    With `asking` also workflows that wait for a person's answer; then each says in JSON what is asked.
    """
    if where.before is not None and store.get(where.before) is None:
        raise NotFound(f"there is no job {where.before!r} to continue after")
    found = insight.find_jobs(store, states, where)
    if asking:
        found = insight.with_asking(store, found, where)
    now, names = store.now(), insight.worker_names(store)
    if as_json:
        show_json(
            [{**insight.job_view(job, now, names), **(insight.asked(store, job) if asking else {})} for job in found]
        )
    elif not found:
        narrow = states or where.queue or where.task or where.key or where.group or where.before
        say(f"No such {what}." if narrow else f"No {what}.")
    if not found:
        suggest_task(store, where.task, states)
    if as_json or not found:
        return
    since = {job.id: insight.since_of(store, job) if len(states) == 1 else job.created_at for job in found}
    asks = what == "workflows" and any(job.question is not None for job in found)
    show_table(_columns(now, names, states, since, tells=what != "jobs", asks=asks), found)
    if len(found) == where.limit:
        say(f"Perhaps there are more: add --before {clean(found[-1].id)}, or a larger --limit.")


def _columns(
    now: Moment, names: insight.Names, states: Sequence[str], since: Mapping[str, float], *, tells: bool, asks: bool
) -> list[Column]:
    """Return what is shown of jobs. `since`: what the age of each is counted from. `tells`: the detail matters more
    than queue and attempts. `asks`: a person reads the detail to decide, so all of it is shown."""
    one_state, answers = len(states) == 1, "held" in states
    asks = asks or tuple(states) in (("held",), ("dead",), ("retrying",))
    tells = tells or asks
    queue, attempt, age, detail = (4, 5, 3, 1) if tells else (4, 5, 1, 2) if one_state else (2, 3, 1, 4)
    fence = Column("FENCE", lambda job: job.fence, right=True, keep=True)
    return [
        Column("ID", lambda job: job.id, keep=True),
        Column("STATE", lambda job: job.shown_state(now.wall), keep=True, rank=6 if one_state else 0),
        Column("TASK", lambda job: job.task, least=24 if asks else 10 if answers else 12, keeps_end=True),
        Column("QUEUE", lambda job: job.queue, rank=queue),
        Column("ATTEMPT", lambda job: job.attempt, right=True, keep=True, rank=attempt),
        *([fence] if answers else []),  # an answer says which question it saw
        Column("AGE", lambda job: insight.brief(now.wall - since[job.id]), right=True, keep=True, rank=age),
        Column("DETAIL", lambda job: insight.in_short(job, now, names), rank=detail, least=14, grows=tells, below=asks),
    ]


@jobs.command(
    epilog="""
    holdfast jobs show 01930f3c-8f5e-7cc1-b2a4-0d9c1a2b3c4d
    holdfast jobs show 01930f3c-8f5e-7cc1-b2a4-0d9c1a2b3c4d --json
    """
)
@click.argument("job_id", metavar="ID", type=JobId())
@json_option
def show(job_id: str, as_json: bool) -> None:
    """Show one job: why it is where it is, and all that happened to it."""
    with opened_store() as store:
        job = known(store, job_id)
        if as_json:
            show_json(insight.job_story(store, job))
            return
        job_page.tell(store, job)


def known(store: Store, job_id: str) -> Job:
    job = store.get(job_id)
    if job is None:
        raise unknown(job_id)
    return job


def unknown(job_id: str) -> NotFound:
    return NotFound(f"there is no job {job_id!r}; ids are exact: see `holdfast jobs list`")


# ---------------------------------------------------------------------------------------------- acting


@jobs.command(
    epilog="""
    holdfast jobs retry 01930f3c-8f5e-7cc1-b2a4-0d9c1a2b3c4d --note "disk is back"
    """
)
@click.argument("job_ids", metavar="ID...", nargs=-1, required=True, type=JobId())
@repeat_step_option
@person_options
@fence_option
@json_option
def retry(
    job_ids: tuple[str, ...], repeat_step: bool, by: str | None, note: str | None, fence: int | None, as_json: bool
) -> None:
    """Bring held, dead or cancelled jobs back, with fresh budgets."""
    require_one(fence, job_ids)
    revive(job_ids, repeat_step, by, note, fence, as_json)


def revive(
    job_ids: Sequence[str],
    repeat_step: bool,
    by: str | None,
    note: str | None,
    fence: int | None,
    as_json: bool,
    check: Callable[[Job], None] = lambda job: None,
) -> None:
    """Revive these jobs, unless `check` raises `Refused`."""
    actor = person(by)

    def decide(store: Store, job: Job) -> Verdict:
        check(acts.as_seen(job, fence))
        return revival(store, job, actor, note, repeat_step=repeat_step)

    move_each(job_ids, decide, as_json)


@jobs.command(
    epilog="""
    holdfast jobs cancel 01930f3c-8f5e-7cc1-b2a4-0d9c1a2b3c4d --note "sent twice"
    """
)
@click.argument("job_ids", metavar="ID...", nargs=-1, required=True, type=JobId())
@person_options
@fence_option
@json_option
def cancel(job_ids: tuple[str, ...], by: str | None, note: str | None, fence: int | None, as_json: bool) -> None:
    """Stop jobs. A running one is asked to stop, and may still succeed."""
    require_one(fence, job_ids)
    actor = person(by)
    move_each(job_ids, lambda _, job: acts.cancel(acts.as_seen(job, fence), actor=actor, reason=note), as_json)


@jobs.command(
    epilog="""
    holdfast jobs delete 01930f3c-8f5e-7cc1-b2a4-0d9c1a2b3c4d -y
    """
)
@click.argument("job_ids", metavar="ID...", nargs=-1, required=True, type=JobId())
@fence_option
@yes_option
@json_option
def delete(job_ids: tuple[str, ...], fence: int | None, yes: bool, as_json: bool) -> None:
    """Delete jobs that are not running, with their history.

    A job whose end a workflow waits for is refused: cancel it first, and the workflow learns of it. A result that a
    workflow has not read yet is lost with its job, and the workflow fails with NotFound.
    """
    require_one(fence, job_ids)
    listed: dict[str, Seen] = {}
    if not yes and sys.stdin.isatty():  # the answer is about the jobs as they are now
        with opened_store(bulk=True) as store:
            listed = {job.id: job.seen for job in rows_of(store, list(dict.fromkeys(job_ids)), READ)}
    confirm(f"Delete {insight.counted(len(set(job_ids)), 'job')} for good?", yes)

    deleted: dict[str, Job] = {}  # as they were, if they are to be shown

    def decide(store: Store, job: Job) -> Seen:
        seen = acts.as_seen(job, fence).seen
        if seen.state is State.RUNNING:
            raise Refused(f"job {job.id} is running with fence {job.fence}; cancel it first")
        parent = store.get(job.parent) if job.parent is not None else None
        if parent is not None and job.id in insight.awaited_jobs(parent):
            raise Refused(
                f"workflow {parent.id} waits for job {job.id} and would wait for ever; cancel the job first, then the "
                f"workflow is notified: holdfast jobs cancel {job.id}"
            )
        if as_json:
            deleted[job.id] = job
        return seen

    def remove(store: Store, ids: Sequence[str]) -> Iterator[list[Acted]]:
        return delete_all(store, [listed.get(job_id, job_id) for job_id in ids], partial(decide, store))

    act_on_all(job_ids, remove, as_json, deleted)


def move_each(job_ids: Sequence[str], decide: Callable[[Store, Job], Verdict], as_json: bool) -> None:
    """Act on each of these jobs, whatever becomes of the others."""

    def move(store: Store, ids: Sequence[str]) -> Iterator[list[Acted]]:
        return move_all(store, ids, partial(decide, store))

    act_on_all(job_ids, move, as_json)


def act_on_all(
    job_ids: Sequence[str],
    act: Callable[[Store, Sequence[str]], Iterator[list[Acted]]],
    as_json: bool,
    deleted: Mapping[str, Job] | None = None,
) -> None:
    """Act page by page and say what became of each job; exit with the code of the first that was not possible.

    `deleted`: the jobs are deleted, and these are as they were before.
    """
    ids, done = list(dict.fromkeys(job_ids)), 0
    views: list[dict[str, Any]] = []
    first_code: Exit | None = None
    shown = len(ids) >= _MANY and not as_json and not is_quiet() and not is_terminal()  # there each has its line
    how_far = noting(lambda: f"at least {done} of {insight.counted(len(ids), 'job')} done; repeat it for the others")
    with opened_store(bulk=True) as store, Progress("acting", len(ids) if shown else 0) as progress, how_far:
        names = insight.worker_names(store) if as_json else {}
        for page in act(store, ids):
            now, well = store.now(), [acted.job_id for acted in page if acted.error is None]
            done += len(well)
            rows = {job.id: job for job in rows_of(store, well, READ)} if deleted is None else deleted
            for job_id, error in page:
                if error is not None:
                    why = unknown(job_id) if isinstance(error, NotFound) else error
                    progress.make_way()
                    complain(error_text(why))
                    first_code = first_code or code_of(why)
                elif not as_json:
                    acknowledge(f"{clean(job_id)}  {outcome(rows[job_id], now) if job_id in rows else 'deleted'}")
                elif job_id in rows:
                    views.append(insight.job_view(rows[job_id], now, names))
            progress.advance(len(page))
    if as_json:
        show_json(views)
    if first_code is not None:
        click.get_current_context().exit(first_code)


def act_on(
    job_ids: Sequence[str],
    act: Callable[[App, str], Job],
    as_json: bool,
    app_ref: str | None = None,
    answered: Callable[[], str] = lambda: "",
) -> None:
    """Act on each job, whatever becomes of the others; exit with the code of the first that was not possible."""
    done: list[dict[str, Any]] = []
    first_code: Exit | None = None
    ids = list(dict.fromkeys(job_ids))
    shown = len(ids) >= _MANY and not as_json and not is_quiet() and not is_terminal()  # there each has its line
    how_far = noting(lambda: f"at least {len(done)} of {insight.counted(len(ids), 'job')} done")
    with opened_app(app_ref) as app, Progress("acting", len(ids) if shown else 0) as progress, how_far:
        for job_id in ids:
            progress.advance(1)
            try:
                job = act(app, job_id)
            except (NotFound, Refused) as error:
                why = error if app.store.get(job_id) is not None else unknown(job_id)
                progress.make_way()
                complain(error_text(why))
                first_code = first_code or code_of(why)
                continue
            now = app.store.now()
            done.append(insight.job_view(job, now, insight.worker_names(app.store)))
            if not as_json:
                acknowledge(f"{clean(job.id)}  {outcome(job, now)}{answered()}")
    if as_json:
        show_json(done)
    if first_code is not None:
        click.get_current_context().exit(first_code)


def outcome(job: Job, now: Moment) -> str:
    """Say where a job is after an act on it."""
    shown = job.shown_state(now.wall)
    asked = " (asked to stop)" if job.cancel_requested else ""
    undoes = " (rolling back)" if job.rolling_back and job.state in LIVE else ""
    return styled(shown) + asked + undoes


def confirm(question: str, yes: bool) -> None:
    """Ask before what cannot be undone; without a terminal to ask at, demand -y."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError("there is no terminal to ask at; add -y to continue")
    click.confirm(question, abort=True, err=True)
