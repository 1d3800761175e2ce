"""Bounded reads for lists, rates, charts and counters."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

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
    EVER,
    FOLD_MAX,
    KEPT_S,
    MARK,
    Delta,
    Rollup,
    folded,
    oldest_slot,
    touched,
    with_deltas,
)
from holdfast.core.rollups import slot_of as slot_in
from holdfast.stores.redis.connection import Connections
from holdfast.stores.redis.rows import NUL, created_at_of, state_queue_task
from holdfast.stores.redis.work import AT_ONCE, Work, committed, decode, pairs

MANY = 500  # values in one command


class RedisFigures:
    """See `stores/protocol.py: Figures`."""

    def __init__(
        self,
        db: Connections,
        rows: Callable[[Sequence[str]], list[Job]],
        events: Callable[[Sequence[str]], list[Event]],
    ) -> None:
        self._db = db
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
        return [*self._added(since, sample), *(each for state in ENDED for each in self._ended(state, since, sample))]

    def _added(self, since: float, sample: int) -> list[Flow]:
        """Count the jobs with the last numbers of arrival. Their places say whose they are; no row is read."""
        names, number = self._db.ask(("SMEMBERS", "pairs"), ("HGET", "meta", "seq"))
        last = int(number or 0)
        sets = [(*pair.decode().split(NUL), state.value) for pair in names for state in State]
        asked = (("ZRANGE", f"x:{NUL.join(each)}", f"({last - sample}", "+inf", "BYSCORE") for each in sets)
        pages = self._db.ask(*asked) if sets else []
        found = [(name, of[0], of[1]) for of, page in zip(sets, pages, strict=True) for name in page]
        times = map(created_at_of, self._each("b", [name for name, _, _ in found]))
        jobs = [(queue, task, at) for (_, queue, task), at in zip(found, times, strict=True) if at is not None]
        return _flow("added", jobs, since, is_cut=last > sample)

    def _ended(self, state: State, since: float, sample: int) -> list[Flow]:
        page = ("ZRANGE", f"e:{state.value}", "+inf", repr(since), "BYSCORE", "REV", "LIMIT", 0, sample, "WITHSCORES")
        found = list(scored(self._db.ask(page)[0]))
        known = map(state_queue_task, self._each("j", [name for name, _ in found]))
        jobs = [
            (*each[1:], float(at))
            for (_, at), each in zip(found, known, strict=True)
            if each is not None and each[0] == state.value
        ]
        return _flow(state.value, jobs, since, is_cut=len(found) == sample)

    def _each(self, kind: str, names: Sequence[bytes]) -> list[bytes | None]:
        """Return what is stored of these jobs under a kind of key, some hundred with one command."""
        found: list[bytes | None] = []
        for start in range(0, len(names), MANY):
            keys = [f"{kind}:{name.decode()}" for name in names[start : start + MANY]]
            found += self._db.ask(("MGET", keys[0], *map(self._db.key, keys[1:])))[0]
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
            if int(jobs):  # a copy may have brought a zero
                queues.setdefault(queue, {})[State(state)] = int(jobs)
        return Counters(queues, *crash_totals(_counts((what.decode(), int(jobs)) for what, jobs in pairs(lost))))

    def rollups(self, span: int, since: float) -> list[Rollup]:
        first = slot_in(since, span)
        slots, lines = self._db.ask(("ZRANGE", f"ro:{span}", first, "+inf", "BYSCORE"), ("LRANGE", "deltas", 0, -1))
        stored = self._stored([f"ro:{span}:{slot.decode()}" for slot in slots])
        found = with_deltas(stored, [decode(line, Delta) for line in lines], span)
        return [each for each in found if each.slot >= first]

    def fold(self, came: Mapping[str, int], limit: int = FOLD_MAX, under: Duty | None = None) -> int:
        return committed(self._db, partial(self._fold, came, limit, under))

    def _fold(self, came: Mapping[str, int], limit: int, under: Duty | None, work: Work) -> int:
        work.check_duty(under)
        wall = work.now.wall
        deltas = [decode(line, Delta) for line in self._db.ask(("LRANGE", "deltas", 0, limit - 1))[0]] if limit else []
        stored = [*self._stored([f"ro:{EVER}:0"]), MARK]
        for span, slot, queue in sorted(touched(deltas, came, wall)):
            text = work.field(f"ro:{span}:{slot}", queue)  # if another program folds meanwhile, this begins again
            if span != EVER and text is not None:
                stored.append(decode(text, Rollup))
        for each in folded(stored, deltas, came, wall):
            work.set(f"ro:{each.span}:{each.slot}", each.queue, each)
            work.do("ZADD", f"ro:{each.span}", each.slot, str(each.slot))
        if deltas:
            work.do("LTRIM", "deltas", len(deltas), -1)
        for span in KEPT_S:
            old = ("ZRANGE", f"ro:{span}", "-inf", f"({oldest_slot(span, wall)}", "BYSCORE", "LIMIT", 0, AT_ONCE)
            for slot in self._db.ask(old)[0]:
                work.do("UNLINK", f"ro:{span}:{slot.decode()}")
                work.do("ZREM", f"ro:{span}", slot.decode())
        return len(deltas)

    def _stored(self, names: Sequence[str]) -> list[Rollup]:
        found: list[Rollup] = []
        for start in range(0, len(names), AT_ONCE):
            for fields in self._db.ask(*(("HGETALL", name) for name in names[start : start + AT_ONCE])):
                found += [decode(text, Rollup) for _, text in pairs(fields)]
        return found


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


def _flow(state: str, jobs: Iterable[tuple[str, str, float]], since: float, *, is_cut: bool) -> list[Flow]:
    """Count jobs, of which queue, task and instant are given. `is_cut`: there are more that were not read."""
    given = list(jobs)
    recent = [each for each in given if each[2] >= since]
    first = min((at for *_, at in recent), default=since) if is_cut and len(recent) == len(given) else since
    number = Counter((queue, task) for queue, task, _ in recent)
    return [Flow(queue, state, jobs, first, task) for (queue, task), jobs in number.items()]
