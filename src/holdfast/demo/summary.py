"""The end: what the store holds, compared with the book, and the figures that were measured on the way."""

from __future__ import annotations

from collections import Counter
from typing import Any

from holdfast.app import App
from holdfast.core.machine import State
from holdfast.core.records import Event, Filter, Job
from holdfast.demo.book import Book, Ledger, check, lost
from holdfast.upkeep.reaper import reap

_EVERYTHING = 1_000_000  # more jobs and events than a demo can write


def sum_up(
    app: App, book: Book, *, acts: list[str], story: dict[str, str], seconds: float, trouble: list[str]
) -> dict[str, Any]:
    """Check the books and put the measured figures together. `trouble` says what went wrong; it is empty when `ok`."""
    events = app.store.journal(limit=_EVERYTHING)
    rows = app.store.find(Filter(limit=_EVERYTHING))
    jobs = {job.id: job for job in rows}
    names = {worker.id: worker.name for worker in app.store.workers(gone=True)}
    accepted = Counter(event.job_id for event in events if event.kind == "succeeded")
    zombies = len(reap(app.store, app.clock, fix=False).zombies)
    ledger = Ledger(rows, app.counts(), accepted, zombies)
    trouble = [*trouble, *check(book, ledger)]

    def event_view(event: Event) -> dict[str, Any]:
        job = jobs.get(event.job_id)
        task, attempts = (job.task, job.attempt) if job else (event.job_id, 0)
        return {"task": task, "attempts": attempts, "reason": event.detail.get("reason") or event.detail.get("error")}

    return {
        "ok": not trouble,
        "trouble": trouble,
        "acts": acts,
        "story": story,
        "seconds": round(seconds, 3),
        "jobs_submitted": len(book.wanted),
        "jobs_done": ledger.counts["done"],
        "jobs_dead": ledger.counts["dead"],
        "jobs_lost": lost(book, ledger),
        "accepted_once": sum(times == 1 for times in accepted.values()),
        "jobs_per_s": round(_pace(ledger.jobs), 2),
        "processes_killed": book.processes_killed + sum(job.crashes for job in ledger.jobs if job.task == "poison"),
        "zombies_found": sum(event.kind == "zombie" for event in events),
        "zombies_left": zombies,
        "recoveries": list(book.recoveries.values()),
        "stale_reports": [
            {"task": job.task, "worker": names.get(event.worker or ""), "fence": event.fence, "fence_now": job.fence}
            for event in events
            if event.kind == "stale_report" and (job := jobs.get(event.job_id))
        ],
        "held": [event_view(event) for event in events if event.kind == "held"],
        "approved": book.approved,
        "failed": [event_view(event) for event in events if event.kind == "failed"],
        "dead": [event_view(event) for event in events if event.kind == "dead"],
    }


def _pace(jobs: list[Job]) -> float:
    ended = [job.ended_at for job in jobs if job.state is State.DONE and job.ended_at is not None]
    return len(ended) / max(0.001, max(ended) - min(job.created_at for job in jobs)) if ended else 0.0
