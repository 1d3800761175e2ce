"""Figures of a store: what is due, how fast jobs come and go, what was lost, and counters that never fall."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import msgspec

from holdfast.core.machine import State

SAMPLE = 200  # due jobs that `backlog` looks at, of each queue and priority
FLOW_MAX = 2_000  # jobs that `flow` looks at, of those that came last and of those that ended last in each state
LINES_MAX = 2_000  # lost attempts of which `lost` returns all details: the newest


class DueTask(msgspec.Struct, frozen=True, array_like=True):
    """Due jobs of one task that stand first in a lane: in a queue, those of one priority, or those with a group."""

    queue: str
    lane: int | None  # the priority; None: with a group
    task: str
    jobs: int
    oldest: float  # wall time at which the first of them became due


class Backlog(msgspec.Struct, frozen=True):
    """The due jobs of a queue, as far as they were looked at."""

    oldest: float
    tasks: dict[str, int]  # how many jobs of each
    since: dict[str, float]  # when the oldest of each became due
    is_whole: bool  # whether every due job was looked at

    @property
    def jobs(self) -> int:
        return sum(self.tasks.values())


def backlogs(found: Iterable[DueTask], sample: int) -> dict[str, Backlog]:
    """Put together what is due in each queue."""
    queues: dict[str, list[DueTask]] = defaultdict(list)
    for each in found:
        queues[each.queue].append(each)
    return {queue: _backlog(tasks, sample) for queue, tasks in queues.items()}


def _backlog(found: list[DueTask], sample: int) -> Backlog:
    lanes: dict[int | None, int] = defaultdict(int)
    tasks: dict[str, int] = defaultdict(int)
    since: dict[str, float] = {}
    for each in found:
        lanes[each.lane] += each.jobs
        tasks[each.task] += each.jobs
        since[each.task] = min(each.oldest, since.get(each.task, each.oldest))
    return Backlog(min(since.values()), dict(tasks), since, max(lanes.values()) < sample)


class Flow(msgspec.Struct, frozen=True, array_like=True):
    """Jobs of one task in a queue that were added, or ended in one state, since an instant: the whole window, or as far
    back as the store has looked."""

    queue: str
    state: str  # "added", or the state in which they ended
    jobs: int
    since: float
    task: str = ""


class Rates(msgspec.Struct, frozen=True):
    """Jobs per second of one queue."""

    added: float = 0.0
    ended: float = 0.0


def looked_back(found: Iterable[Flow], since: float) -> float:
    """Return the instant from which on all of these are counted: `since`, or a later one where there was too much."""
    return max([since, *(each.since for each in found)])


def rates(found: Iterable[Flow], now: float) -> dict[str, Rates]:
    """Return how fast jobs come into each queue and leave it."""
    added: dict[str, float] = defaultdict(float)
    ended: dict[str, float] = defaultdict(float)
    for each in found:
        side = added if each.state == "added" else ended
        side[each.queue] += each.jobs / max(now - each.since, 1.0)
    return {queue: Rates(added[queue], ended[queue]) for queue in {*added, *ended}}


def successes(found: Sequence[Flow], tasks: Collection[str], since: float, now: float) -> Counter[str]:
    """Return about how many jobs of these tasks are done since then.

    Where the store has looked at the last of them only, the rest of the time counts like these, and of each task one
    more than it has found: few failures of a task that is rare among very many jobs are not taken for all of it.
    """
    done = [each for each in found if each.state == State.DONE.value]
    looked_from = max((each.since for each in done), default=since)
    is_cut = looked_from > since + 1.0
    number = Counter({task: int(is_cut) for task in tasks})
    for each in done:
        if each.task in number:
            number[each.task] += each.jobs
    times = (now - since) / max(now - looked_from, 1.0) if is_cut else 1.0
    return Counter({task: round(jobs * times) for task, jobs in number.items()})


class LostLine(msgspec.Struct, frozen=True, array_like=True):
    """One lost attempt: its line of the journal, and its job by now."""

    seq: int
    at: float
    job_id: str
    fence: int
    worker: str | None
    detail: Any  # of the event
    is_late: bool  # its attempt reported after all, and was refused
    task: str | None = None  # None: the job was deleted, and the rest is not known either
    queue: str | None = None
    state: State = State.DONE
    run_at: float = 0.0
    failures: int = 0
    crashes: int = 0
    zombies: int = 0
    suspects: int = 0
    lease_s: float = 0.0
    beat_s: float = 0.0


class LostCount(msgspec.Struct, frozen=True, array_like=True):
    """A number of attempts that were lost, by detector and decision, or that reported too late."""

    kind: str  # "zombie" or "stale_report"
    task: str
    queue: str
    detector: str
    decision: str
    attempts: int


class Lost(msgspec.Struct, frozen=True):
    """The attempts that were lost since an instant."""

    total: int
    late: int  # how many of them reported after all
    lines: list[LostLine]  # the newest, oldest first
    counts: list[LostCount]  # of all, by the minute: the whole first minute counts


class Counters(msgspec.Struct, frozen=True):
    """Counters that never fall, also when jobs are deleted."""

    ended: dict[str, dict[State, int]]  # by queue
    zombies: dict[str, dict[str, int]]  # by detector, and by decision
    stale_reports: int


def crash_totals(found: Iterable[LostCount]) -> tuple[dict[str, dict[str, int]], int]:
    """Return zombies by detector and decision, and the number of stale reports."""
    zombies: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    late = 0
    for each in found:
        if each.kind == "zombie":
            zombies[each.detector][each.decision] += each.attempts
        else:
            late += each.attempts
    return {detector: dict(sorted(by.items())) for detector, by in sorted(zombies.items())}, late
