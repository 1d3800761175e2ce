"""Read what stands: schedules that are late, queues that are behind or that no worker serves, tasks that nobody has,
workers that are silent, and tasks that fail.

Each is a line for as long as it stands. `at` says since when, and the rules decide from when on that is too long. A
look makes at most ten reads, each of a bounded number of rows, and only those that the alerts ask for.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

from holdfast.alerts.messages import span
from holdfast.alerts.rules import STANDING, AlertKind, Line
from holdfast.core.durations import duration, iso
from holdfast.core.figures import Backlog, successes
from holdfast.core.records import SILENT_BEATS, DueWaits, Moment, Schedule, Worker, nobody_has
from holdfast.core.schedule import LATE_S, late
from holdfast.errors import UsageError
from holdfast.stores.protocol import Store

STANDING_S = 15.0  # how often to look
OVERDUE_S = 5.0  # a lease that ran out this long ago should have been settled
OVERDUE_MAX = 200
_OF_FLOW = frozenset[AlertKind]({"backlog", "no_worker", "unknown_task"})
_FIRST_SEEN = ("no_worker", "unknown_task", "silent_worker")


class StandingReader:
    """Reads the conditions that stand in one store, for alerts of these kinds.

    stays: this program looks again and again. It counts the time that nobody works from its first look: at its start
    workers may only just be coming.
    """

    def __init__(self, store: Store, on: Collection[AlertKind], window_s: float, *, stays: bool) -> None:
        self._store = store
        self._on = frozenset(on)
        self._window_s = window_s
        self._stays = stays
        self._seen: dict[int, float] = {}  # since when this program has seen a line, by its seq
        self._lines: list[Line] = []
        self._read_at = float("-inf")

    @property
    def is_needed(self) -> bool:
        """Say whether the alerts ask for anything that stands."""
        return not self._on.isdisjoint(STANDING) or "recovery_rate" in self._on

    def lines(self, now: Moment) -> list[Line]:
        """Return a line for each condition that stands; looks again only after a while."""
        if self.is_needed and now.wall - self._read_at >= STANDING_S:
            self._lines = [self._from_first_look(line, now.wall) for line in self._read(now)]
            self._seen = {line.seq: self._seen[line.seq] for line in self._lines if line.seq in self._seen}
            self._read_at = now.wall
        return self._lines

    def _from_first_look(self, line: Line, now: float) -> Line:
        if not self._stays or line.kind not in _FIRST_SEEN:
            return line
        seen = self._seen.setdefault(line.seq, now)
        return line if seen <= line.at else replace(line, at=seen)

    def _read(self, now: Moment) -> Iterator[Line]:
        if "late_schedules" in self._on:
            yield from (line for each in self._store.schedules() if (line := late_line(each, now.wall)) is not None)
        if not self._on.isdisjoint({*_OF_FLOW, "silent_worker"}):
            workers = self._store.workers()
            if "silent_worker" in self._on:
                yield from silent_lines(workers, now.wall)
            if not self._on.isdisjoint(_OF_FLOW):
                yield from self._of_queues([worker for worker in workers if worker.claims(now.wall)], now.wall)
        if "error_rate" in self._on:
            yield from self._of_errors(now.wall)
        if "recovery_rate" in self._on:
            yield from self._overdue(now)

    def _of_queues(self, living: Sequence[Worker], now: float) -> Iterator[Line]:
        backlog, waits = self._store.figures.backlog(), self._store.due_waits()
        due = {name: due_tasks(name, backlog.get(name), waits) for name in {*backlog, *(each.queue for each in waits)}}
        paused = {queue.name for queue in self._store.queues() if queue.is_paused(now)} if due else set[str]()
        due = {name: tasks for name, tasks in sorted(due.items()) if name not in paused}
        nobodys = {name for name in due if not any(name in worker.queues for worker in living)}
        gone = self._store.workers(gone=True) if nobodys else []
        for name, tasks in due.items():
            if name in nobodys:
                served = [worker.gone_at or worker.beat_at for worker in gone if name in worker.queues]
                since = max([min(at for at, _ in tasks.values()), *served])
                yield _line("no_worker", since, queue=name, amount=sum(jobs for _, jobs in tasks.values()))
                continue
            for task, (since, jobs) in sorted(tasks.items()):
                if nobody_has(living, name, task):
                    yield _line("unknown_task", since, queue=name, task=task, amount=jobs)
            known = [task for task in tasks if any(worker.may_run(name, task) for worker in living)]
            if known:
                since, jobs = min(tasks[task][0] for task in known), sum(tasks[task][1] for task in known)
                yield _line("backlog", since, queue=name, amount=jobs)

    def _of_errors(self, now: float) -> Iterator[Line]:
        since = now - self._window_s
        failed = Counter[str]()
        for group in self._store.errors(since):
            failed[group.task] += group.attempts
        if not failed:
            return
        succeeded = successes(self._store.figures.flow(since), failed, since, now)
        for task, attempts in sorted(failed.items()):
            number = attempts + succeeded[task]
            reason = f"{attempts:,} of about {number:,} in the last {span(self._window_s)}"
            yield _line("error_rate", now, task=task, amount=attempts, out_of=number, reason=reason)

    def _overdue(self, now: Moment) -> Iterator[Line]:
        for job in self._store.overdue(OVERDUE_S, OVERDUE_MAX):
            ended = now.wall - (now.lease - (job.lease_until if job.lease_until is not None else now.lease))
            reason = f"its lease ran out {duration(now.wall - ended)} ago, and nobody has settled it"
            named: dict[str, Any] = {"job_id": job.id, "fence": job.fence, "task": job.task, "queue": job.queue}
            yield _line("overdue", ended, key=f"{job.id} {job.fence}", reason=reason, **named)


def due_tasks(queue: str, backlog: Backlog | None, waits: Sequence[DueWaits]) -> dict[str, tuple[float, int]]:
    """Return of each task that is due in a queue since when, and how many jobs were looked at."""
    tasks = {} if backlog is None else {task: (backlog.since[task], jobs) for task, jobs in backlog.tasks.items()}
    for each in waits:
        if each.queue == queue:
            since, jobs = tasks.get(each.task, (each.since, 0))
            tasks[each.task] = min(since, each.since), jobs + each.jobs
    return tasks


def silent_lines(workers: Sequence[Worker], now: float) -> Iterator[Line]:
    for worker in workers:
        if worker.gone_at is None and not worker.is_alive(now):
            reason = f"its last beat was {duration(now - worker.beat_at)} ago, one every {worker.beat_s:g} s expected"
            since = worker.beat_at + SILENT_BEATS * worker.beat_s
            named: dict[str, Any] = {"worker": worker.name, "worker_id": worker.id, "host": worker.host}
            yield _line("silent_worker", since, key=worker.id, reason=reason, **named)


def late_line(schedule: Schedule, now: float) -> Line | None:
    """Return the line that tells of a late schedule; None if it is not late. One instant always gets the same `seq`."""
    try:
        overdue = late(schedule, now)
    except UsageError:
        return None  # a time zone that is not known here
    if overdue is None:
        return None
    return _line(
        "late",
        overdue.since + LATE_S,
        key=f"{schedule.key} {overdue.since}",
        task=schedule.job.task,
        queue=schedule.job.queue,
        reason=f"no program fired its instant of {iso(overdue.since)}",
        schedule=schedule.key,
        instants=overdue.instants,
    )


def _line(kind: str, at: float, *, key: str = "", task: str = "", **given: Any) -> Line:
    name = hashlib.sha256(repr((kind, key, task, given.get("queue"))).encode()).hexdigest()
    below = -int(name[:15], 16)  # every line of the journal is above it
    job: dict[str, Any] = {"job_id": "", "fence": 0}
    return Line(seq=below, at=at, kind=kind, task=task, **(job | given))
