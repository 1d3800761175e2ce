"""Bounded reads for lists, rates and counters."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence

from holdfast.core.error_fingerprint import slot_of
from holdfast.core.figures import (
    FLOW_MAX,
    LINES_MAX,
    SAMPLE,
    Backlog,
    Counters,
    DueTask,
    Flow,
    Lost,
    LostCount,
    LostLine,
    backlogs,
    crash_totals,
)
from holdfast.core.machine import ENDED, State
from holdfast.core.records import Event, Job
from holdfast.stores.redis.connection import Connections
from holdfast.stores.redis.rows import NUL
from holdfast.stores.redis.work import pairs


class RedisFigures:
    """See `stores/protocol.py: Figures`."""

    def __init__(
        self,
        db: Connections,
        newest: Callable[[int], list[Job]],
        rows: Callable[[Sequence[str]], list[Job]],
        events: Callable[[Sequence[str]], list[Event]],
    ) -> None:
        self._db = db
        self._newest = newest  # jobs by arrival
        self._rows = rows
        self._events = events  # of these kinds

    def backlog(self, sample: int = SAMPLE) -> dict[str, Backlog]:
        wall = repr(self._db.moment().wall)
        queues = sorted({pair.partition(b"\0")[0].decode() for pair in self._db.ask(("SMEMBERS", "pairs"))[0]})
        found: list[DueTask] = []
        if not queues:
            return {}
        lanes = self._db.ask(*(("ZRANGE", f"d:{name}", "-inf", wall, "BYSCORE") for name in queues))
        for queue, paths in zip(queues, lanes, strict=True):
            found += self._backlog(queue, [path.decode().split(NUL) for path in paths], wall, sample)
        return backlogs(found, sample)

    def _backlog(self, queue: str, paths: list[list[str]], wall: str, sample: int) -> Iterable[DueTask]:
        by_lane = defaultdict[int | None, list[list[str]]](list)
        for path in paths:
            by_lane[None if path[1] else int(path[0])].append(path)
        for lane, members in by_lane.items():
            nearest = members[:sample]  # in the order of their first jobs, so the others cannot be among the sample
            page = ("-inf", wall, "BYSCORE", "LIMIT", 0, sample, "WITHSCORES")
            pages = self._db.ask(*(("ZRANGE", f"l:{queue}{NUL}{NUL.join(path)}", *page) for path in nearest))
            due = sorted(
                (float(score), member, path[2])
                for path, page in zip(nearest, pages, strict=True)
                for member, score in scored(page)
            )[:sample]
            tasks = defaultdict[str, list[float]](list)
            for at, _, task in due:
                tasks[task].append(at)
            yield from (DueTask(queue, lane, task, len(runs), min(runs)) for task, runs in tasks.items())

    def flow(self, since: float, sample: int = FLOW_MAX) -> list[Flow]:
        found = _flow("added", [(job, job.created_at) for job in self._newest(sample)], since, sample)
        for state in ENDED:
            page = self._db.ask(
                ("ZRANGE", f"e:{state.value}", "+inf", repr(since), "BYSCORE", "REV", "LIMIT", 0, sample)
            )
            jobs = self._rows([name.decode() for name in page[0]])
            ended = [(job, job.ended_at) for job in jobs if job.state is state and job.ended_at is not None]
            found += _flow(state.value, ended, since, sample)
        return found

    def lost(self, since: float, limit: int = LINES_MAX) -> Lost:
        every = self._events(("zombie", "stale_report"))
        late = {(event.job_id, event.fence) for event in every if event.kind == "stale_report"}
        events = [event for event in every if event.at >= since]
        recent = {(event.job_id, event.fence) for event in events if event.kind == "stale_report"}
        zombies = [event for event in events if event.kind == "zombie"]
        shown = zombies[-limit:] if limit else []
        jobs = {job.id: job for job in self._rows([event.job_id for event in shown])}
        lines = [_line(each, (each.job_id, each.fence) in late, jobs.get(each.job_id)) for each in shown]
        slots = self._db.ask(("ZRANGE", "crashes", slot_of(since), "+inf", "BYSCORE"))[0]
        counts = Counter[str]()
        for slot in slots:
            for what, attempts in pairs(self._db.ask(("HGETALL", f"cr:{slot.decode()}"))[0]):
                counts[what.decode()] += int(attempts)
        number = len(recent & {(each.job_id, each.fence) for each in zombies})
        return Lost(len(zombies), number, lines, _counts(counts.items()))

    def counters(self) -> Counters:
        ended, lost = self._db.ask(("HGETALL", "ended"), ("HGETALL", "lost"))
        queues: dict[str, dict[State, int]] = {}
        for what, jobs in pairs(ended):
            queue, _, state = what.decode().rpartition(NUL)
            queues.setdefault(queue, {})[State(state)] = int(jobs)
        return Counters(queues, *crash_totals(_counts((what.decode(), int(jobs)) for what, jobs in pairs(lost))))


def scored(flat: Sequence[bytes]) -> Iterable[tuple[bytes, bytes]]:
    """Yield members with their scores."""
    return zip(flat[::2], flat[1::2], strict=True)


def _counts(found: Iterable[tuple[str, int]]) -> list[LostCount]:
    counts = []
    for what, attempts in found:
        kind, task, queue, detector, decision = what.split(NUL)
        counts.append(LostCount(kind, task, queue, detector, decision, attempts))
    return counts


def _line(event: Event, is_late: bool, job: Job | None) -> LostLine:
    said = (event.seq, event.at, event.job_id, event.fence, event.worker, event.detail, is_late)
    if job is None:
        return LostLine(*said)
    counts = (job.failures, job.crashes, job.zombies, job.suspects)
    return LostLine(*said, job.task, job.queue, job.state, job.run_at, *counts, job.lease_s, job.beat_s)


def _flow(state: str, newest: list[tuple[Job, float]], since: float, sample: int) -> list[Flow]:
    recent = [(job, at) for job, at in newest if at >= since]
    if not recent:
        return []
    first = min(at for _, at in recent) if len(recent) == sample else since
    number = Counter((job.queue, job.task) for job, _ in recent)
    return [Flow(queue, state, jobs, first, task) for (queue, task), jobs in number.items()]
