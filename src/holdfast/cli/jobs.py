"""`holdfast jobs`: see, export, retry, cancel, move, change and delete jobs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import click

from holdfast import insight
from holdfast.acts.mass import MassAct, decided, deletable, revival
from holdfast.app import App
from holdfast.bulk import READ, Acted, delete_all, move_all
from holdfast.cli import job_page
from holdfast.cli.base import Group, acknowledge, complain, error_text, is_quiet, say
from holdfast.cli.completing import complete_queue
from holdfast.cli.confirming import confirm
from holdfast.cli.exit_codes import Exit, code_of
from holdfast.cli.export import export
from holdfast.cli.filters import Chosen, page_options
from holdfast.cli.leaving import noting
from holdfast.cli.loading import opened_app, opened_store, suggest_task
from holdfast.cli.mass import act_on_chosen, chooses, mass_options
from holdfast.cli.output import Column, Progress, clean, is_terminal, show_json, show_table, styled
from holdfast.cli.types import (
    JobId,
    Text,
    fence_option,
    json_option,
    later,
    person,
    person_options,
    repeat_step_option,
    require_one,
)
from holdfast.core import acts
from holdfast.core.machine import LIVE
from holdfast.core.records import Job, Moment, Seen
from holdfast.core.verdict import Verdict
from holdfast.errors import AmbiguousName, NotFound, Refused, UsageError
from holdfast.insight import Selection
from holdfast.stores.protocol import Store, rows_of
from holdfast.stores.rounds import together

_MANY = 20  # jobs that are named at once: more take a while


@click.group(cls=Group, epilog="holdfast jobs list --state held")
def jobs() -> None:
    """See, export, retry, cancel, move, change and delete jobs."""


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
@partial(page_options, states=True)
@json_option
def list_(chosen: Chosen, limit: int, before: str | None, as_json: bool) -> None:
    """Show jobs, newest first.

    A ready job whose time has not come is shown as scheduled, or as retrying after a failure or crash; --state ready
    finds these too. With --crashed or --detector the jobs that crashed last come first, and TIME is that of the crash;
    with --error or --release it is that of the last error.
    """
    with opened_store() as store:
        show_jobs(store, chosen.on(store), limit, before, as_json)


def show_jobs(
    store: Store,
    chosen: Selection,
    limit: int,
    before: str | None,
    as_json: bool,
    what: str = "jobs",
    asking: bool = False,
) -> None:
    """Find jobs and print them: the list behind `jobs`, `workflows`, `held` and `dead`.

    With `asking` also workflows that wait for a person's answer; then each says in JSON what is asked.
    """
    states = chosen.states
    if before is not None and store.get(before := insight.full_id(store, before)) is None:
        raise NotFound(f"there is no job {before!r} to continue after")
    found, asking_too, now, names = together(
        lambda: insight.first_selected(store, chosen, limit, before),
        lambda: insight.asking(store, chosen.filter(limit, before)) if asking and not chosen.of_crashes else [],
        store.now,
        lambda: insight.worker_names(store),
    )
    found = insight.newest([*found, *asking_too], limit) if asking_too else found
    aged = found if asking or (len(states) == 1 and not as_json) else []
    since = {job.id: job.created_at for job in found} | insight.since_each(store, aged)
    if as_json:
        show_json(
            [
                {**insight.job_view(job, now, names), **(insight.asked(job, since[job.id]) if asking else {})}
                for job in found
            ]
        )
    elif not found:
        say(f"No such {what}." if states or chosen.narrows or before else f"No {what}.")
    if not found:
        suggest_task(store, chosen.task, states)
    if as_json or not found:
        return
    asks = what == "workflows" and any(job.question is not None for job in found)
    show_table(_columns(now, names, states, since, tells=what != "jobs", asks=asks), found)
    if len(found) == limit:
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
        Column("STATE", lambda job: job.shown_state(now.wall), keep=True, coloured=True, rank=6 if one_state else 0),
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
    """Return the job with this id, or with the only id that begins with it."""
    try:
        return insight.job_named(store, job_id)
    except AmbiguousName:
        raise
    except NotFound:
        raise unknown(job_id) from None


def unknown(job_id: str) -> NotFound:
    return NotFound(f"there is no job {job_id!r}; see `holdfast jobs list`")


# ---------------------------------------------------------------------------------------------- acting


@jobs.command(
    epilog="""
    holdfast jobs retry 01930f3c-8f5e-7cc1-b2a4-0d9c1a2b3c4d --note "disk is back"
    holdfast jobs retry --state cancelled --queue mail --since 1h --dry-run
    """
)
@click.argument("job_ids", metavar="[ID...]", nargs=-1, type=JobId())
@mass_options
@repeat_step_option
@person_options
@fence_option
@json_option
def retry(
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
    """Bring held, dead or cancelled jobs back, with fresh budgets.

    Name the jobs, or choose them by options. Options choose dead jobs unless --state says otherwise. They pass by a
    workflow with a step that may have happened and must not be repeated.
    """
    require_one(fence, job_ids)
    if not chooses(job_ids, chosen, every, dry_run):
        revive(job_ids, repeat_step, by, note, fence, as_json)
        return
    if repeat_step:
        raise UsageError("--repeat-step is said of jobs that you name, one by one, not of those that options choose")
    act = MassAct(name="retry", actor=person(by), note=note)
    act_on_chosen(act, chosen, dry_run=dry_run, yes=yes, as_json=as_json)


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
    holdfast jobs cancel --task mail.send --since 14:00 --note "bad batch"
    """
)
@click.argument("job_ids", metavar="[ID...]", nargs=-1, type=JobId())
@mass_options
@person_options
@fence_option
@json_option
def cancel(
    job_ids: tuple[str, ...],
    chosen: Chosen,
    every: bool,
    dry_run: bool,
    yes: bool,
    by: str | None,
    note: str | None,
    fence: int | None,
    as_json: bool,
) -> None:
    """Stop jobs. A running one is asked to stop, and may still succeed.

    Name the jobs, or choose them by options.
    """
    require_one(fence, job_ids)
    actor = person(by)
    if chooses(job_ids, chosen, every, dry_run):
        act = MassAct(name="cancel", actor=actor, note=note)
        act_on_chosen(act, chosen, dry_run=dry_run, yes=yes, as_json=as_json)
    else:
        move_each(job_ids, lambda _, job: acts.cancel(acts.as_seen(job, fence), actor=actor, reason=note), as_json)


