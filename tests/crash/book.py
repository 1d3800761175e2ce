"""The checker of the storm has books of its own: the ledger, in which each handler wrote the fence it was started
under, who was killed and when, and when the server was away. From these it knows which attempt was the newest, and
whether its forerunner was dead; then it asks the store, and counts the effects in the user's own table.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from holdfast.core.machine import State
from holdfast.core.policy import BEATS_PER_LEASE
from holdfast.core.records import Event, Filter
from holdfast.core.records import Job as Row
from tests.crash.world import Entry, World, now

PAGE = 500


@dataclass
class Book:
    """What was done to the workers, and what was asked of them."""

    back_s: float = 10.0  # after an outage, workers consume again by then (DESIGN 14)
    lease_s: float = 30.0
    jobs: list[str] = field(default_factory=list)  # acknowledged
    paying: set[str] = field(default_factory=set)  # those of them that write an effect
    repeated: int = 0  # enqueues that were not acknowledged at first
    killed: dict[int, float] = field(default_factory=dict)  # pid -> when
    kills: Counter[str] = field(default_factory=Counter)
    outages: list[tuple[float, float]] = field(default_factory=list)  # of the server, from its death to its return

    def was_away(self, at: float) -> bool:
        """Whether a session could have been cut at this moment, or been refused because the server was not back."""
        return any(killed_at <= at < back_at + 2.0 for killed_at, back_at in self.outages)

    def was_away_between(self, began: float, ended: float) -> bool:
        """Whether a session could have been cut, or been refused, at some moment of this time."""
        return any(killed_at <= ended and began < back_at + 2.0 for killed_at, back_at in self.outages)

    def could_renew(self, until: float) -> bool:
        """Whether a living worker could beat during the lease that ended by then: the server was there for a beat, and
        for the moment that a session takes to come back."""
        free_from, longest = until - self.lease_s, 0.0
        for killed_at, back_at in [*self.outages, (until, until)]:
            longest = max(longest, min(killed_at, until) - free_from)
            free_from = max(free_from, back_at)
        return longest > self.lease_s / BEATS_PER_LEASE + 2.0


@dataclass
class Figures:
    """What was seen."""

    took_s: float = 0.0
    done: int = 0
    starts: int = 0
    effects: int = 0
    paying: int = 0
    repeated: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    zombies: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)
    verdict_s: list[float] = field(default_factory=list)
    away_s: list[float] = field(default_factory=list)
    back_s: list[float] = field(default_factory=list)  # from the return of the server to the next start of a handler
    wrong: list[str] = field(default_factory=list)  # every broken promise, in words

    def lines(self) -> Iterator[str]:
        yield f"{self.done} jobs done in {self.took_s:.1f} s, by {self.starts} starts"
        yield f"killed: {_told(self.kills)}"
        yield f"zombies: {self.zombies.total()} ({_told(self.zombies)})"
        if self.verdict_s:
            yield f"from kill -9 to the verdict on its jobs: {_spread(self.verdict_s)}"
        if self.away_s:
            yield f"the server was away: {_spread(self.away_s)}; {self.repeated} enqueues had to be repeated"
            yield f"from its return to the next start of a handler: {_spread(self.back_s)}"
        if self.paying:
            yield f"{self.effects} effects of {self.paying} jobs"
        yield f"journal: {_told(self.events)}"
        yield "every promise held" if not self.wrong else f"BROKEN: {len(self.wrong)}"
        yield from self.wrong[:20]


def check(world: World, book: Book, figures: Figures) -> None:
    """Compare what the store says with what the handlers wrote and who was killed."""
    figures.kills, figures.repeated, figures.paying = book.kills, book.repeated, len(book.paying)
    ledger: dict[str, list[Entry]] = defaultdict(list)
    for entry in world.ledger():
        ledger[entry.job].append(entry)
    journal: dict[str, list[Event]] = defaultdict(list)
    for event in _whole_journal(world):
        journal[event.job_id].append(event)
        figures.events[event.kind] += 1
    rows = _rows(world, book.jobs)
    for job in book.jobs:
        for trouble in _troubles(rows.get(job), ledger[job], journal[job], book):
            figures.wrong.append(f"job {job}: {trouble}")
        figures.starts += sum(entry.event == "start" for entry in ledger[job])
        figures.verdict_s += _verdicts(journal[job], book.killed)
    figures.zombies = Counter(
        str(event.detail["detector"]) for events in journal.values() for event in events if event.kind == "zombie"
    )
    _check_effects(world, book, rows, figures)
    _check_outages(book, sorted(entry.at for entry in world.ledger("start")), figures)
    counts = {state: number for states in world.store.counts().values() for state, number in states.items()}
    figures.done = counts.get(State.DONE, 0)
    if counts != {State.DONE: len(book.jobs)}:
        figures.wrong.append(f"P1: {len(book.jobs)} jobs were stored, and there are {counts}")


def _whole_journal(world: World) -> Iterator[Event]:
    """Every event; those of one job in the order in which they happened."""
    pages: list[list[Event]] = []
    before: int | None = None
    while page := list(world.store.journal(limit=50_000, before=before)):
        pages.append(page)
        before = min(event.seq for event in page)
    yield from sorted((event for page in pages for event in page), key=lambda event: event.seq)


def _rows(world: World, jobs: list[str]) -> dict[str, Row]:
    pages = (jobs[start : start + PAGE] for start in range(0, len(jobs), PAGE))
    return {row.id: row for page in pages for row in world.store.find(Filter(ids=tuple(page), limit=PAGE))}


def _troubles(row: Row | None, entries: list[Entry], events: list[Event], book: Book) -> Iterator[str]:
    if row is None:
        yield "P1: it is lost"
        return
    starts = [entry for entry in entries if entry.event == "start"]
    fences = [start.fence for start in starts]
    if row.state is not State.DONE:
        yield f"P10: it is {row.state.value}"
        return
    if fences != sorted(set(fences)):
        yield f"P4: its fences did not rise: {fences}"
    accepted = [event.fence for event in events if event.kind == "succeeded"]
    if len(accepted) != 1:
        yield f"P4: it was accepted {len(accepted)} times"
    elif accepted != fences[-1:] or row.result != str(accepted[0]):
        yield f"P3: attempt {accepted[0]} was accepted, {fences} were started, the result is of {row.result}"
    elif not any(entry.event == "end" and entry.fence == accepted[0] for entry in entries):
        yield "it was accepted, and its handler never came to the end"
    yield from _false_deaths(starts, events, book)
    if row.zombies != sum(event.kind == "zombie" for event in events):
        yield f"it counts {row.zombies} zombies, and its journal does not agree"


def _false_deaths(starts: list[Entry], events: list[Event], book: Book) -> Iterator[str]:
    """P9: an attempt has a successor only if its process was killed, or its transaction with the server, or if nobody
    could renew its lease because the server was away: its worker gave it back, or its lease ended."""
    wall_minus_boot = time.time() - now()
    excused = [event for event in events if _could_not_renew(event, book, wall_minus_boot)]
    cut_off = {event.fence for event in events if event.kind == "failed" or event in excused}
    given_back = {event.fence: event.at - wall_minus_boot for event in events if event.kind == "released"}
    for sooner, later in itertools.pairwise(starts):
        back_at = given_back.get(sooner.fence)
        if sooner.fence in cut_off or (back_at is not None and book.was_away_between(sooner.at, back_at)):
            continue
        killed_at = book.killed.get(sooner.pid, book.killed.get(sooner.parent))
        if killed_at is None:
            yield f"P9: attempt {sooner.fence} was taken over although nobody killed its process {sooner.pid}"
        elif later.at < killed_at:
            yield f"P9: attempt {later.fence} was started {killed_at - later.at:.3f} s before the kill"
    for event in events:
        if event.kind == "zombie" and event.detail.get("pid") not in book.killed and event not in excused:
            yield f"P9: a false zombie, of process {event.detail.get('pid')} that nobody killed"
        elif event.kind == "failed" and not (event.job_id in book.paying and book.was_away(event.at - wall_minus_boot)):
            yield f"it failed, and the server was there: {event.detail}"
        elif event.kind not in ("zombie", "succeeded", "claimed", "released", "failed"):
            yield f"unexpected: {event.kind} {event.detail}"


def _could_not_renew(event: Event, book: Book, wall_minus_boot: float) -> bool:
    expired = event.kind == "zombie" and event.detail["detector"] == "expired"
    return expired and bool(book.outages) and not book.could_renew(event.at - wall_minus_boot)


def _check_effects(world: World, book: Book, rows: dict[str, Row], figures: Figures) -> None:
    """P6: one effect of each job that writes one, by the attempt that was accepted."""
    if not book.paying:
        return
    with contextlib.closing(world.connect()) as db:
        found: list[tuple[str, int]] = [(job, fence) for job, fence in db.execute("SELECT job, fence FROM effect")]
    figures.effects = len(found)
    by_job = defaultdict(list)
    for job, fence in found:
        by_job[job].append(fence)
    for job in book.paying | set(by_job):
        row = rows.get(job)
        wanted = [int(row.result or 0)] if row is not None and job in book.paying else []
        if by_job[job] != wanted:
            figures.wrong.append(f"job {job}: P6: its effects are of the attempts {by_job[job]}, not {wanted}")


def _check_outages(book: Book, starts: list[float], figures: Figures) -> None:
    for killed_at, back_at in book.outages:
        figures.away_s.append(back_at - killed_at)
        later = next((at for at in starts if at >= back_at), None)
        if later is not None:
            figures.back_s.append(later - back_at)
    if figures.back_s and max(figures.back_s) > book.back_s:
        figures.wrong.append(f"after an outage nobody worked for {max(figures.back_s):.1f} s")


def _verdicts(events: list[Event], killed: dict[int, float]) -> Iterator[float]:
    """From the kill of a process to the verdict on each job that it ran. Both clocks are of this host."""
    wall_minus_boot = time.time() - now()
    for event in events:
        if event.kind == "zombie" and (pid := event.detail.get("pid")) in killed:
            yield event.at - wall_minus_boot - killed[pid]


def _spread(figures: list[float]) -> str:
    return f"median {statistics.median(figures):.3f} s, longest {max(figures):.3f} s"


def _told(counts: Counter[str]) -> str:
    return ", ".join(f"{number} {name}" for name, number in sorted(counts.items())) or "none"
