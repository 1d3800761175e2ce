"""From the figures of a run to the goals and the tables."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from peers import PEERS

Figures = dict[str, list[float]]

NAMES = {
    "raw.insert": "raw: insert + commit of a two-column row, same database",
    "raw.insert_job": "raw: insert + commit of a job's row, same database",
    "enqueue": "`task.enqueue()`, one at a time",
    "enqueue_many": "`app.enqueue_many()`",
    "stream.rate": "`app.enqueue_stream()` of {deep:,} jobs from a generator",
    "stream.mb": "the same: memory of the process",
    "stream.lock.p50": "the same: SQLite's write lock for each chunk, p50",
    "stream.lock.p99": "the same: SQLite's write lock for each chunk, p99",
    "crowd.bare.1": "raw: insert + commit into a table with only the primary key, one producer",
    "crowd.notify.1": "raw: the same with NOTIFY, one producer",
    "crowd.holdfast.1": "`task.enqueue()`, one producer",
    "crowd.bare.16": "raw: insert + commit into a table with only the primary key, 16 producers",
    "crowd.notify.16": "raw: the same with NOTIFY, 16 producers",
    "crowd.holdfast.16": "`task.enqueue()`, 16 producers",
    "raw.loop": "raw: the claim and settle statements in batches of 500",
    "verbs": "the same through the store's verbs and the judge",
    "drain.async": "drain, async no-op, one worker process",
    "drain.sync": "drain, sync no-op (threads), one worker process",
    "drain.async.two": "drain, async no-op, two worker processes",
    "cost.shallow": "cost of a job, {shallow:,} queued",
    "cost.deep": "cost of a job, {deep:,} queued",
    "idle.cpu": "idle worker and its supervisor, CPU",
    "pickup.p50": "pickup from another process, p50",
    "pickup.p99": "pickup from another process, p99",
    "reap.rate": "`app.reap()` of {leases:,} expired leases, beside a busy worker",
    "reap.seconds": "the same, in all",
    "storm.rate": "{leases:,} expired leases reaped by the worker itself",
    "storm.seconds": "the same, in all",
}
UNITS = {"cost": "µs", "idle": "%", "pickup": "ms", "stream.mb": "MB", "stream.lock": "ms"}
SCENES = {"reap": "`reap()` in a process of its own", "storm": "by the worker itself (default)"}
PLACES = {"same": "the queue that lost jobs come back to", "own": "a queue of its own"}


@dataclass(frozen=True)
class Goal:
    """A number that the project has promised itself."""

    text: str
    measured: Callable[[Figures], float]
    met: Callable[[float], bool]
    shown: str

    def line(self, figures: Figures) -> str | None:
        try:
            value = self.measured(figures)
        except (KeyError, statistics.StatisticsError):
            return None
        return f"| {self.text} | {self.shown.format(value)} | {'yes' if self.met(value) else '**no**'} |"


def ratio(one: str, other: str) -> Callable[[Figures], float]:
    """The median of the ratios within each round."""
    return lambda figures: statistics.median(a / b for a, b in zip(figures[one], figures[other], strict=False))


def median(key: str) -> Callable[[Figures], float]:
    return lambda figures: statistics.median(figures[key])


def times(least: float, key: str, name: str) -> Goal:
    """The async drain beside a peer's."""
    beside = ratio("drain.async", key)
    if least == 1:
        return Goal(f"async drain > {name}", beside, lambda x: x > 1, "{:.2f} times")
    return Goal(f"async drain ≥ {least:g} times {name}", beside, lambda x: x >= least, "{:.1f} times")


