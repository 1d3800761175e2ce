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

OURS, RAW, PEER, INK = "#1f6f8b", "#b9c4c9", "#e0a458", "#26323a"
Figures = dict[str, list[float]]
Bar = tuple[str, str, str]  # label, key, colour

DRAIN: list[Bar] = [
    ("raw loop of the statements", "raw.loop", RAW),
    ("Holdfast, async", "drain.async", OURS),
    ("Holdfast, sync (threads)", "drain.sync", OURS),
    ("huey (no acknowledgement)", "huey.drain", PEER),
    ("persist-queue", "persistqueue.drain", PEER),
    ("litequeue (no sync per job)", "litequeue.drain", PEER),
    ("DBOS", "dbos.drain", PEER),
]
ENQUEUE: list[Bar] = [
    ("raw insert + commit", "raw.insert", RAW),
    ("Holdfast, one at a time", "enqueue", OURS),
    ("Holdfast, enqueue_many", "enqueue_many", OURS),
    ("huey", "huey.enqueue", PEER),
    ("persist-queue", "persistqueue.enqueue", PEER),
    ("litequeue (no sync per job)", "litequeue.enqueue", PEER),
    ("DBOS", "dbos.enqueue", PEER),
]
PICKUP: list[Bar] = [
    ("Holdfast, p50", "pickup.p50", OURS),
    ("Holdfast, p99", "pickup.p99", OURS),
    ("huey, p50", "huey.pickup.p50", PEER),
    ("huey, p99", "huey.pickup.p99", PEER),
    ("DBOS, p50", "dbos.pickup.p50", PEER),
    ("DBOS, p99", "dbos.pickup.p99", PEER),
]


def main(source: Path) -> None:
    result = json.loads(source.read_text())
    figures, scale = result["figures"], result["scale"]
    cost: list[Bar] = [
        (f"a job, {scale['shallow']:,} queued", "cost.shallow", OURS),
        (f"a job, {scale['deep']:,} queued", "cost.deep", OURS),
    ]
    panels = [
        ("Drained: acknowledged jobs per second", DRAIN),
        ("Enqueued: durable jobs per second", ENQUEUE),
        ("Pickup from another process, milliseconds", PICKUP),
        ("Cost of a job in a long queue, microseconds", cost),
    ]
    plt.rcParams |= {"font.size": 9, "text.color": INK, "axes.labelcolor": INK, "ytick.color": INK, "xtick.color": INK}
    figure, axes = plt.subplots(2, 2, figsize=(12, 7), height_ratios=(7, 6))
    for axis, (title, bars) in zip(axes.flat, panels, strict=True):
        draw(axis, title, [bar for bar in bars if bar[1] in figures], figures, log=bars is not cost)
    machine = result["machine"]
    figure.suptitle(
        f"Holdfast and peers on {result['store']}, side by side", x=0.01, ha="left", fontsize=13, weight="bold"
    )
    about = (
        f"{machine['cores']} cores, {machine['file system']}, Python {machine['Python']}, SQLite {machine['SQLite']}; "
        f"{result['at'][:10]}; median of {scale['rounds']} interleaved rounds, whiskers from lowest to highest; "
        "logarithmic but for the last"
    )
    figure.text(0.01, 0.935, about, fontsize=8.5, color="#5c6b73")
    figure.tight_layout(rect=(0, 0, 1, 0.94), w_pad=3, h_pad=2)
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
    axis.invert_yaxis()
    edge = max(middle + high for middle, high in zip(middles, highs, strict=True))
    if log:
        axis.set_xscale("log")
        axis.set_xlim(min(middles) / 4, edge * 6)
    else:
        axis.set_xlim(0, edge * 1.25)
    axis.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}" if x >= 1 else f"{x:g}"))
    axis.minorticks_off()
    for row, middle, high in zip(rows, middles, highs, strict=True):
        text = f"{middle:,.0f}" if middle >= 100 else f"{middle:,.1f}"
        axis.annotate(text, (middle + high, row), (5, 0), textcoords="offset points", va="center", color=INK)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
