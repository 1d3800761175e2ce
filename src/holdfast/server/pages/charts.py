"""Charts of throughput, waits and run times, as data for the script, and as rows of a table for those who see none."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from holdfast import insight
from holdfast.server.call import Call

WINDOWS: tuple[insight.Window, ...] = ("hour", "day", "week")
# The charts: their name, the unit of their axis, and their lines with a colour of holdfast.css. The first is filled.
_CHARTS = (
    ("throughput", "jobs", (("done", "ok"), ("dead", "bad"), ("arrived", "slate"))),
    ("wait", "s", (("wait_p50_s", "blue"), ("wait_p95_s", "violet"))),
    ("run", "s", (("run_p50_s", "blue"), ("run_p95_s", "violet"))),
)


class WindowQuery(msgspec.Struct):
    """The window of the charts."""

    window: insight.Window = "hour"


def charts(call: Call, window: insight.Window, queue: str | None = None) -> Mapping[str, Any]:
    """Return the charts of a window: of one queue, or of all together."""
    series = insight.series_view(call.store, window, queue, call.user.sees)
    points: list[dict[str, Any]] = series["points"]
    drawn = points[:-1] if window == "hour" else points  # a minute that is not over looks like a fall
    return {
        "window": window,
        "windows": WINDOWS,
        "total": series["total"],
        "is_empty": not (series["total"]["attempts"] or series["total"]["arrived"]),
        "charts": [_chart(name, unit, lines, drawn, series["total"]) for name, unit, lines in _CHARTS],
        "rows": [each for each in reversed(points) if each["attempts"] or each["arrived"]],
    }


def _chart(
    name: str,
    unit: str,
    lines: Sequence[tuple[str, str]],
    points: Sequence[Mapping[str, Any]],
    total: Mapping[str, Any],
) -> Mapping[str, Any]:
    x = [datetime.fromisoformat(each["at"]).timestamp() for each in points]
    series = [
        {"label": key, "color": colour, "fill": place == 0, "values": [each[key] for each in points]}
        for place, (key, colour) in enumerate(lines)
    ]
    return {
        "name": name,
        "unit": unit,
        "lines": [{"key": key, "colour": colour, "value": total[key]} for key, colour in lines],
        "data": json.dumps({"x": x, "unit": unit, "series": series}, separators=(",", ":")),
    }
