"""Draw the figures of a run, beside them:   .venv-bench/bin/python bench/plot.py bench/results/sqlite.json"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

import matplotlib as mpl

mpl.use("agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

STORES = {"sqlite": "SQLite", "postgres": "PostgreSQL"}
OURS, RAW, PEER, INK = "#1f6f8b", "#b9c4c9", "#e0a458", "#26323a"
Figures = dict[str, list[float]]
Bar = tuple[str, str, str]  # label, key, colour

DRAIN: list[Bar] = [
    ("raw loop of the statements", "raw.loop", RAW),
    ("Holdfast, async", "drain", OURS),
    ("Holdfast, two processes", "drain.two", OURS),
    ("Holdfast, sync (threads)", "drain.sync", OURS),
    ("huey (no acknowledgement)", "huey.drain", PEER),
    ("persist-queue", "persistqueue.drain", PEER),
    ("litequeue (no sync per job)", "litequeue.drain", PEER),
    ("DBOS", "dbos.drain", PEER),
    ("PgQueuer, batches of 100", "pgqueuer100.drain", PEER),
    ("PgQueuer, batches of 100, two processes", "pgqueuer100.drain.two", PEER),
    ("PgQueuer", "pgqueuer.drain", PEER),
    ("awa", "awa.drain", PEER),
    ("Procrastinate", "procrastinate.drain", PEER),
    ("SAQ", "saq.drain", PEER),
    ("DBOS", "dbos_postgres.drain", PEER),
]
ENQUEUE: list[Bar] = [
    ("raw insert + commit", "raw.insert", RAW),
    ("Holdfast, one at a time", "enqueue", OURS),
    ("Holdfast, enqueue_many", "enqueue_many", OURS),
    ("huey", "huey.enqueue", PEER),
    ("persist-queue", "persistqueue.enqueue", PEER),
    ("litequeue (no sync per job)", "litequeue.enqueue", PEER),
    ("DBOS", "dbos.enqueue", PEER),
    ("PgQueuer", "pgqueuer.enqueue", PEER),
    ("awa", "awa.enqueue", PEER),
    ("Procrastinate", "procrastinate.enqueue", PEER),
    ("SAQ", "saq.enqueue", PEER),
    ("DBOS", "dbos_postgres.enqueue", PEER),
]
PICKUP: list[Bar] = [
    ("Holdfast, p50", "pickup.p50", OURS),
    ("Holdfast, p99", "pickup.p99", OURS),
    ("huey, p50", "huey.pickup.p50", PEER),
    ("huey, p99", "huey.pickup.p99", PEER),
    ("DBOS, p50", "dbos.pickup.p50", PEER),
    ("DBOS, p99", "dbos.pickup.p99", PEER),
    ("PgQueuer, p50", "pgqueuer.pickup.p50", PEER),
    ("PgQueuer, p99", "pgqueuer.pickup.p99", PEER),
    ("SAQ, p50", "saq.pickup.p50", PEER),
    ("SAQ, p99", "saq.pickup.p99", PEER),
    ("Procrastinate, p50", "procrastinate.pickup.p50", PEER),
    ("Procrastinate, p99", "procrastinate.pickup.p99", PEER),
    ("awa, p50", "awa.pickup.p50", PEER),
    ("awa, p99", "awa.pickup.p99", PEER),
]
FRESH: list[Bar] = [
    ("before, p50", "storm.before.same.p50", OURS),
    ("before, max", "storm.before.same.max", OURS),
    ("during, p50", "storm.during.same.p50", OURS),
    ("during, max", "storm.during.same.max", OURS),
    ("after, p50", "storm.after.same.p50", OURS),
    ("after, max", "storm.after.same.max", OURS),
]


def main(source: Path) -> None:
    result = json.loads(source.read_text())
    figures, scale, machine = result["figures"], result["scale"], result["machine"]
    cost: list[Bar] = [
        (f"{scale['shallow']:,} queued", "cost.shallow", OURS),
        (f"{scale['deep']:,} queued", "cost.deep", OURS),
    ]
    panels = [
        ("Drained: acknowledged jobs per second", DRAIN),
        ("Enqueued: durable jobs per second", ENQUEUE),
        ("Pickup by an idle worker, ms", PICKUP),
        (f"Fresh jobs while {scale['leases']:,} leases expire, ms", FRESH),
        ("Long queue: µs a drained job", cost),
    ]
    plt.rcParams |= {"font.size": 9, "text.color": INK, "axes.labelcolor": INK, "ytick.color": INK, "xtick.color": INK}
    store = STORES[result["store"]]
    figure = plt.figure(figsize=(13, 7.2 if store == "SQLite" else 8))
    grid = figure.add_gridspec(2, 6, height_ratios=(7, 6))
    places = [grid[0, :3], grid[0, 3:], grid[1, :2], grid[1, 2:4], grid[1, 4:]]
    for place, (title, bars) in zip(places, panels, strict=True):
        here = [bar for bar in bars if bar[1] in figures]
        draw(figure.add_subplot(place), title, here, figures, log=bars is not cost)
    title = f"Holdfast and peers on {store}, side by side"
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, weight="bold")
    about = (
        f"{machine['cores']} cores, {machine['file system']}, Python {machine['Python']}, {store} {machine[store]}; "
        f"{result['at'][:10]}; median of {scale['rounds']} interleaved rounds, whiskers from lowest to highest; "
        "logarithmic, but for the last"
    )
    figure.text(0.01, 0.935, about, fontsize=8.5, color="#5c6b73")
    figure.tight_layout(rect=(0, 0, 1, 0.94), w_pad=2, h_pad=2)
    figure.savefig(source.with_suffix(".png"), dpi=110)


def draw(axis: Axes, title: str, bars: list[Bar], figures: Figures, *, log: bool) -> None:
    axis.set_title(title, loc="left", fontsize=10, weight="bold", color=INK)
    axis.spines[["top", "right", "left"]].set_visible(False)
    if not bars:
        axis.set_axis_off()
        return
    middles = [statistics.median(figures[key]) for _, key, _ in bars]
    lows = [middle - min(figures[key]) for middle, (_, key, _) in zip(middles, bars, strict=True)]
    highs = [max(figures[key]) - middle for middle, (_, key, _) in zip(middles, bars, strict=True)]
    rows = range(len(bars))
    axis.barh(rows, middles, color=[colour for _, _, colour in bars], height=0.62)
    axis.errorbar(middles, rows, xerr=[lows, highs], fmt="none", ecolor=INK, elinewidth=0.9, capsize=2.5)
    axis.set_yticks(rows, [label for label, _, _ in bars])
    axis.tick_params(axis="y", length=0)
    axis.set_ylim(max(len(bars), 6) - 0.4, -0.6)
    edge = max(middle + high for middle, high in zip(middles, highs, strict=True))
    if log:
        axis.set_xscale("log")
        axis.set_xlim(min(middles) / 4, edge * 8)
    else:
        axis.set_xlim(0, edge * 1.3)
    axis.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}" if x >= 1 else f"{x:g}"))
    axis.minorticks_off()
    for row, middle, high in zip(rows, middles, highs, strict=True):
        text = f"{middle:,.0f}" if middle >= 100 else f"{middle:,.1f}"
        axis.annotate(text, (middle + high, row), (5, 0), textcoords="offset points", va="center", color=INK)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
