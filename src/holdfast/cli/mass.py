"""Acts on all jobs that options choose: a dry run, a question, the act page by page, and what became of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

from holdfast import insight
from holdfast.acts.mass import ActName, Listing, MassAct, carry_out, list_for
from holdfast.cli.base import acknowledge, say
from holdfast.cli.confirming import confirm
from holdfast.cli.filters import Chosen, choose_options
from holdfast.cli.leaving import noting
from holdfast.cli.loading import opened_store, suggest_task
from holdfast.cli.output import Column, Progress, clean, show_json, show_table
from holdfast.cli.types import options, yes_option
from holdfast.errors import UsageError
from holdfast.stores.protocol import Store

F = TypeVar("F", bound=Callable[..., Any])

_NAMED_MAX = 10  # jobs that are named for a reason, in words
_REASONS_MAX = 100  # in JSON
_TASKS_MAX = 3
# The words for an act in the question, and when it is done.
_WORDS: Mapping[ActName, tuple[str, str]] = {
    "revive": ("Revive", "revived"),
    "retry": ("Run again", "run again"),
    "cancel": ("Cancel", "cancelled, or asked to stop"),
    "delete": ("Delete for good", "deleted"),
    "approve": ("Approve", "approved"),
    "fail": ("Give up", "given up"),
    "hold": ("Hold", "held"),
    "move": ("Move", "moved"),
    "set": ("Change", "changed"),
}


def mass_options(command: F, *, states: bool = True) -> F:
    """Take the jobs of an act: ids, or the options that choose jobs, or --all; with --dry-run and --yes."""
    every = click.option("--all", "every", is_flag=True, help="All jobs that the act can be about.")
    dry_run = click.option("--dry-run", is_flag=True, help="Only count the jobs, and show some.")
    return choose_options(options(every, dry_run, yes_option)(command), states=states)


def chooses(job_ids: Sequence[str], chosen: Chosen, every: bool, dry_run: bool) -> bool:
    """Say whether options choose the jobs; False if their ids do. Raises `UsageError` for both, or for neither."""
    if job_ids and (chosen.narrows or every):
        raise UsageError("name the jobs, or choose them by options; not both")
    if job_ids and dry_run:
        raise UsageError("--dry-run goes with options that choose jobs, such as --task")
    if not job_ids and not chosen.narrows and not every:
        raise UsageError("name the jobs, choose them by options such as --task, or say --all")
    return not job_ids


def act_on_chosen(act: MassAct, chosen: Chosen, *, dry_run: bool, yes: bool, as_json: bool) -> None:
    """List the jobs, ask a person, and act page by page. Jobs that move on meanwhile are left alone."""
    with opened_store(bulk=True) as store:
        wanted = chosen.on(store)
        listing = list_for(store, act, wanted)
        if not listing.jobs and not listing.left_alone:
            suggest_task(store, wanted.task, wanted.states)
        if dry_run:
            _show_plan(store, act, listing, as_json)
            return
        if listing.jobs:
            confirm(f"{_WORDS[act.name][0]}: {_in_words(listing)}. Go ahead?", yes)
        done, refused = _carried_out(store, act, listing)
    if as_json:
        show_json(_view(act, listing, dry_run=False, done=done, refused=refused))
        return
    acknowledge(f"{insight.counted(done, 'job')} {_WORDS[act.name][1]}")
    _tell("Left alone, because they moved on", refused)
    _tell("Left alone, because each needs an answer of its own", listing.left_alone)


def _carried_out(store: Store, act: MassAct, listing: Listing) -> tuple[int, dict[str, str]]:
    done, refused = 0, dict[str, str]()
    total = insight.counted(len(listing.jobs), "job")
    how_far = noting(lambda: f"at least {done} of {total} {_WORDS[act.name][1]}; repeat it for the others")
    with Progress("acting", len(listing.jobs)) as progress, how_far:
        for page in carry_out(store, act, [*listing.jobs]):
            done += sum(acted.error is None for acted in page)
            refused |= {acted.job_id: str(acted.error) for acted in page if acted.error is not None}
            progress.advance(len(page))
    store.wake()
    return done, refused


def _in_words(listing: Listing) -> str:
    """Say how many jobs there are, and of which tasks."""
    tasks = [f"{number} of {clean(task)}" for task, number in listing.tasks.items()]
    more = len(tasks) - _TASKS_MAX
    named = ", ".join(tasks[:_TASKS_MAX]) + (f", and {insight.counted(more, 'more task')}" if more > 0 else "")
    return f"{insight.counted(len(listing.jobs), 'job')} ({named})" if named else "0 jobs"


def _show_plan(store: Store, act: MassAct, listing: Listing, as_json: bool) -> None:
    now = store.now()
    if as_json:
        names = insight.worker_names(store)
        sample = [insight.job_view(job, now, names) for job in listing.sample]
        show_json({**_view(act, listing, dry_run=True), "sample": sample})
        return
    acknowledge(f"{_WORDS[act.name][0]}: {_in_words(listing)}. Nothing was changed.")
    if listing.sample:
        columns = [
            Column("ID", lambda job: job.id, keep=True),
            Column("STATE", lambda job: job.shown_state(now.wall), keep=True, coloured=True),
            Column("TASK", lambda job: job.task, least=10, keeps_end=True),
            Column("QUEUE", lambda job: job.queue, rank=2),
            Column("DETAIL", lambda job: insight.in_short(job, now), rank=1, least=14, grows=True),
        ]
        show_table(columns, listing.sample)
        if (more := len(listing.jobs) - len(listing.sample)) > 0:
            say(f"… and {more} more.")
    _tell("To be left alone, because each needs an answer of its own", listing.left_alone)


def _tell(what: str, reasons: Mapping[str, str]) -> None:
    if not reasons:
        return
    say(f"{what}: {insight.counted(len(reasons), 'job')}.")
    for job_id, why in list(reasons.items())[:_NAMED_MAX]:
        say(f"  {clean(job_id)}: {clean(why)}")
    if (more := len(reasons) - _NAMED_MAX) > 0:
        say(f"  … and {more} more.")
    say("See one: holdfast jobs show ID")


def _view(
    act: MassAct, listing: Listing, *, dry_run: bool, done: int = 0, refused: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Show an act as JSON; of very many reasons only the first ones."""
    refused = refused or {}
    reasons = {**refused, **listing.left_alone}
    return {
        "act": act.name,
        "dry_run": dry_run,
        "count": len(listing.jobs),
        "tasks": listing.tasks,
        "done": done,
        "refused": len(refused),
        "left_alone": len(listing.left_alone),
        "reasons": dict(list(reasons.items())[:_REASONS_MAX]),
    }
