"""The forecast of a planned fleet: rates of events times measured costs, and the limit that is reached first.

`Plan` is what a person knows, `Costs` what `bench/capacity.py` has measured (core/costs.py), `Forecast` the answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from holdfast.core.policy import BEATS_PER_LEASE

DAY_S = 86_400.0
BATCH_MAX = 1000  # results in one commit
SHOWN_AFTER_S = 1.0  # a job that runs longer is shown as begun, with one beat
BULK = 100  # jobs in one enqueue, where a producer gathers them
HEADROOM = 0.7  # a larger share of a processor makes jobs wait for it


class Event(StrEnum):
    """An event in a fleet that costs something. Each is counted per second."""

    STORED = "stored"  # a job's row is inserted
    ENQUEUE = "enqueue"  # a commit that stores one job or many
    RUN = "run"  # an attempt's row is claimed and settled
    ROUND = "round"  # a claim and a commit of results, with one row or many
    LOOK = "look"  # a worker that was woken looks for jobs, and finds no more of them
    BUSY = "busy"  # a worker process has something to run for a second: it asks twice whether to stop it
    RENEWAL = "renewal"  # the lease of one job is renewed
    FAILURE = "failure"  # an attempt fails and will be retried: its journal line, and its way back into the queue
    DELETED = "deleted"  # a finished job is deleted after its retention
    PROCESS = "process"  # a worker process lives for a second
    COMMAND = "command"  # a `holdfast worker` command lives for a second


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one event. On SQLite the store works in the client's processes: then `store_us` is a part of
    `client_us`, during which nobody else can write."""

    store_us: float = 0.0  # CPU time of the server
    client_us: float = 0.0  # CPU time of the worker's or the producer's processes
    wal_bytes: float = 0.0
    transactions: float = 0.0  # on SQLite only those that write

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.store_us + other.store_us,
            self.client_us + other.client_us,
            self.wal_bytes + other.wal_bytes,
            self.transactions + other.transactions,
        )

    def __mul__(self, times: float) -> Cost:
        return Cost(self.store_us * times, self.client_us * times, self.wal_bytes * times, self.transactions * times)


