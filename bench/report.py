"""From the figures of a run to the goals and the tables."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from peers import PEERS

Figures = dict[str, list[float]]

# Section -> the figures in it, each with its name.
SECTIONS = {
    "Drain": {
        "drain": "`holdfast worker`, async no-op, {jobs:,} queued",
        "drain.large": "the same, {many:,} queued",
        "drain.two": "two worker processes, {jobs:,} queued",
        "drain.two.large": "the same, {many:,} queued",
        "drain.sync": "sync no-op (threads), {jobs:,} queued",
        "raw.loop": "raw: the claim and settle statements in batches of 500",
        "verbs": "the same through the store's verbs and the judge",
        "cost.shallow": "cost of a job, {shallow:,} queued",
        "cost.deep": "cost of a job, {deep:,} queued",
    },
    "Enqueue": {
        "enqueue": "`task.enqueue()`, one at a time",
        "raw.insert": "raw: insert + commit of a two-column row, same database",
        "raw.insert_job": "raw: insert + commit of a job's row, same database",
        "enqueue_many": "`app.enqueue_many()` of {jobs:,} jobs",
        "enqueue_many.large": "the same, {many:,} jobs",
        "stream.rate": "`app.enqueue_stream()` of {deep:,} jobs from a generator",
        "stream.mb": "the same: memory of the process",
        "stream.lock.p50": "the same: SQLite's write lock for each chunk, p50",
        "stream.lock.p99": "the same: SQLite's write lock for each chunk, p99",
    },
    "Producers": {
        "crowd.bare.1": "raw: insert + commit into a table with only the primary key, one producer",
        "crowd.notify.1": "raw: the same with NOTIFY, one producer",
        "crowd.holdfast.1": "`task.enqueue()`, one producer",
        "crowd.bare.16": "raw: insert + commit into a table with only the primary key, 16 producers",
        "crowd.notify.16": "raw: the same with NOTIFY, 16 producers",
        "crowd.holdfast.16": "`task.enqueue()`, 16 producers",
    },
    "At rest": {
        "idle.cpu": "idle worker and its supervisor, CPU",
        "idle.server": "the server meanwhile, CPU",
        "idle.connections": "its connections",
        "idle.transactions": "its transactions",
        "pickup.p50": "pickup from another process, p50",
        "pickup.p99": "pickup from another process, p99",
    },
    "Acts on many jobs": {
        "acts.reap": "`holdfast scan --fix`, {acts:,} expired leases",
        "acts.revive": "`holdfast dead revive --all`, {acts:,} jobs",
        "acts.revive.named": "`holdfast dead revive`, up to 2,000 named",
        "acts.cancel.named": "`holdfast jobs cancel`, up to 2,000 named",
        "acts.delete.named": "`holdfast jobs delete`, up to 2,000 named",
        "acts.purge": "`holdfast dead purge`, {acts:,} jobs",
        "acts.export": "`holdfast jobs export`, {acts:,} jobs",
        "reap.rate": "`app.reap()` of {leases:,} expired leases, beside a busy worker",
        "reap.seconds": "the same, in all",
        "storm.rate": "{leases:,} expired leases reaped by the worker itself",
        "storm.seconds": "the same, in all",
    },
}
NAMES = {key: name for section in SECTIONS.values() for key, name in section.items()}
UNITS = {
    "cost": "µs",
    "idle.connections": "",
    "idle.transactions": "/s",
    "idle": "%",
    "pickup": "ms",
    "stream.mb": "MB",
    "stream.lock": "ms",
}
LESS_IS_BETTER = ("cost", "idle", "pickup", "stream.mb", "stream.lock", "reap.seconds", "storm.seconds")
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


def _seconds_of(jobs: int) -> Callable[[Figures], float]:
    return lambda figures: jobs / statistics.median(figures["acts.revive"])


def times(least: float, one: str, other: str, text: str) -> Goal:
    return Goal(f"{text} ≥ {least:g}", ratio(one, other), lambda x: x >= least, "{:.2f} times")


def each_drain(least: float, peer: str, name: str) -> list[Goal]:
    """The four drains, each compared with the same of a peer, as far as it has them."""
    words = {"": "one process", ".two": "two processes"}
    sizes = {"": "", ".large": ", a long queue"}
    return [
        times(least, f"drain{two}{size}", f"{peer}.drain{two}{size}", f"drain, {words[two]}{sizes[size]} / {name}")
        for two in words
        for size in sizes
    ]


def at_least(least: float, key: str, text: str) -> Goal:
    return Goal(f"{text} ≥ {least:,.0f} jobs/s", median(key), lambda x: x >= least, "{:,.0f}/s")


ALL = [
    Goal("sync drain ≥ half of async", ratio("drain.sync", "drain"), lambda x: x >= 0.5, "{:.0%}"),
    Goal(
        "cost of a job, the longest queue / a short one ≤ 1.25",
        ratio("cost.deep", "cost.shallow"),
        lambda x: x <= 1.25,
        "{:.2f} times",
    ),
    Goal("a million jobs of a generator ≤ 100 MB", median("stream.mb"), lambda x: x <= 100, "{:.0f} MB"),
    Goal("idle worker < 2 % of a core", median("idle.cpu"), lambda x: x < 2, "{:.2f} %"),
]
GOALS = {
    "sqlite": [
        times(10, "drain", "huey.drain", "drain, one process / huey"),
        times(10, "drain.large", "huey.drain.large", "drain, one process, a long queue / huey"),
        times(1.05, "drain.two", "drain", "drain, two processes / one"),
        times(1.05, "drain.two.large", "drain.large", "drain, two processes / one, a long queue"),
        times(1.0, "enqueue", "huey.enqueue", "single enqueue / huey"),
        *ALL,
        Goal("a stream's write lock ≤ 20 ms", median("stream.lock.p99"), lambda x: x <= 20, "{:.0f} ms (p99)"),
        Goal("pickup p50 < 10 ms from another process", median("pickup.p50"), lambda x: x < 10, "{:.1f} ms"),
    ],
    "postgres": [
        *each_drain(2, "pgqueuer100", "PgQueuer in batches of 100"),
        times(1.2, "enqueue_many", "pgqueuer.bulk", "bulk enqueue / PgQueuer"),
        times(1.2, "enqueue_many.large", "pgqueuer.bulk.large", "bulk enqueue of many / PgQueuer"),
        times(1.2, "enqueue_many", "awa.bulk", "bulk enqueue / awa"),
        times(1.1, "enqueue", "pgqueuer.enqueue", "single enqueue / PgQueuer"),
        times(0.7, "crowd.holdfast.16", "crowd.bare.16", "16 producers / the bare insert"),
        Goal("idle worker: connections ≤ 2", median("idle.connections"), lambda x: x <= 2, "{:.1f}"),
        Goal("idle worker: transactions ≤ 1/s", median("idle.transactions"), lambda x: x <= 1, "{:.1f}/s"),
        at_least(10_000, "reap.rate", "expired leases reaped"),
        Goal("`dead revive --all` of 8,333 jobs ≤ 3 s", _seconds_of(8333), lambda x: x <= 3, "{:.1f} s"),
        at_least(20_000, "acts.export", "`jobs export`"),
        *ALL,
        Goal("pickup p50 < 6 ms from another process", median("pickup.p50"), lambda x: x < 6, "{:.1f} ms"),
        Goal("pickup p99 < 30 ms from another process", median("pickup.p99"), lambda x: x < 30, "{:.1f} ms"),
    ],
    "redis": [
        *[
            times(4, "drain", f"{name}.drain", f"drain, one process / {peer.label}")
            for name, peer in PEERS.items()
            if peer.store == "redis"
        ],
        *[
            times(1.0, "enqueue", f"{name}.enqueue", f"single enqueue / {peer.label}")
            for name, peer in PEERS.items()
            if peer.store == "redis"
        ],
        at_least(12_000, "drain", "drain, one process"),
        at_least(30_000, "enqueue_many", "bulk enqueue"),
        Goal("pickup p50 < 4 ms from another process", median("pickup.p50"), lambda x: x < 4, "{:.1f} ms"),
    ],
}
SETTINGS = {
    "sqlite": "one worker process, 20 slots; WAL, synchronous FULL; finished rows kept",
    "postgres": "one worker process, 20 slots; the server as it comes: every commit synced; finished rows kept",
    "redis": "one worker process, 20 slots; append-only file, written each second; finished jobs kept",
}


def markdown(result: dict[str, Any]) -> str:
    figures, scale = result["figures"], result["scale"]
    store = result["store"]
    parts = [_head(result), _goals(figures, store), _ours(figures, scale), _fresh(figures)]
    parts.append(_peers(figures, scale, store, result["missing"]))
    if result["missing"]:
        parts.append("\n".join(f"Left out: {name}: {why}" for name, why in result["missing"].items()))
    return "\n\n".join(part for part in parts if part) + "\n"


def headlines(result: dict[str, Any]) -> str:
    """Return what a page shows of the figures: how they were taken, the goals, and the peers."""
    parts = [_taken(result), _goals(result["figures"], result["store"])]
    parts.append(_peers(result["figures"], result["scale"], result["store"], result["missing"]))
    return "\n\n".join(part for part in parts if part)


def _head(result: dict[str, Any]) -> str:
    return f"# `make bench` on {result['store']}, {result['at']}\n\n{_taken(result)}"


def _taken(result: dict[str, Any]) -> str:
    """Say how the figures were taken, and how quiet the machine was."""
    machine, noise, scale = result["machine"], result["noise"], result["scale"]
    about = ", ".join(f"{name} {value}" for name, value in machine.items())
    first, last = noise["commits"]
    others = f"{_of(noise['others'], '{:.0f}')} % of one core" if noise["others"] else "unknown"
    stolen = f"{max(noise['stolen'], default=0):.0f} %"
    before, after = noise["load"]
    return "\n".join(
        [
            f"Taken on {result['at'][:10]}: {about}. {scale['rounds']} rounds in {result['minutes']} minutes; "
            "median (lowest to highest).",
            "",
            f"Noise: load average {before:.1f} before and {after:.1f} after; other programs used {others} during a "
            f"measurement, the hypervisor took {stolen} at most; raw one-row commits {first:,.0f}/s before, "
            f"{last:,.0f}/s after.",
        ]
    )


def _goals(figures: Figures, store: str) -> str:
    lines = [line for goal in GOALS[store] if (line := goal.line(figures))]
    return "\n".join(["| goal | found | met |", "|---|---|---|", *lines]) if lines else ""


def _ours(figures: Figures, scale: dict[str, Any]) -> str:
    lines = []
    for section, names in SECTIONS.items():
        found = [key for key in names if key in figures]
        if found:
            lines.append(f"| **{section}** | | |")
        for key in found:
            lines.append(f"| {names[key].format(**scale)} | {_spread(figures[key])} | {unit(key)} |")
    return "\n".join(["| Holdfast | median (lowest to highest) | |", "|---|---|---|", *lines]) if lines else ""


def unit(key: str) -> str:
    if key.endswith(".seconds"):
        return "s"
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
    rows = [("**Holdfast**, async", scale["jobs"], "drain", "enqueue", "pickup", SETTINGS[store])]
    for name, peer in PEERS.items():
        queued = int(scale["jobs"] * peer.depth)
        rows.append((peer.label, queued, f"{name}.drain", f"{name}.enqueue", f"{name}.pickup", peer.settings))
    lines = []
    for label, queued, drain, enqueue, pickup, settings in rows:
        if drain in figures:
            rates = [f"{drain}{kind}" for kind in ("", ".large", ".two", ".two.large")]
            rates += [enqueue, "enqueue_many" if drain == "drain" else enqueue.replace("enqueue", "bulk")]
            cells = " | ".join(_spread(figures[key]) if key in figures else "-" for key in rates)
            lines.append(f"| {label} | {queued:,} | {cells} | {_pickup(figures, pickup)} | {settings} |")
    lines += [
        f"| {PEERS[name].label} | - | could not be measured | | | | | | - | |" for name in missing if name in PEERS
    ]
    head = [
        f"| side by side, jobs/s | queued | drained | of {scale['many']:,} | two processes | of {scale['many']:,} "
        "| enqueued singly | many at once | pickup p50 / p99, ms | settings |",
        "|---|---|---|---|---|---|---|---|---|---|",
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
