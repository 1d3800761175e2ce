"""Metrics: the table of all series, the numbers of this process, and how both are written for Prometheus.

Facts of the store (`source="store"`) come from a snapshot, and every server of a store answers the same: use `max`.
Facts of a process (`source="process"`) are counted where they happen: use `sum`. Labels never name jobs, workers, hosts
or keys, and each metric has a bound: label values beyond it are counted as `other`.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from holdfast.clock import Clock
from holdfast.core.records import NewJob
from holdfast.errors import HoldfastError, StoreDenied, StoreFull, StoreReadOnly, StoreTimeout, StoreUnavailable
from holdfast.runtime.hooks import Hooks
from holdfast.stores.protocol import Added, Store

Kind = Literal["counter", "gauge", "histogram"]
Source = Literal["store", "process"]
Labels = tuple[str, ...]
Series = dict[str, dict[Labels, float | list[float]]]  # of a histogram: one number for each bucket, then the sum

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OTHER = "other"
FOLDED = "holdfast_snapshot_series_folded"

_FAST = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_LONG = (0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
_FOUND = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0, 120.0)
_LEASE = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0)


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric: its type, labels, and the most series that it may have."""

    kind: Kind
    source: Source
    help: str
    labels: Labels = ()
    most: int = 1
    buckets: tuple[float, ...] = ()


METRICS: dict[str, Metric] = {
    "holdfast_jobs": Metric(
        "gauge", "store", "Jobs by queue and state; scheduled and retrying jobs are ready.", ("queue", "state"), 800
    ),
    "holdfast_queue_oldest_due_seconds": Metric(
        "gauge", "store", "How long the oldest due job of a queue has waited.", ("queue",), 100
    ),
    "holdfast_queue_paused": Metric("gauge", "store", "1 if a queue is paused.", ("queue",), 100),
    "holdfast_queue_workers": Metric("gauge", "store", "Living workers that serve a queue.", ("queue",), 100),
    "holdfast_jobs_ended_total": Metric(
        "counter", "store", "Jobs that have ever ended in a state.", ("queue", "state"), 400
    ),
    "holdfast_zombies_total": Metric(
        "counter", "store", "Attempts that lost their worker.", ("detector", "decision"), 40
    ),
    "holdfast_stale_reports_total": Metric("counter", "store", "Reports that came too late and were refused."),
    "holdfast_zombie_detection_seconds": Metric(
        "histogram",
        "store",
        "Time from the last sign of life of an attempt to its detection, since this server started.",
        ("detector",),
        6,
        _FOUND,
    ),
    "holdfast_false_zombies_total": Metric(
        "counter", "store", "Attempts that reported after they were declared lost, since this server started."
    ),
    "holdfast_leases_overdue": Metric("gauge", "store", "Running jobs whose lease has ended; at most 500."),
    "holdfast_lease_headroom_min_seconds": Metric(
        "gauge", "store", "Time until the earliest lease ends; below 0 it has ended."
    ),
    "holdfast_held_oldest_seconds": Metric("gauge", "store", "How long the oldest of the held jobs has waited."),
    "holdfast_workers": Metric("gauge", "store", "Workers by state.", ("state",), 6),
    "holdfast_worker_slots": Metric("gauge", "store", "Slots of living workers.", ("state",), 2),
    "holdfast_schedule_overdue_seconds": Metric("gauge", "store", "How late a schedule is.", ("schedule",), 200),
    "holdfast_limit_running": Metric("gauge", "store", "Running attempts of a queue with a limit.", ("queue",), 100),
    "holdfast_limit_max": Metric("gauge", "store", "The limit of a queue.", ("queue",), 100),
    "holdfast_store_up": Metric("gauge", "store", "1 if the last read of the store worked."),
    "holdfast_snapshot_age_seconds": Metric("gauge", "store", "Age of the facts about the store."),
    FOLDED: Metric("gauge", "store", "Series that were folded into `other`."),
    "holdfast_attempts_total": Metric(
        "counter", "process", "Attempts by outcome, as their workers settled them.", ("task", "outcome"), 3000
    ),
    "holdfast_attempt_duration_seconds": Metric(
        "histogram", "process", "How long handlers ran.", ("task",), 300, _LONG
    ),
    "holdfast_attempt_wait_seconds": Metric(
        "histogram", "process", "Time from when a job was due to its claim.", ("queue",), 100, _LONG
    ),
    "holdfast_slots": Metric("gauge", "process", "Slots of this worker.", ("state",), 2),
    "holdfast_beats_total": Metric("counter", "process", "Heartbeats of this worker.", ("result",), 4),
    "holdfast_beat_headroom_seconds": Metric(
        "histogram", "process", "Time left of the tightest lease when a beat was acknowledged.", (), 1, _LEASE
    ),
    "holdfast_store_operation_duration_seconds": Metric(
        "histogram", "process", "How long calls of the store took.", ("verb",), 40, _FAST
    ),
    "holdfast_store_errors_total": Metric(
        "counter", "process", "Calls of the store that failed.", ("verb", "kind"), 240
    ),
    "holdfast_jobs_enqueued_total": Metric("counter", "process", "Jobs that this process has stored.", ("queue",), 100),
    "holdfast_duty_held": Metric("gauge", "process", "1 while this process has a duty of the fleet.", ("duty",), 10),
    "holdfast_duty_term": Metric("gauge", "process", "The term of a duty when this process took it.", ("duty",), 10),
    "holdfast_operator_acts_total": Metric("counter", "process", "Acts of people over HTTP.", ("act", "result"), 80),
    "holdfast_login_failures_total": Metric("counter", "process", "Tokens that were refused."),
    "holdfast_http_requests_total": Metric("counter", "process", "Requests.", ("route", "method", "code"), 300),
    "holdfast_http_request_duration_seconds": Metric(
        "histogram", "process", "How long requests took; claims include their wait.", ("route", "method"), 100, _FAST
    ),
    "holdfast_http_streams": Metric("gauge", "process", "Open streams of events."),
    "holdfast_build_info": Metric(
        "gauge", "process", "1, with the version and the kind of store.", ("version", "store")
    ),
}