TIMES = "{:.2f} times"
ALL = [
    Goal("sync drain ≥ half of async", ratio("drain.sync", "drain.async"), lambda x: x >= 0.5, "{:.0%}"),
    Goal("`enqueue_many` ≥ 40,000 jobs/s", median("enqueue_many"), lambda x: x >= 40_000, "{:,.0f}/s"),
    Goal(
        "single enqueue ≥ 60 % of raw insert + commit of the same row",
        ratio("enqueue", "raw.insert_job"),
        lambda x: x >= 0.6,
        "{:.0%}",
    ),
    Goal(
        "cost per job flat from short to long queue (within 25 %)",
        ratio("cost.deep", "cost.shallow"),
        lambda x: x <= 1.25,
        "{:.2f} times",
    ),
    Goal("idle worker < 2 % of a core", median("idle.cpu"), lambda x: x < 2, "{:.2f} %"),
    Goal("a million jobs of a generator in 100 MB", median("stream.mb"), lambda x: x <= 100, "{:.0f} MB"),
]
GOALS = {
    "sqlite": [
        Goal("async drain ≥ 25 % of the raw loop", ratio("drain.async", "raw.loop"), lambda x: x >= 0.25, "{:.0%}"),
        times(6, "huey.drain", "huey on SQLite"),
        *ALL,
        Goal("single enqueue ≥ huey's", ratio("enqueue", "huey.enqueue"), lambda x: x >= 1, TIMES),
        Goal("a stream's write lock ≤ 20 ms", median("stream.lock.p99"), lambda x: x <= 20, "{:.0f} ms (p99)"),
        Goal("pickup p50 < 10 ms from another process", median("pickup.p50"), lambda x: x < 10, "{:.1f} ms"),
    ],
    "postgres": [
        Goal("async drain ≥ 40 % of the raw loop", ratio("drain.async", "raw.loop"), lambda x: x >= 0.4, "{:.0%}"),
        times(2.5, "pgqueuer.drain", "PgQueuer, default"),
        times(1, "pgqueuer100.drain", "PgQueuer in batches of 100"),
        times(2, "awa.drain", "awa"),
        times(20, "procrastinate.drain", "Procrastinate"),
        times(20, "saq.drain", "SAQ"),
        *ALL,
        Goal("bulk enqueue ≥ 1.2 times PgQueuer's", ratio("enqueue_many", "pgqueuer.bulk"), lambda x: x >= 1.2, TIMES),
        Goal("bulk enqueue ≥ 1.2 times awa's", ratio("enqueue_many", "awa.bulk"), lambda x: x >= 1.2, TIMES),
        Goal("single enqueue ≥ 1.1 times PgQueuer's", ratio("enqueue", "pgqueuer.enqueue"), lambda x: x >= 1.1, TIMES),
        Goal(
            "16 producers ≥ 70 % of the bare insert",
            ratio("crowd.holdfast.16", "crowd.bare.16"),
            lambda x: x >= 0.7,
            "{:.0%}",
        ),
        Goal("pickup p50 < 6 ms from another process", median("pickup.p50"), lambda x: x < 6, "{:.1f} ms"),
        Goal("pickup p99 < 30 ms from another process", median("pickup.p99"), lambda x: x < 30, "{:.1f} ms"),
    ],
}
SETTINGS = {
    "sqlite": "one worker process, 20 slots; WAL, synchronous FULL; finished rows kept",
    "postgres": "one worker process, 20 slots; the server as it comes: every commit synced; finished rows kept",
}


def markdown(result: dict[str, Any]) -> str:
    figures, scale = result["figures"], result["scale"]
    store = result["store"]
    parts = [_head(result), _goals(figures, store), _ours(figures, scale), _fresh(figures)]
    parts.append(_peers(figures, scale, store, result["missing"]))
    if result["missing"]:
        parts.append("\n".join(f"Left out: {name}: {why}" for name, why in result["missing"].items()))
    return "\n\n".join(part for part in parts if part) + "\n"


