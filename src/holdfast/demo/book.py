"""The demo's own record of its jobs and kills, compared with the store at the end.

The book is kept beside the store, not read from it: an id goes in when its enqueue was acknowledged, a kill when the
signal was sent. `check` then compares, and says in words what does not fit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from holdfast.core.machine import State
from holdfast.core.records import Detector, Event, Job
from holdfast.core.stop_reason import full_reason


class Death(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that was killed or frozen in the middle of a job."""

    act: int
    by: str  # the signal, as the view shows it
    expected: Detector  # who must find it
    at: float  # wall time of the signal
    job: Job  # as it was then
    victim: str
    lease_left_s: float  # what a system that only waits for the lease would have waited


class Ledger(msgspec.Struct, frozen=True):
    """The contents of the store at the end."""

    jobs: list[Job]
    counts: Mapping[str, int]
    accepted: Mapping[str, int]  # job id -> successes in the journal
    zombies: int  # that a dry run of the reaper still finds


class Book:
    """See the module's docstring."""

    def __init__(self) -> None:
        self.wanted: dict[str, State] = {}  # every job whose enqueue was acknowledged -> where it must end
        self.deaths: dict[str, Death] = {}  # by job id
        self.recoveries: dict[str, dict[str, Any]] = {}  # by job id, as the summary has them
        self.processes_killed = 0
        self.approved = 0

    def submitted(self, ids: Iterable[str], wanted: State = State.DONE) -> None:
        self.wanted.update(dict.fromkeys(ids, wanted))

    def recovered(self, death: Death, zombie: Event, successor: Job | None) -> None:
        """Work out the figures of one recovery from the journal's line and the successor's row, None if it is held."""
        self.recoveries[death.job.id] = {
            "act": death.act,
            "task": death.job.task,
            "victim": death.victim,
            "detector": zombie.detail["detector"],
            "found_after_s": _between(death.at, zombie.at),
            "runs_again_after_s": successor and _between(death.at, successor.claimed_at or 0.0),
            "lease_left_s": round(death.lease_left_s, 3),
            "lease_s": death.job.lease_s,
            "fence_before": death.job.fence,
            "fence_after": successor.fence if successor else zombie.detail["fence_after"],
        }


def _between(then: float, now: float) -> float:
    return round(max(0.0, now - then), 4)


def check(book: Book, ledger: Ledger) -> list[str]:
    """Compare the book with the store; return what does not fit, in words. Empty: nothing was lost."""
    return [*_jobs(book, ledger), *_each_job(book, ledger), *_deaths(book, ledger)]


def lost(book: Book, ledger: Ledger) -> int:
    """Count the jobs that were acknowledged and are not in the store, or not where they must end."""
    states = {job.id: job.state for job in ledger.jobs}
    return sum(states.get(job_id) is not wanted for job_id, wanted in book.wanted.items())


def _jobs(book: Book, ledger: Ledger) -> Iterator[str]:
    found = Counter(job.id for job in ledger.jobs)
    for job_id in book.wanted.keys() - found.keys():
        yield f"job {job_id} was acknowledged and is not in the store: lost"
    for job_id in found.keys() - book.wanted.keys():
        yield f"job {job_id} is in the store and was never submitted: a phantom"
    for job_id, times in found.items():
        if times > 1:
            yield f"job {job_id} is in the store {times} times"
    states = Counter(job.state.value for job in ledger.jobs)
    for state, number in ledger.counts.items():
        if states[state] != number:
            yield f"the store counts {number} jobs as {state}, and {states[state]} are there"


def _each_job(book: Book, ledger: Ledger) -> Iterator[str]:
    for job in ledger.jobs:
        name, state, times = f"job {job.id} ({job.task})", job.state, ledger.accepted.get(job.id, 0)
        wanted = book.wanted.get(job.id, state)
        if state is not wanted:
            yield f"{name} is {state.value} and should be {wanted.value}{f': {full_reason(job)}' if job.error else ''}"
        if times != (state is State.DONE):
            yield f"{name} is {state.value}, and {times} successes were accepted"
        if job.on_crash == "hold" and job.attempt > 1 + book.approved:
            yield f"{name} was started {job.attempt} times with {book.approved} approvals"


def _deaths(book: Book, ledger: Ledger) -> Iterator[str]:
    if ledger.zombies:
        yield f"{ledger.zombies} zombies are left"
    for job_id, death in book.deaths.items():
        what = f"{death.job.task} lost its worker {death.victim} in act {death.act}, and"
        recovery = book.recoveries.get(job_id)
        if recovery is None:
            yield f"{what} was not recovered"
        elif recovery["detector"] != death.expected:
            yield f"{what} it was found by {recovery['detector']}, not by {death.expected}"