@dataclass(frozen=True, slots=True)
class Costs:
    """The measured costs of one kind of store."""

    measured: str  # on which machine, and when
    one_writer: bool  # commits come one after the other, in the clients' processes
    events: Mapping[Event, Cost]
    cycle_s: float  # rows that come within this time share a claim and a commit of results
    look_s: float  # a worker that was woken looks for this long; hints that come meanwhile are one
    row_bytes: float  # a finished job with its index entries, without arguments and result
    line_bytes: float  # a journal line with its index entries
    disk_copies: float  # bytes on disk for each byte of arguments
    wal_copies: float  # bytes in the WAL for each byte of arguments, over the life of a job
    connections_idle: float  # of a worker process with nothing to do
    connections_busy: float  # of one that does its utmost
    connections_command: float  # of a supervisor


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A fleet, its work and its server, as a person describes them."""

    workers: int  # worker processes
    jobs_day: float
    duration_s: float
    peak: float = 1.0  # the busiest minute, compared with the average of the day
    slots: int = 20
    processes: int = 1  # of each `holdfast worker` command
    producers: int = 0  # processes that enqueue, with a connection each
    enqueue_batch: float = 1.0
    payload_bytes: float = 0.0  # arguments and result
    failures: float = 0.0  # share of attempts that fail and are retried
    lease_s: float = 30.0
    retention_s: float = math.inf  # how long finished jobs are kept
    store_cores: float = 2.0
    sync_s: float = 0.001  # how long the disk takes for one commit
    disk_bytes: float = math.inf
    disk_bytes_s: float = math.inf
    connections_max: float = math.inf


class Limit(StrEnum):
    """A thing that a fleet can run out of."""

    SLOTS = "slots"
    STORE_CPU = "store_cpu"
    WRITER = "writer"  # the one writer of SQLite
    WORKER_CPU = "worker_cpu"  # one interpreter runs on one core
    CONNECTIONS = "connections"
    WAL = "wal"
    DISK = "disk"

    @property
    def headroom(self) -> float:
        """The share of it that may be used at the peak. Nobody waits for a connection or for room on the disk."""
        return 1.0 if self in (Limit.CONNECTIONS, Limit.DISK) else HEADROOM


@dataclass(frozen=True, slots=True)
class Use:
    """The use of one thing at the peak, and the jobs a day at which nothing would be left of it."""

    limit: Limit
    used: float
    available: float
    full_at_jobs_day: float = math.inf

    @property
    def share(self) -> float:
        return self.used / self.available if self.available else math.inf


@dataclass(frozen=True, slots=True)
class Forecast:
    """The needs of a plan at its peak; sizes on disk are those of the average, once the retention has passed."""

    jobs_s: float
    running: float  # jobs at the same time
    batch: float  # rows that share a claim and a commit of results
    events: Mapping[Event, float]  # for each second
    costs: Mapping[Event, Cost]  # of one second
    total: Cost  # of one second
    wal_bytes_day: float
    disk_bytes_day: float
    disk_bytes: float
    connections_idle: float
    connections: float  # at the most
    uses: tuple[Use, ...]  # the first bottleneck comes first

    @property
    def store_cores(self) -> float:
        return self.total.store_us / 1e6

    @property
    def worker_cores(self) -> float:
        return self.total.client_us / 1e6 - self.producer_cores

    @property
    def producer_cores(self) -> float:
        return (self.costs[Event.STORED].client_us + self.costs[Event.ENQUEUE].client_us) / 1e6

    @property
    def bottleneck(self) -> Use:
        """The limit that is reached first when the work grows, or that the plan exceeds already."""
        return self.uses[0]

    @property
    def fits(self) -> bool:
        return all(use.share <= 1 for use in self.uses)

    @property
    def has_headroom(self) -> bool:
        """Say whether the peak leaves enough of everything that jobs would have to wait for."""
        return all(use.share <= use.limit.headroom for use in self.uses)


@dataclass(frozen=True, slots=True)
class Change:
    """One field of the plan with another value, and what the plan then asks for."""

    field: str
    value: float
    then: Forecast


def forecast(plan: Plan, costs: Costs) -> Forecast:
    """Predict what the plan asks of its store."""
    seen, average = _at_peak(plan, costs), _at_peak(replace(plan, peak=1.0), costs)
    uses = [replace(use, full_at_jobs_day=_full_at(plan, costs, use.limit)) for use in seen.uses]
    day = average.total.wal_bytes * DAY_S
    return replace(
        seen, wal_bytes_day=day, uses=tuple(sorted(uses, key=lambda use: (use.full_at_jobs_day, -use.share)))
    )


def advice(plan: Plan, costs: Costs) -> list[Change]:
    """Return what to change for the plan to fit with headroom, each change made on top of those before. Savings come
    first: fewer workers and fewer commits before a larger server."""
    now, found = _at_peak(plan, costs), list[Change]()
    for name, candidate in _CANDIDATES.items():
        field: dict[str, Any] = {name: candidate(plan, now, costs)}
        if field[name] is None:
            continue
        changed = replace(plan, **field)
        then = _at_peak(changed, costs)
        if _strain(then) < _strain(now) - _WORTH_IT:
            plan, now = changed, then
            found.append(Change(name, field[name], forecast(plan, costs)))
    return found


_WORTH_IT = 0.1  # of something that is short: about a tenth less of it


def _strain(seen: Forecast) -> float:
    return sum(math.log(use.share / use.limit.headroom) for use in seen.uses if use.share > use.limit.headroom)


def _workers(plan: Plan, now: Forecast, costs: Costs) -> int | None:
    """Return how many processes the slots and the cores need, if the plan has another number."""
    wanted = max(1, math.ceil(now.running / plan.slots / HEADROOM))
    while _at_peak(replace(plan, workers=wanted), costs).worker_cores > wanted * HEADROOM:
        wanted = math.ceil(wanted * 1.25)
    return wanted if wanted != plan.workers else None


def _enqueue_batch(plan: Plan, now: Forecast, costs: Costs) -> float | None:
    return BULK if plan.enqueue_batch < BULK else None


def _processes(plan: Plan, now: Forecast, costs: Costs) -> int | None:
    """Return more processes for each supervisor."""
    return min(plan.workers, 4) if plan.processes < min(plan.workers, 4) else None


def _store_cores(plan: Plan, now: Forecast, costs: Costs) -> float | None:
    return math.ceil(now.store_cores / HEADROOM)


def _connections_max(plan: Plan, now: Forecast, costs: Costs) -> int | None:
    return math.ceil(now.connections)


def _disk_bytes_s(plan: Plan, now: Forecast, costs: Costs) -> float | None:
    return now.total.wal_bytes / HEADROOM


def _retention_s(plan: Plan, now: Forecast, costs: Costs) -> float | None:
    return plan.disk_bytes / now.disk_bytes_day * DAY_S if plan.disk_bytes < now.disk_bytes else None


_CANDIDATES: dict[str, Callable[[Plan, Forecast, Costs], float | None]] = {
    "workers": _workers,
    "enqueue_batch": _enqueue_batch,
    "processes": _processes,
    "store_cores": _store_cores,
    "connections_max": _connections_max,
    "disk_bytes_s": _disk_bytes_s,
    "retention_s": _retention_s,
}


def _at_peak(plan: Plan, costs: Costs) -> Forecast:
    jobs_s = plan.jobs_day / DAY_S * plan.peak
    events, batch = _events(plan, costs, jobs_s)
    each = {event: costs.events[event] * rate for event, rate in events.items()}
    total = sum(each.values(), Cost())
    payload_wal = jobs_s * plan.payload_bytes * costs.wal_copies
    total = replace(total, wal_bytes=total.wal_bytes + payload_wal)
    kept_day = costs.row_bytes + plan.payload_bytes * costs.disk_copies + plan.failures * costs.line_bytes
    disk_day = plan.jobs_day * kept_day
    others = _commands(plan) * costs.connections_command + plan.producers
    seen = Forecast(
        jobs_s=jobs_s,
        running=_running(plan, jobs_s),
        batch=batch,
        events=events,
        costs=each,
        total=total,
        wal_bytes_day=math.nan,  # of the average: see forecast()
        disk_bytes_day=disk_day,
        disk_bytes=disk_day * min(plan.retention_s, 365 * DAY_S) / DAY_S,
        connections_idle=plan.workers * costs.connections_idle + others,
        connections=plan.workers * costs.connections_busy + others,
        uses=(),
    )
    return replace(seen, uses=tuple(_uses(plan, costs, seen)))


def _events(plan: Plan, costs: Costs, jobs_s: float) -> tuple[dict[Event, float], float]:
    """Return how often each event happens in a second, and how many rows share a claim."""
    attempts_s, running = jobs_s * (1 + plan.failures), _running(plan, jobs_s)
    batch = min(BATCH_MAX, 1 + attempts_s / plan.workers * costs.cycle_s)
    enqueues_s = jobs_s / plan.enqueue_batch
    taken = min(1.0, running / (plan.workers * plan.slots))
    listening = plan.workers * (1 - taken**plan.slots)  # a worker whose slots are all taken does not look
    return {
        Event.STORED: jobs_s,
        Event.ENQUEUE: enqueues_s,
        Event.RUN: attempts_s,
        Event.ROUND: attempts_s / batch,
        Event.LOOK: listening * enqueues_s / (1 + enqueues_s * costs.look_s),
        Event.BUSY: busy(plan.workers, running),
        Event.RENEWAL: attempts_s * _renewals(plan),
        Event.FAILURE: jobs_s * plan.failures,
        Event.DELETED: jobs_s if plan.retention_s < math.inf else 0.0,
        Event.PROCESS: plan.workers,
        Event.COMMAND: _commands(plan),
    }, batch


def busy(workers: int, running: float) -> float:
    """Return how many worker processes have something to run, if each takes its jobs by chance."""
    return workers * -math.expm1(-running / workers)


def _renewals(plan: Plan) -> float:
    """Return how often the lease of one job is renewed: once a beat, and at least once if it is shown as begun."""
    if plan.duration_s < SHOWN_AFTER_S:
        return 0.0
    return max(1.0, plan.duration_s * BEATS_PER_LEASE / plan.lease_s)


def _running(plan: Plan, jobs_s: float) -> float:
    return jobs_s * (1 + plan.failures) * plan.duration_s


def _commands(plan: Plan) -> float:
    return math.ceil(plan.workers / plan.processes)


def _uses(plan: Plan, costs: Costs, seen: Forecast) -> list[Use]:
    uses = [
        Use(Limit.SLOTS, seen.running, plan.workers * plan.slots),
        Use(Limit.WORKER_CPU, seen.worker_cores, plan.workers),
        Use(Limit.WAL, seen.total.wal_bytes, plan.disk_bytes_s),
        Use(Limit.DISK, seen.disk_bytes, plan.disk_bytes),
    ]
    if costs.one_writer:
        return [*uses, Use(Limit.WRITER, seen.store_cores + seen.total.transactions * plan.sync_s, 1.0)]
    connections = Use(Limit.CONNECTIONS, seen.connections, plan.connections_max)
    return [*uses, Use(Limit.STORE_CPU, seen.store_cores, plan.store_cores), connections]


_HALVINGS = 20  # leave an error below a thousandth


def _full_at(plan: Plan, costs: Costs, limit: Limit) -> float:
    """Return at how many jobs a day the limit is reached: 0 if it is without any, infinity if it never is."""

    def fits(jobs_day: float) -> bool:
        seen = _at_peak(replace(plan, jobs_day=jobs_day), costs)
        return all(use.share <= 1 for use in seen.uses if use.limit is limit)

    low, high = 0.0, 1e15
    if fits(high):
        return math.inf
    if not fits(low):
        return 0.0
    for _ in range(_HALVINGS):
        middle = math.sqrt(max(low, 1.0) * high)
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