class Registry:
    """Counts and gauges by name and labels. Any thread may write."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._series: Series = {}
        self.folded = 0  # writes that went to `other`

    def inc(self, name: str, *labels: str, by: float = 1.0) -> None:
        """Add to a counter."""
        with self._lock:
            found, key = self._place(name, labels)
            found[key] = found.get(key, 0.0) + by  # type: ignore[operator]

    def put(self, name: str, *labels: str, value: float) -> None:
        """Set a gauge."""
        with self._lock:
            found, key = self._place(name, labels)
            found[key] = value

    def peak(self, name: str, *labels: str, value: float) -> None:
        """Set a gauge, or raise it: of what is folded into `other`, the largest counts."""
        with self._lock:
            found, key = self._place(name, labels)
            found[key] = max(value, float(found.get(key, value)))  # type: ignore[arg-type]

    def observe(self, name: str, *labels: str, value: float) -> None:
        """Add an observation to a histogram."""
        buckets = METRICS[name].buckets
        with self._lock:
            found, key = self._place(name, labels)
            counts = found.get(key)
            if not isinstance(counts, list):
                counts = found[key] = [0.0] * (len(buckets) + 2)
            counts[bisect_left(buckets, value)] += 1
            counts[-1] += max(0.0, value)

    def take(self) -> Series:
        """Return all, and begin again at nothing: for another registry, which adds it up."""
        with self._lock:
            taken, self._series = self._series, {}
            return taken

    def read(self) -> Series:
        """Return a copy of all."""
        with self._lock:
            return {
                name: {key: list(each) if isinstance(each, list) else each for key, each in found.items()}
                for name, found in self._series.items()
            }

    def merge(self, name: str, labels: Labels, value: float | list[float]) -> None:
        """Add what another registry has counted."""
        with self._lock:
            found, key = self._place(name, labels)
            before = found.get(key)
            if isinstance(value, list):
                old = before if isinstance(before, list) else [0.0] * len(value)
                found[key] = [one + other for one, other in zip(old, value, strict=True)]
            else:
                found[key] = value + (before if isinstance(before, float) else 0.0)

    def _place(self, name: str, labels: Labels) -> tuple[dict[Labels, float | list[float]], Labels]:
        found = self._series.setdefault(name, {})
        if labels in found or len(found) < METRICS[name].most:
            return found, labels
        self.folded += 1
        return found, (OTHER,) * len(labels)


def render(series: Series) -> str:
    """Write the series in Prometheus' text format, in the order of the table."""
    lines: list[str] = []
    for name, metric in METRICS.items():
        found = series.get(name)
        if not found:
            continue
        lines += [f"# HELP {name} {metric.help}", f"# TYPE {name} {metric.kind}"]
        for labels, value in sorted(found.items()):
            pairs = list(zip(metric.labels, labels, strict=True))
            if isinstance(value, list):
                lines += _histogram(name, metric, pairs, value)
            else:
                lines.append(f"{name}{_braces(pairs)} {_number(value)}")
    return "\n".join(lines) + "\n"