@jobs.command(
    epilog="""
    holdfast jobs delete 01930f3c-8f5e-7cc1-b2a4-0d9c1a2b3c4d -y
    holdfast jobs delete --state cancelled --task mail.send --dry-run
    """
)
@click.argument("job_ids", metavar="[ID...]", nargs=-1, type=JobId())
@mass_options
@person_options
@fence_option
@json_option
def delete(
    job_ids: tuple[str, ...],
    chosen: Chosen,
    every: bool,
    dry_run: bool,
    yes: bool,
    by: str | None,
    note: str | None,
    fence: int | None,
    as_json: bool,
) -> None:
    """Delete jobs that are not running, with their history.

    Name the jobs, or choose them by options. Options choose jobs that have ended, unless --state says otherwise.

    A job whose end a workflow waits for is refused: cancel it first, and the workflow learns of it. A result that a
    workflow has not read yet is lost with its job, and the workflow fails with NotFound.
    """
    require_one(fence, job_ids)
    actor = person(by)
    if chooses(job_ids, chosen, every, dry_run):
        act = MassAct(name="delete", actor=actor, note=note)
        act_on_chosen(act, chosen, dry_run=dry_run, yes=yes, as_json=as_json)
        return
    listed: dict[str, Seen] = {}
    if not yes and sys.stdin.isatty():  # the answer is about the jobs as they are now
        with opened_store(bulk=True) as store:
            ids = insight.full_ids(store, job_ids)
            listed = {job.id: job.seen for job in rows_of(store, ids, READ)}
    confirm(f"Delete {insight.counted(len(set(job_ids)), 'job')} for good?", yes)

    deleted: dict[str, Job] = {}  # as they were, if they are to be shown

    def decide(store: Store, job: Job) -> Seen:
        acts.as_seen(job, fence)
        if as_json:
            deleted[job.id] = job
        return deletable(store, job)

    def remove(store: Store, ids: Sequence[str]) -> Iterator[list[Acted]]:
        return delete_all(store, [listed.get(job_id, job_id) for job_id in ids], partial(decide, store), actor, note)

    act_on_all(job_ids, remove, as_json, deleted)


