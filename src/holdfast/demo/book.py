"""What the demo knows by itself, and whether the store agrees with it at the end.

The book is kept beside the store, not read from it: an id goes in when its enqueue was acknowledged, a kill when the
signal was sent. `check` then compares, and says in words what does not fit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from holdfast.core.machine import State
from holdfast.core.records import Detector, Event, Job


class Death(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that was killed or frozen in the middle of a job."""

    act: int
    by: str  # the signal, as it is told
    expected: Detector  # who must find it
    at: float  # wall time of the signal
    job_id: str
    task: str
    fence: int
    victim: str
    lease_left_s: float  # what a system that only waits for the lease would have waited
    lease_s: float


class Recovery(msgspec.Struct, frozen=True, kw_only=True):
    """How such a death was found, and when the job ran again; None: it was not run again."""

    act: int
    task: str
    victim: str
    detector: Detector
    found_after_s: float
    runs_again_after_s: float | None
    lease_left_s: float
    lease_s: float
    fence_before: int
    fence_after: int


class Ledger(msgspec.Struct, frozen=True):
    """What the store says at the end."""

    jobs: list[Job]
    counts: Mapping[str, int]
    accepted: Mapping[str, int]  # job id -> successes in the journal
    zombies: int  # that a dry run of the reaper still finds


class Book:
    """See the module's docstring."""

    def __init__(self) -> None:
        self.wanted: dict[str, State] = {}  # every job whose enqueue was acknowledged -> where it must end
        self.deaths: dict[tuple[str, int], Death] = {}  # (job id, fence) -> the last one
        self.recoveries: list[Recovery] = []
        self.processes_killed = 0
        self.approved = 0

    def submitted(self, ids: Iterable[str], wanted: State = State.DONE) -> None:
        self.wanted.update(dict.fromkeys(ids, wanted))

    def died(self, death: Death) -> None:
        self.deaths[death.job_id, death.fence] = death

    def recovered(self, death: Death, zombie: Event, successor: Job | None) -> Recovery:
        """Work out the figures of one recovery from the journal's line and the successor's row."""
        recovery = Recovery(
            act=death.act,
            task=death.task,
            victim=death.victim,
            detector=zombie.detail["detector"],
            found_after_s=_between(death.at, zombie.at),
            runs_again_after_s=None if successor is None else _between(death.at, successor.claimed_at or 0.0),
            lease_left_s=round(death.lease_left_s, 3),
            lease_s=death.lease_s,
            fence_before=death.fence,
            fence_after=successor.fence if successor is not None else zombie.detail["fence_after"],
        )
        self.recoveries.append(recovery)
        return recovery


def _between(then: float, now: float) -> float:
    return round(max(0.0, now - then), 4)


def check(book: Book, ledger: Ledger) -> list[str]:
    """Compare the book with the store; return what does not fit, in words. Empty: nothing was lost."""
    return [*_jobs(book, ledger), *_once(ledger), *_starts(book, ledger), *_tallies(ledger), *_deaths(book, ledger)]


def lost(book: Book, ledger: Ledger) -> int:
    """Count the jobs that were acknowledged and are not in the store, or not where they must end."""
    states = {job.id: job.state for job in ledger.jobs}
    return sum(states.get(job_id) is not wanted for job_id, wanted in book.wanted.items())


def _jobs(book: Book, ledger: Ledger) -> Iterable[str]:
    found = Counter(job.id for job in ledger.jobs)
    for job_id in book.wanted.keys() - found.keys():
        yield f"job {job_id} was acknowledged and is not in the store: lost"
    for job_id in found.keys() - book.wanted.keys():
        yield f"job {job_id} is in the store and was never submitted: a phantom"
    for job_id, times in found.items():
        if times > 1:
            yield f"job {job_id} is in the store {times} times"
    for job in ledger.jobs:
        wanted = book.wanted.get(job.id, job.state)
        if job.state is not wanted:
            why = f": {job.error}" if job.error else ""
            yield f"job {job.id} ({job.task}) is {job.state.value} and should be {wanted.value}{why}"


def _once(ledger: Ledger) -> Iterable[str]:
    for job in ledger.jobs:
        wanted = 1 if job.state is State.DONE else 0
        times = ledger.accepted.get(job.id, 0)
        if times != wanted:
            yield f"job {job.id} ({job.task}) is {job.state.value}, and {times} successes were accepted"


def _starts(book: Book, ledger: Ledger) -> Iterable[str]:
    for job in ledger.jobs:
        if job.on_crash == "hold" and job.attempt > 1 + book.approved:
            yield f"job {job.id} ({job.task}) was started {job.attempt} times with {book.approved} approvals"


def _tallies(ledger: Ledger) -> Iterable[str]:
    states = Counter(job.state.value for job in ledger.jobs)
    for state, number in ledger.counts.items():
        if states[state] != number:
            yield f"the store counts {number} jobs as {state}, and {states[state]} are there"


def _deaths(book: Book, ledger: Ledger) -> Iterable[str]:
    if ledger.zombies:
        yield f"{ledger.zombies} zombies are left"
    recovered = {(recovery.act, recovery.task): recovery for recovery in book.recoveries}
    for death in book.deaths.values():
        recovery = recovered.get((death.act, death.task))
        if recovery is None:
            yield f"{death.task} lost its worker {death.victim} in act {death.act}, and was not recovered"
        elif recovery.detector != death.expected:
            by = f"by {recovery.detector}, not by {death.expected}"
            yield f"{death.task} lost its worker {death.victim} in act {death.act}, and it was found {by}"