def _histogram(name: str, metric: Metric, pairs: list[tuple[str, str]], counts: list[float]) -> Iterable[str]:
    total = 0.0
    for bound, count in zip((*map(_number, metric.buckets), "+Inf"), counts[:-1], strict=True):
        total += count
        yield f"{name}_bucket{_braces([*pairs, ('le', bound)])} {_number(total)}"
    yield f"{name}_sum{_braces(pairs)} {_number(counts[-1])}"
    yield f"{name}_count{_braces(pairs)} {_number(total)}"


def _braces(pairs: list[tuple[str, str]]) -> str:
    if not pairs:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in pairs) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) and abs(value) < 2**53 else repr(float(value))


# ----------------------------------------------------------------------------------- calls of the store

VERBS = frozenset(
    (
        *("add", "claim", "beat", "settle", "record", "steps", "signal", "inbox", "wake_due", "fork", "overdue"),
        *("deadline", "vanished", "enroll", "retire", "acquire", "resign", "move", "pause", "limit", "purge", "delete"),
        *("declare", "schedules", "fire", "publish", "get", "find", "counts", "journal", "workers", "due", "unserved"),
        *("ping", "standing", "schema", "migrate"),
    )
)


def measured(opener: Callable[[], Store], clock: Clock, registry: Registry) -> Callable[[], Store]:
    """Return the opener of a store whose calls are counted and timed."""
    return lambda: cast(Store, MeasuredStore(opener(), clock, registry))


class MeasuredStore:
    """A store whose calls are counted and timed. Verbs that only wait are not."""

    def __init__(self, store: Any, clock: Clock, registry: Registry) -> None:
        self._store = store
        self._clock = clock
        self._registry = registry
        self._timed: dict[str, Callable[..., Any]] = {}

    def __getattr__(self, name: str) -> Any:
        timed = self._timed.get(name)
        if timed is not None:
            return timed
        found = getattr(self._store, name)
        if name not in VERBS:
            return found
        made = self._timed[name] = self._measured(name, found)
        return made

    def _measured(self, verb: str, call: Callable[..., Any]) -> Callable[..., Any]:
        clock, registry = self._clock, self._registry

        def measured(*args: Any, **kwargs: Any) -> Any:
            began = clock.lease()
            try:
                answer = call(*args, **kwargs)
                if verb == "add":
                    _count_stored(registry, args[0] if args else kwargs["jobs"], answer)
                return answer
            except HoldfastError as error:
                registry.inc("holdfast_store_errors_total", verb, _kind_of(error))
                raise
            finally:
                took_s = clock.lease() - began
                registry.observe("holdfast_store_operation_duration_seconds", verb, value=took_s)

        return measured


def _count_stored(registry: Registry, jobs: Sequence[NewJob], answers: Sequence[Added]) -> None:
    for job, added in zip(jobs, answers, strict=True):
        if not added.existed:
            registry.inc("holdfast_jobs_enqueued_total", job.queue)


def watch_duties(hooks: Hooks, registry: Registry) -> None:
    """Show which duties this process has."""

    def changed(event: Mapping[str, Any]) -> None:
        registry.put("holdfast_duty_held", event["duty"], value=float(event["kind"] == "duty_acquired"))
        registry.put("holdfast_duty_term", event["duty"], value=float(event["term"]))

    hooks.on("duty_acquired", changed)
    hooks.on("duty_lost", changed)


_KINDS: Mapping[type[HoldfastError], str] = {
    StoreTimeout: "timeout",
    StoreDenied: "denied",
    StoreUnavailable: "unavailable",
    StoreFull: "full",
    StoreReadOnly: "read_only",
}


def _kind_of(error: HoldfastError) -> str:
    return next((word for kind, word in _KINDS.items() if isinstance(error, kind)), OTHER)