def _head(result: dict[str, Any]) -> str:
    machine, noise, scale = result["machine"], result["noise"], result["scale"]
    about = ", ".join(f"{name} {value}" for name, value in machine.items())
    first, last = noise["commits"]
    others = f"{_of(noise['others'], '{:.0f}')} % of one core" if noise["others"] else "unknown"
    stolen = f"{max(noise['stolen'], default=0):.0f} %"
    return "\n".join(
        [
            f"# `make bench` on {result['store']}, {result['at']}",
            "",
            f"{about}. {scale['rounds']} rounds in {result['minutes']} minutes; median (lowest to highest).",
            "",
            f"Noise: other programs used {others} during a measurement, the hypervisor took {stolen} at most; "
            f"raw one-row commits {first:,.0f}/s at the start, {last:,.0f}/s at the end.",
        ]
    )


def _goals(figures: Figures, store: str) -> str:
    lines = [line for goal in GOALS[store] if (line := goal.line(figures))]
    return "\n".join(["| goal | found | met |", "|---|---|---|", *lines]) if lines else ""


def _ours(figures: Figures, scale: dict[str, Any]) -> str:
    lines = []
    for key, name in NAMES.items():
        if key in figures:
            unit = "s" if key.endswith(".seconds") else _unit(key)
            lines.append(f"| {name.format(**scale)} | {_spread(figures[key])} | {unit} |")
    return "\n".join(["| Holdfast | median (lowest to highest) | |", "|---|---|---|", *lines]) if lines else ""


def _unit(key: str) -> str:
    return next((unit for start, unit in UNITS.items() if key.startswith(start)), "jobs/s")


def _fresh(figures: Figures) -> str:
    lines = []
    for scene, reaped in SCENES.items():
        for place, queue in PLACES.items():
            if f"{scene}.before.{place}.p50" in figures:
                cells = [_parts(figures, f"{scene}.{phase}.{place}") for phase in ("before", "during", "after")]
                lines.append(f"| {reaped} | {queue} | {' | '.join(cells)} |")
    head = [
        "Fresh work meanwhile: from the enqueue call to the start of the handler, p50 / p99 / max in ms:",
        "",
        "| reaped | fresh jobs come in | before | during the reaping | until the lost jobs have run |",
        "|---|---|---|---|---|",
    ]
    return "\n".join([*head, *lines]) if lines else ""


def _parts(figures: Figures, key: str) -> str:
    return " / ".join(f"{statistics.median(figures[f'{key}.{part}']):,.0f}" for part in ("p50", "p99", "max"))


def _peers(figures: Figures, scale: dict[str, Any], store: str, missing: dict[str, str]) -> str:
    rows = [("**Holdfast**, async", scale["jobs"], "drain.async", "enqueue", "pickup", SETTINGS[store])]
    for name, peer in PEERS.items():
        queued = int(scale["peer_jobs"] * peer.depth)
        rows.append((peer.label, queued, f"{name}.drain", f"{name}.enqueue", f"{name}.pickup", peer.settings))
    lines = []
    for label, queued, drain, enqueue, pickup, settings in rows:
        if drain in figures:
            singly = _spread(figures[enqueue]) if enqueue in figures else "-"
            rates = f"{_spread(figures[drain])} | {singly}"
            lines.append(f"| {label} | {queued:,} | {rates} | {_pickup(figures, pickup)} | {settings} |")
    lines += [f"| {PEERS[name].label} | - | could not be measured | - | - | |" for name in missing if name in PEERS]
    head = [
        "| side by side | queued | drained, jobs/s | enqueued singly, jobs/s | pickup p50 / p99, ms | settings |",
        "|---|---|---|---|---|---|",
    ]
    return "\n".join([*head, *lines]) if lines else ""


def _pickup(figures: Figures, key: str) -> str:
    if f"{key}.p50" not in figures:
        return "-"
    return " / ".join(f"{statistics.median(figures[f'{key}.{part}']):,.1f}" for part in ("p50", "p99"))


def _spread(values: list[float]) -> str:
    shown = "{:,.0f}" if min(values) >= 100 else "{:,.1f}" if min(values) >= 5 else "{:,.2f}"
    return _of(values, shown)


def _of(values: list[float], shown: str) -> str:
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{shown.format(middle)} ({shown.format(low)} to {shown.format(high)})"
