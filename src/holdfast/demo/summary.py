"""The end: what the store holds, compared with the book, and the figures that were measured on the way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import msgspec

from holdfast.app import App
from holdfast.core.machine import State
from holdfast.core.records import Event, Filter, Job
from holdfast.demo.book import Book, Ledger, Recovery, check, lost
from holdfast.reaper import reap
from holdfast.stores.protocol import Store

_PAGE = 500
_EVERYTHING = 1_000_000  # more events than a demo can write


class Refusal(msgspec.Struct, frozen=True):
    """A returned zombie's report, and the fence that it met."""

    task: str
    worker: str
    fence: int
    fence_now: int


class Reason(msgspec.Struct, frozen=True):
    """Why an attempt failed, or a job was held or is dead."""

    task: str
    attempts: int
    reason: str


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """All figures are measured. `trouble` says what went wrong; it is empty when `ok`."""

    ok: bool
    trouble: list[str]
    acts: list[str]
    story: dict[str, str]  # task -> job id
    seconds: float
    jobs_submitted: int
    jobs_done: int
    jobs_dead: int
    jobs_lost: int
    accepted_once: int
    jobs_per_s: float
    processes_killed: int
    zombies_found: int
    zombies_left: int
    recoveries: list[Recovery]
    stale_reports: list[Refusal]
    held: list[Reason]
    approved: int
    failed: list[Reason]
    dead: list[Reason]


def read(app: App) -> Ledger:
    """Read everything that the store says. Changes nothing."""
    store = app.store
    successes = store.journal(kinds=("succeeded",), limit=_EVERYTHING)
    zombies = reap(store, app.clock, fix=False).zombies
    return Ledger(list(_all_jobs(store)), app.counts(), Counter(event.job_id for event in successes), len(zombies))


def sum_up(
    app: App, book: Book, *, acts: list[str], story: dict[str, str], seconds: float, trouble: list[str]
) -> Summary:
    """Check the books and put the figures together."""
    ledger = read(app)
    events = app.store.journal(limit=_EVERYTHING)
    jobs = {job.id: job for job in ledger.jobs}
    names = {worker.id: worker.name for worker in app.store.workers(gone=True)}
    trouble = [*trouble, *check(book, ledger)]
    refused = [_refusal(event, jobs, names) for event in events if event.kind == "stale_report"]
    held = [_reason(event, jobs) for event in events if event.kind == "held"]
    poison_kills = sum(job.crashes for job in ledger.jobs if job.task == "poison")
    return Summary(
        ok=not trouble,
        trouble=trouble,
        acts=acts,
        story=story,
        seconds=round(seconds, 3),
        jobs_submitted=len(book.wanted),
        jobs_done=ledger.counts["done"],
        jobs_dead=ledger.counts["dead"],
        jobs_lost=lost(book, ledger),
        accepted_once=sum(times == 1 for times in ledger.accepted.values()),
        jobs_per_s=round(_pace(ledger.jobs), 2),
        processes_killed=book.processes_killed + poison_kills,
        zombies_found=sum(event.kind == "zombie" for event in events),
        zombies_left=ledger.zombies,
        recoveries=book.recoveries,
        stale_reports=refused,
        held=held,
        approved=book.approved,
        failed=[_reason(event, jobs) for event in events if event.kind == "failed"],
        dead=[_reason(event, jobs) for event in events if event.kind == "dead"],
    )


def _all_jobs(store: Store) -> Iterator[Job]:
    before: str | None = None
    while page := store.find(Filter(before=before, limit=_PAGE)):
        yield from page
        before = page[-1].id


def _refusal(event: Event, jobs: dict[str, Job], names: dict[str, str]) -> Refusal:
    job = jobs.get(event.job_id)
    worker = names.get(event.worker or "", "a worker")
    return Refusal(job.task if job else event.job_id, worker, event.fence, job.fence if job else 0)


def _reason(event: Event, jobs: dict[str, Job]) -> Reason:
    job = jobs.get(event.job_id)
    reason = event.detail.get("reason") or event.detail.get("error")
    return Reason(job.task if job else event.job_id, job.attempt if job else 0, str(reason))


def _pace(jobs: list[Job]) -> float:
    ended = [job.ended_at for job in jobs if job.state is State.DONE and job.ended_at is not None]
    if not ended:
        return 0.0
    return len(ended) / max(0.001, max(ended) - min(job.created_at for job in jobs))
