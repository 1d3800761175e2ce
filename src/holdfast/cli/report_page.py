"""The page of an incident: one HTML file that loads nothing, with charts as inline SVG.

Every text of the store goes through `text`, which escapes it. The page has no script, and says so to the browser.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any, NamedTuple

from holdfast import insight
from holdfast.cli.output import json_line
from holdfast.core.durations import duration

TEXT_MAX = 600
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 960, 190, 64, 12, 28
_TICKS_S = (1, 5, 10, 30, 60, 300, 600, 1800, 3600, 3 * 3600, 6 * 3600, 86_400, 7 * 86_400)
_TICKS_MAX = 7
_WORDS = {"failed": "failed", "stopped": "timed out or stalled", "lost": "lost their worker"}
_BAD = frozenset({"dead", "bury", "silent", "vanished", "gone", "lost"})
_WARN = frozenset({"held", "hold", "asked", "retrying", "waiting", "draining"})
_GOOD = frozenset({"done", "alive", "retry"})


def text(value: object) -> str:
    """Return any value as text that HTML shows as it is: escaped, printable, on one line, of bounded length."""
    plain = "".join(char if char.isprintable() else " " for char in str(value)[: 4 * TEXT_MAX])
    plain = " ".join(plain.split())
    return html.escape(plain if len(plain) <= TEXT_MAX else f"{plain[: TEXT_MAX - 1]}…", quote=True)


class Cell(NamedTuple):
    """A column of a table: its head, what it shows of a row, as HTML, and a class."""

    head: str
    show: Callable[[Any], str]
    name: str = ""


def report_page(view: dict[str, Any]) -> str:
    """Return the whole page."""
    style = files("holdfast.cli").joinpath("report.css").read_text("utf-8")
    title = f"Incident report, {_clock(view['since'])} to {_clock(view['until'])} UTC"
    parts = [_head(view), _now(view), _charts(view), _errors(view), _lost(view), _stopped(view), _acts(view)]
    body = "\n".join([*parts, _workers(view), _settings(view), _foot(view)])
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{html.escape(_POLICY)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="robots" content="noindex">\n'
        f"<title>{text(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n"
        "</body>\n</html>\n"
    )


# --------------------------------------------------------------------------------------------- the parts


def _head(view: dict[str, Any]) -> str:
    lost, failures = view["lost"], view["failures"]["total"]
    found = [silent_s for _, silent_s, _ in lost["moments"]]
    worst = f"the slowest after {duration(max(found))}" if found else "nothing was lost"
    median = duration(sorted(found)[len(found) // 2]) if found else "-"
    again = sum(number for name, number in lost["decisions"].items() if name in ("retry", "undo", "cancel"))
    share = f"{again / lost['zombies']:.0%}" if lost["zombies"] else "-"
    tiles = [
        ("Lost attempts", f"{lost['zombies']:,}", f"of {lost['jobs']:,} jobs"),
        ("Found after, median", median, worst),
        ("Run again", share, "without a person"),
        ("Failed attempts", f"{sum(failures.values()) - failures.get('lost', 0):,}", _kinds(view)),
        ("Held or asked", f"{view['held_total']:,}", f"{view['held_now']:,} held now"),
        ("Died", f"{view['dead_total']:,}", "gave up for good"),
    ]
    shown = "".join(
        f"<div><dt>{text(head)}</dt><dd>{text(number)}<small>{text(words)}</small></dd></div>"
        for head, number, words in tiles
    )
    return (
        f"<h1>Incident report</h1>\n<p>{_time(view['since'])} to {_time(view['until'])} UTC "
        f"({text(duration(view['seconds']))}), store <code>{text(view['store'])}</code></p>\n"
        f'<dl class="tiles">{shown}</dl>'
    )


def _kinds(view: dict[str, Any]) -> str:
    number = len(view["errors"])
    return f"{number} {'kind' if number == 1 else 'kinds'} of errors"


def _now(view: dict[str, Any]) -> str:
    verdict = f'<p class="verdict {"good" if view["healthy"] else "bad"}">{text(view["summary"])}</p>'
    troubles = "".join(
        f"<li>{text(trouble['text'])} <code>{text(trouble['command'])}</code></li>" for trouble in view["troubles"]
    )
    return _section(
        "At the time of this report", verdict + (f'<ol class="troubles">{troubles}</ol>' if troubles else "")
    )


def _charts(view: dict[str, Any]) -> str:
    failures = view["failures"]
    cut = " Only the newest 20,000 lines of the journal are counted." if view["is_cut"] else ""
    legend = "".join(
        f'<li><svg viewBox="0 0 10 10" aria-hidden="true"><rect class="fill-{name}" width="10" height="10"/></svg>'
        f"{text(words)}: {failures['total'].get(name, 0):,}</li>"
        for name, words in _WORDS.items()
    )
    caption = (
        f"Attempts that went wrong, in steps of {duration(failures['step_s'])}. Dashed lines are acts of people.{cut}"
    )
    over_time = (
        f'<ul class="legend">{legend}</ul><figure>{_bars(view)}<figcaption>{text(caption)}</figcaption></figure>'
    )
    return _section("Errors over time", over_time)


def _errors(view: dict[str, Any]) -> str:
    table = _table(
        [
            Cell("Attempts", lambda row: f"{row['attempts']:,}", "number"),
            Cell("Task", lambda row: f"<code>{text(row['task'])}</code>", "task"),
            Cell("Error", lambda row: text(_error(row)), "why"),
            Cell("First seen", lambda row: _time(row["first_seen"]), "time"),
            Cell("Last seen", lambda row: _time(row["last_seen"]), "time"),
            Cell("Releases", lambda row: text(", ".join(row["releases"]) or "-")),
            Cell("Example", lambda row: f"<code>{text(row['example'])}</code>"),
        ],
        view["errors"],
        "No attempt ended with an error.",
    )
    return _section("Errors", table)


def _error(row: dict[str, Any]) -> str:
    if row["kind"] == "crash":
        return f"crash, found by {row['origin']}: {row['message']}"
    return f"{row['message']}, in {row['origin']}" if row["origin"] else str(row["message"])


def _lost(view: dict[str, Any]) -> str:
    lost = view["lost"]
    if not lost["zombies"]:
        return _section("Deaths, and how they were found", "<p>No attempt lost its worker.</p>")
    detectors = _table(
        [
            Cell("Detector", lambda row: text(row["detector"])),
            Cell("Lost attempts", lambda row: f"{row['zombies']:,}", "number"),
            Cell("Silent, median", lambda row: _spread(row["silent_s"], "median"), "number"),
            Cell("Silent, worst", lambda row: _spread(row["silent_s"], "worst"), "number"),
        ],
        lost["detectors"],
    )
    false = lost["false_positives"]
    late = f"{false['late_reports']:,} of them reported later and were refused ({false['rate']:.1%})."
    caption = "Each point is a lost attempt: when it was found, and how long it had been silent by then."
    chart = f"<figure>{_points(view)}<figcaption>{text(caption)}</figcaption></figure>"
    found = _table(
        [
            Cell("Found at", lambda row: _time(row["at"]), "time"),
            Cell("Task", lambda row: f"<code>{text(row['task'] or '-')}</code>", "task"),
            Cell("Worker", lambda row: text(row["worker"] or "-")),
            Cell("Detector", lambda row: text(row["detector"]), "short"),
            Cell(
                "Silent for", lambda row: "-" if row["silent_s"] is None else text(duration(row["silent_s"])), "number"
            ),
            Cell("Decision", lambda row: _word(row["decision"], insight.DECIDED.get(row["decision"])), "short"),
            Cell("Now", lambda row: _word(row["now"]) + (" (reported later)" if row["reported_later"] else "")),
            Cell("Job", lambda row: f"<code>{text(row['id'])}</code>"),
        ],
        lost["found"],
    )
    return _section("Deaths, and how they were found", f"{detectors}<p>{text(late)}</p>{chart}{found}{_of(lost)}")


def _spread(numbers: dict[str, float] | None, name: str) -> str:
    return "-" if numbers is None else text(duration(numbers[name]))


def _of(lost: dict[str, Any]) -> str:
    shown = len(lost["found"])
    return f'<p class="quiet">The newest {shown:,} of {lost["zombies"]:,}.</p>' if shown < lost["zombies"] else ""


def _stopped(view: dict[str, Any]) -> str:
    cells = [
        Cell("At", lambda row: _time(row["at"]), "time"),
        Cell("Task", lambda row: f"<code>{text(row['task'] or '-')}</code>", "task"),
        Cell("Why", lambda row: text(row["why"] or "-"), "why"),
        Cell("By", lambda row: text(row["by"] or "-")),
        Cell("Now", lambda row: _word(row["now"]), "short"),
        Cell("Job", lambda row: f"<code>{text(row['id'])}</code>"),
    ]
    parts = []
    for name, head, none in (("held", "Held jobs", "No job was held."), ("dead", "Jobs that gave up", "No job died.")):
        more = ""
        if len(view[name]) < view[f"{name}_total"]:
            more = f'<p class="quiet">The newest {len(view[name]):,} of {view[f"{name}_total"]:,}.</p>'
        parts.append(_section(head, _table(cells, view[name], none) + more))
    return "\n".join(parts)


def _acts(view: dict[str, Any]) -> str:
    table = _table(
        [
            Cell("At", lambda row: _time(row["at"]), "time"),
            Cell("By", lambda row: text(row["by"])),
            Cell("Act", lambda row: text(row["act"]), "short"),
            Cell("On", lambda row: f"<code>{text(_on(row))}</code>"),
            Cell("Why", lambda row: text(_why(row)), "why"),
        ],
        view["acts"],
        "No person did anything.",
    )
    return _section("Acts of people", table)


def _on(row: dict[str, Any]) -> str:
    return str(row["job"] or " ".join(str(row[name]) for name in ("about", "name") if row[name]) or "-")


def _why(row: dict[str, Any]) -> str:
    left = {
        name: value for name, value in row["detail"].items() if value not in (None, [], {}) and name != row["about"]
    }
    detail = ", ".join(
        f"{name} {value if isinstance(value, str) else json_line(value)}" for name, value in left.items()
    )
    return "; ".join(each for each in (row["note"], detail) if each) or "-"


def _workers(view: dict[str, Any]) -> str:
    table = _table(
        [
            Cell("Worker", lambda row: text(row["name"])),
            Cell("State", lambda row: _word(row["state"]), "short"),
            Cell("Version", lambda row: text(row["version"] or "-"), "short"),
            Cell("Release", lambda row: text(row["release"] or "-")),
            Cell("Host, pid", lambda row: text(f"{row['host']}, {row['pid']}")),
            Cell("Slots", lambda row: str(row["slots"]), "number"),
            Cell("Queues", lambda row: text(", ".join(row["queues"]))),
            Cell("Started", lambda row: _time(row["started_at"]), "time"),
            Cell("Ended", lambda row: "-" if row["gone_at"] is None else _time(row["gone_at"]), "time"),
            Cell("How", lambda row: text(row["gone_cause"] or "-"), "why"),
        ],
        view["workers"],
        "No worker was there.",
    )
    more = len(view["workers"]) < view["workers_total"]
    of = f'<p class="quiet">The newest {len(view["workers"]):,} of {view["workers_total"]:,}.</p>' if more else ""
    return _section("Workers and versions", table + of)


def _settings(view: dict[str, Any]) -> str:
    tasks = _table(
        [
            Cell("Task", lambda row: f"<code>{text(row['task'])}</code>", "task"),
            Cell("Queue", lambda row: text(row["queue"])),
            Cell("On crash", lambda row: text(row["on_crash"]), "short"),
            Cell("Attempts", lambda row: str(row["attempts_max"]), "number"),
            Cell("Crashes", lambda row: str(row["crashes_max"]), "number"),
            Cell("Lease", lambda row: _seconds(row["lease_s"]), "number"),
            Cell("Beat", lambda row: _seconds(row["beat_s"]), "number"),
            Cell("Timeout", lambda row: _seconds(row["timeout_s"]), "number"),
            Cell("Stall", lambda row: _seconds(row["stall_s"]), "number"),
        ],
        view["tasks"],
        "No worker has published a task that failed or was lost.",
    )
    queues = _table(
        [
            Cell("Queue", lambda row: text(row["queue"])),
            Cell("Limit", lambda row: text(row["limit"] or "-"), "number"),
            Cell("Group limit", lambda row: text(row["group_limit"] or "-"), "number"),
            Cell("Rate", lambda row: text(row["rate"] or "-")),
            Cell("Paused groups", lambda row: text(", ".join(row["paused_groups"]) or "-")),
        ],
        view["queues"],
        "No queue has limits.",
    )
    return _section("Settings", f"<p>Tasks that failed or lost their worker:</p>{tasks}<p>Queues:</p>{queues}")


def _foot(view: dict[str, Any]) -> str:
    made = f"Made by Holdfast {view['version']} at {_clock(view['until'])} UTC, schema {view['schema']}."
    rest = "It has no arguments and no results of jobs. The code wrote the texts of errors: read them before you share."
    return f'<p class="quiet">{text(made)} {text(rest)}</p>'


# ---------------------------------------------------------------------------------------------- charts


def _bars(view: dict[str, Any]) -> str:
    """Draw failures over time, stacked, with the acts of people."""
    failures = view["failures"]
    bars, step = failures["bars"], failures["step_s"]
    first, end = bars[0]["at"], bars[-1]["at"] + step
    top = max(1, *(sum(bar.get(name, 0) for name in _WORDS) for bar in bars))
    room = _HEIGHT - _TOP - _BOTTOM
    width = (_WIDTH - _LEFT) / len(bars)
    shapes = []
    for number, bar in enumerate(bars):
        height = 0.0
        said = ", ".join(f"{bar[name]} {words}" for name, words in _WORDS.items() if bar.get(name))
        title = f"<title>{text(_stamp(bar['at']))}: {text(said)}</title>"
        for name in _WORDS:
            if count := bar.get(name, 0):
                size = max(1.5, count / top * room)
                x, y = _LEFT + number * width, _HEIGHT - _BOTTOM - height - size
                shapes.append(
                    f'<rect class="fill-{name}" x="{x + 0.75:.1f}" y="{y:.1f}" width="{max(1.0, width - 1.5):.1f}" '
                    f'height="{size:.1f}">{title}</rect>'
                )
                height += size
    for act in view["acts"]:
        at = datetime.fromisoformat(act["at"]).timestamp()
        x = _across(at, first, end)
        title = f"<title>{text(_clock(act['at']))}: {text(act['by'])} {text(act['act'])}</title>"
        shapes.append(
            f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}">{title}</line>'
        )
    scale = [(f"{top:,}", _TOP), ("0", _HEIGHT - _BOTTOM)]
    label = f"Failed attempts over time: at most {top} in {duration(step)}"
    return _chart(label, shapes, scale, first, end)


def _points(view: dict[str, Any]) -> str:
    """Draw how long lost attempts had been silent when they were found; the scale grows by tens."""
    points = view["lost"]["moments"]
    first, end = (datetime.fromisoformat(view[name]).timestamp() for name in ("since", "until"))
    names = sorted({detector for _, _, detector in points})
    worst = max((silent_s for _, silent_s, _ in points), default=1.0)
    decades = [size for size in (0.1, 1, 10, 100, 1000, 10_000, 100_000) if size / 10 < max(worst, 0.2)]
    room = _HEIGHT - _TOP - _BOTTOM
    shapes, seen = [], set()
    for at, silent_s, detector in points:
        x, y = _across(at, first, end), _HEIGHT - _BOTTOM - _share(silent_s, decades) * room
        spot = f"{x:.0f} {y:.0f} {detector}"
        if spot in seen:
            continue
        seen.add(spot)
        said = f"{_stamp(at)}: {detector}, silent for {duration(silent_s)}"
        shapes.append(
            f'<circle class="fill-{names.index(detector) % 5}" cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill-opacity=".75">'
            f"<title>{text(said)}</title></circle>"
        )
    scale = [(f"{size:,g} s", _HEIGHT - _BOTTOM - _share(size, decades) * room) for size in decades]
    legend = "".join(
        f'<li><svg viewBox="0 0 10 10" aria-hidden="true"><circle class="fill-{number % 5}" cx="5" cy="5" r="5"/></svg>'
        f"{text(name)}</li>"
        for number, name in enumerate(names)
    )
    chart = _chart(f"Time until a loss was found, at worst {duration(worst)}", shapes, scale, first, end)
    return f'<ul class="legend">{legend}</ul>{chart}'


def _share(seconds: float, decades: Sequence[float]) -> float:
    """Return where a length of time is on the scale, from 0 to 1."""
    least = decades[0] / 10
    place, size = 0, least
    while place < len(decades) and seconds > size * 10:
        place, size = place + 1, size * 10
    within = (max(seconds, least) - size) / (size * 9)
    return min(1.0, (place + within) / len(decades))


def _across(at: float, first: float, end: float) -> float:
    share = (at - first) / max(end - first, 1e-9)
    return _LEFT + min(1.0, max(0.0, share)) * (_WIDTH - _LEFT)


def _chart(label: str, shapes: Sequence[str], scale: Sequence[tuple[str, float]], first: float, end: float) -> str:
    base = _HEIGHT - _BOTTOM
    axis = "".join(
        f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{text(words)}</text>'
        f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>'
        for words, y in scale
    )
    times = "".join(
        f'<text x="{_across(at, first, end):.1f}" y="{base + 18}" text-anchor="{place}">{text(words)}</text>'
        for at, words, place in _ticks(first, end)
    )
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{text(label)}">{axis}{"".join(shapes)}'
        f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH}" y1="{base}" y2="{base}"/>{times}</svg>'
    )


def _ticks(first: float, end: float) -> list[tuple[float, str, str]]:
    """Return round instants on the axis of time, at most seven, with their words and how these are anchored."""
    step = next((size for size in _TICKS_S if (end - first) / size <= _TICKS_MAX), 86_400.0 * 30)
    part = slice(5, 16) if end - first > 86_400 else slice(11, 16) if step >= 60 else slice(11, 19)
    ticks, at = [], -(-first // step) * step
    while at <= end:
        share = (at - first) / max(end - first, 1e-9)
        ticks.append((at, _stamp(at)[part], "start" if share < 0.03 else "end" if share > 0.97 else "middle"))
        at += step
    return ticks


# ----------------------------------------------------------------------------------------------- pieces


def _section(head: str, body: str) -> str:
    return f"<section>\n<h2>{text(head)}</h2>\n{body}\n</section>"


def _table(cells: Sequence[Cell], rows: Sequence[Any], none: str = "Nothing.") -> str:
    if not rows:
        return f'<p class="quiet">{text(none)}</p>'
    head = "".join(
        f'<th{_class(cell.name if cell.name == "number" else "")} scope="col">{text(cell.head)}</th>' for cell in cells
    )
    lines = "\n".join(
        "<tr>" + "".join(f"<td{_class(cell.name)}>{cell.show(row)}</td>" for cell in cells) + "</tr>" for row in rows
    )
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>\n{lines}\n</tbody></table></div>'


def _class(name: str) -> str:
    return f' class="{name}"' if name else ""


def _word(word: str, shown: str | None = None) -> str:
    """Show a word in the colour of its meaning; the word itself says the same."""
    name = "bad" if word in _BAD else "warn" if word in _WARN else "good" if word in _GOOD else ""
    return f"<span{_class(name)}>{text(shown or word)}</span>"


def _seconds(value: float | None) -> str:
    return "-" if value is None else text(duration(value))


def _clock(instant: str) -> str:
    return instant.replace("T", " ")[:19]


def _time(instant: str) -> str:
    return f'<time datetime="{text(instant)}">{text(_clock(instant))}</time>'


def _stamp(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")