# ---------------------------------------------------------------------------------------------- when and where


@jobs.command(
    epilog="""
    holdfast jobs move 01930f3c-8f5e-7cc1-b2a4-0d9c1a2b3c4d --to-queue slow
    holdfast jobs move --queue mail --task mail.digest --to-queue slow
    """
)
@click.argument("job_ids", metavar="[ID...]", nargs=-1, type=JobId())
@click.option(
    "--to-queue", metavar="QUEUE", required=True, type=Text(), shell_complete=complete_queue, help="The new queue."
)
@mass_options
@person_options
@fence_option
@json_option
def move(job_ids: tuple[str, ...], to_queue: str, by: str | None, note: str | None, **given: Any) -> None:
    """Move ready jobs to another queue.

    Name the jobs, or choose them by options. Scheduled and retrying jobs are ready, too.
    """
    _change(job_ids, MassAct(name="move", actor=person(by), note=note, queue=to_queue), **given)


@jobs.command(
    "set",
    epilog="""
    holdfast jobs set 01930f3c-8f5e-7cc1-b2a4-0d9c1a2b3c4d --priority 10
    holdfast jobs set --task report.build --state ready --run-at 2h
    """,
)
@click.argument("job_ids", metavar="[ID...]", nargs=-1, type=JobId())
@click.option("--priority", type=int, metavar="N", help="The new priority; larger is sooner.")
@click.option("--run-at", type=Text(), metavar="TIME", help="When to run: now, 15m from now, or an ISO 8601 instant.")
@mass_options
@person_options
@fence_option
@json_option
def set_(
    job_ids: tuple[str, ...],
    priority: int | None,
    run_at: str | None,
    by: str | None,
    note: str | None,
    **given: Any,
) -> None:
    """Change the priority or the time of ready jobs.

    Name the jobs, or choose them by options. Scheduled and retrying jobs are ready, too.
    """
    at = None
    if run_at is not None:
        with opened_store() as store:
            at = later(run_at, store.now().wall, "--run-at")
    _change(job_ids, MassAct(name="set", actor=person(by), note=note, priority=priority, run_at=at), **given)


def _change(
    job_ids: Sequence[str],
    act: MassAct,
    *,
    chosen: Chosen,
    every: bool,
    dry_run: bool,
    yes: bool,
    fence: int | None,
    as_json: bool,
) -> None:
    act.check()
    require_one(fence, job_ids)
    if chooses(job_ids, chosen, every, dry_run):
        act_on_chosen(act, chosen, dry_run=dry_run, yes=yes, as_json=as_json)
    else:
        move_each(job_ids, lambda store, job: decided(store, act, acts.as_seen(job, fence)), as_json)


# ---------------------------------------------------------------------------------------------- many by their ids


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
    done = 0
    views: list[dict[str, Any]] = []
    first_code: Exit | None = None
    number = len(set(job_ids))
    shown = number >= _MANY and not as_json and not is_quiet() and not is_terminal()  # there each has its line
    how_far = noting(lambda: f"at least {done} of {insight.counted(number, 'job')} done; repeat it for the others")
    with opened_store(bulk=True) as store, Progress("acting", number if shown else 0) as progress, how_far:
        ids = insight.full_ids(store, job_ids)
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
    number = len(set(job_ids))
    shown = number >= _MANY and not as_json and not is_quiet() and not is_terminal()  # there each has its line
    how_far = noting(lambda: f"at least {len(done)} of {insight.counted(number, 'job')} done")
    with opened_app(app_ref) as app, Progress("acting", number if shown else 0) as progress, how_far:
        for job_id in insight.full_ids(app.store, job_ids):
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
