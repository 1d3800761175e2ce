"""Figures of the dicts, as the other stores return them: the readable specification of `Figures`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from threading import RLock

from holdfast.clock import Clock
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
from holdfast.core.records import Duty, Event, Job
from holdfast.core.rollups import (
    FOLD_MAX,
    KEPT_S,
    MARK,
    Delta,
    Place,
    Rollup,
    delta,
    folded,
    oldest_slot,
    touched,
    with_deltas,
)
from holdfast.core.rollups import slot_of as slot_in
from holdfast.core.settlement import Settlement

_Slot = tuple[int, str, str, str, str, str]  # the minute, kind, task, queue, detector, decision


class MemoryFigures:
    """See `stores/protocol.py: Figures`."""

    def __init__(
        self,
        lock: RLock,
        clock: Clock,
        jobs: Mapping[str, Job],
        events: Callable[[tuple[str, ...]], list[Event]],
        check_duty: Callable[[Duty | None], None],
    ) -> None:
        self._lock = lock
        self._clock = clock
        self._jobs = jobs
        self._events = events
        self._check_duty = check_duty
        self._rollups: dict[Place, Rollup] = {MARK.place: MARK}
        self._deltas: list[Delta] = []
        self._crashes: Counter[_Slot] = Counter()
        self._ended: Counter[tuple[str, State]] = Counter()

    def count_ending(self, before: Job | None, job: Job) -> None:
        """Count a job that has ended by now."""
        if job.state in ENDED and (before is None or before.state is not job.state):
            self._ended[job.queue, job.state] += 1

    def count_attempts(self, settlements: Sequence[Settlement]) -> None:
        """Count attempts whose settlements were accepted."""
        if settlements:
            self._deltas.append(delta(settlements, self._clock.wall()))

    def count_event(self, event: Event) -> None:
        """Count a lost attempt, or the late report of one."""
        if event.kind in ("zombie", "stale_report"):
            job, detail = self._jobs.get(event.job_id), event.detail if event.kind == "zombie" else {}
            task, queue = (job.task, job.queue) if job is not None else ("", "")
            detector, decision = str(detail.get("detector", "")), str(detail.get("decision", ""))
            self._crashes[slot_of(event.at), event.kind, task, queue, detector, decision] += 1

    def backlog(self, sample: int = SAMPLE) -> dict[str, Backlog]:
        with self._lock:
            wall, lanes = self._clock.wall(), defaultdict[tuple[str, int | None], list[Job]](list)
            for job in self._jobs.values():
                if job.state is State.READY and job.run_at <= wall:
                    lanes[job.queue, job.priority if job.group is None else None].append(job)
        found = []
        for (queue, lane), jobs in lanes.items():
            tasks = defaultdict[str, list[float]](list)
            for job in sorted(jobs, key=lambda job: job.run_at)[:sample]:
                tasks[job.task].append(job.run_at)
            found += [DueTask(queue, lane, task, len(runs), min(runs)) for task, runs in tasks.items()]
        return backlogs(found, sample)

    def flow(self, since: float, sample: int = FLOW_MAX) -> list[Flow]:
        with self._lock:
            jobs = list(self._jobs.values())
        found = _flow("added", [(job, job.created_at) for job in jobs[::-1][:sample]], since, sample)
        for state in ENDED:
            ended = [(job, job.ended_at) for job in jobs if job.state is state and job.ended_at is not None]
            newest = sorted(ended, key=lambda each: -each[1])[:sample]
            found += _flow(state.value, newest, since, sample)
        return found

    def lost(self, since: float, limit: int = LINES_MAX) -> Lost:
        with self._lock:
            events = [event for event in self._events(("zombie", "stale_report")) if event.at >= since]
            late = {(event.job_id, event.fence) for event in self._events(("stale_report",))}
            recent = {(event.job_id, event.fence) for event in events if event.kind == "stale_report"}
            zombies = [event for event in events if event.kind == "zombie"]
            lines = [self._line(each, (each.job_id, each.fence) in late) for each in zombies[-limit:]]
            slots = Counter[tuple[str, str, str, str, str]]()
            for (slot, kind, task, queue, detector, decision), attempts in self._crashes.items():
                if slot >= slot_of(since):
                    slots[kind, task, queue, detector, decision] += attempts
            counts = [LostCount(*what, attempts) for what, attempts in slots.items()]
            return Lost(len(zombies), len(recent & {(each.job_id, each.fence) for each in zombies}), lines, counts)

    def counters(self) -> Counters:
        with self._lock:
            ended: dict[str, dict[State, int]] = {}
            for (queue, state), jobs in self._ended.items():
                ended.setdefault(queue, {})[state] = jobs
            found = [LostCount(*slot[1:], attempts) for slot, attempts in self._crashes.items()]
            return Counters(ended, *crash_totals(found))

    def rollups(self, span: int, since: float) -> list[Rollup]:
        with self._lock:
            first = slot_in(since, span)
            stored = [each for each in self._rollups.values() if each.span == span and each.slot >= first]
            return [each for each in with_deltas(stored, self._deltas, span) if each.slot >= first]

    def fold(self, came: Mapping[str, int], limit: int = FOLD_MAX, under: Duty | None = None) -> int:
        with self._lock:
            self._check_duty(under)
            wall, deltas = self._clock.wall(), self._deltas[:limit]
            places = touched(deltas, came, wall)
            stored = [each for place, each in self._rollups.items() if place in places or not place[0]]
            self._rollups.update({each.place: each for each in folded(stored, deltas, came, wall)})
            del self._deltas[:limit]
            oldest = {span: oldest_slot(span, wall) for span in KEPT_S}
            old = [each for each in self._rollups if each[0] in oldest and each[1] < oldest[each[0]]]
            for place in old:
                del self._rollups[place]
            return len(deltas)

    def _line(self, event: Event, is_late: bool) -> LostLine:
        said = (event.seq, event.at, event.job_id, event.fence, event.worker, event.detail, is_late)
        job = self._jobs.get(event.job_id)
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
