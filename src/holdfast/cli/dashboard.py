"""The Grafana dashboard: rows in the order of a person's questions."""

from __future__ import annotations

from typing import Any, NamedTuple

_SOURCE = {"type": "prometheus", "uid": "${source}"}
_WIDTH, _HEIGHT = 24, 8


class Panel(NamedTuple):
    """A chart: its title, its unit, and expressions with their legends."""

    title: str
    unit: str
    lines: tuple[tuple[str, str], ...]


_RATE = "[$__rate_interval]"
_OLDEST = 'max by (queue) (holdfast_queue_oldest_due_seconds{queue=~"$queue"})'
_LIVE = 'sum by (state) (max by (queue, state) (holdfast_jobs{queue=~"$queue", state=~"ready|running|waiting|held"}))'
_STUCK = 'max by (queue, state) (holdfast_jobs{queue=~"$queue", state=~"held|dead"}) > 0'
_ENDED = f'max by (state) (sum by (instance, state) (rate(holdfast_jobs_ended_total{{queue=~"$queue"}}{_RATE})))'
_FOUND = "histogram_quantile(0.95, max by (le, detector) (rate(holdfast_zombie_detection_seconds_bucket[1h])))"
_TASK = 'task=~"$task"'
_HTTP = "holdfast_http_request_duration_seconds_bucket"


def _quantile(share: float, metric: str, by: str, where: str = "") -> str:
    return f"histogram_quantile({share}, sum by (le, {by}) (rate({metric}{{{where}}}{_RATE})))"


ROWS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    (
        "Are jobs late?",
        (
            Panel("Oldest due job", "s", ((_OLDEST, "{{queue}}"),)),
            Panel("Jobs", "short", ((_LIVE, "{{state}}"),)),
            Panel(
                "Wait until the claim, p95",
                "s",
                ((_quantile(0.95, "holdfast_attempt_wait_seconds_bucket", "queue", 'queue=~"$queue"'), "{{queue}}"),),
            ),
            Panel("Slots", "short", (("max by (state) (holdfast_worker_slots)", "{{state}}"),)),
        ),
    ),
    (
        "Does work end well?",
        (
            Panel(
                "Attempts by outcome",
                "ops",
                ((f"sum by (outcome) (rate(holdfast_attempts_total{{{_TASK}}}{_RATE}))", "{{outcome}}"),),
            ),
            Panel(
                "Jobs that ended",
                "ops",
                (
                    (
                        _ENDED,
                        "{{state}}",
                    ),
                ),
            ),
            Panel(
                "Duration, p95",
                "s",
                ((_quantile(0.95, "holdfast_attempt_duration_seconds_bucket", "task", _TASK), "{{task}}"),),
            ),
            Panel("Held and dead jobs", "short", ((_STUCK, "{{queue}} {{state}}"),)),
        ),
    ),
    (
        "Do workers die, and are they found in time?",
        (
            Panel(
                "Lost attempts",
                "short",
                (
                    (
                        "max by (detector, decision) (increase(holdfast_zombies_total[$__range]))",
                        "{{detector}}: {{decision}}",
                    ),
                ),
            ),
            Panel(
                "Time to detection, p95",
                "s",
                (
                    (
                        _FOUND,
                        "{{detector}}",
                    ),
                ),
            ),
            Panel(
                "Refused reports and false zombies",
                "short",
                (
                    (f"max(increase(holdfast_stale_reports_total{_RATE}))", "refused reports"),
                    (f"max(increase(holdfast_false_zombies_total{_RATE}))", "false zombies"),
                ),
            ),
            Panel("Workers", "short", (("max by (state) (holdfast_workers)", "{{state}}"),)),
            Panel(
                "Tightest lease",
                "s",
                (
                    ("max(holdfast_lease_headroom_min_seconds)", "time left"),
                    ("max(holdfast_leases_overdue)", "expired leases"),
                ),
            ),
            Panel("Heartbeats", "ops", ((f"sum by (result) (rate(holdfast_beats_total{_RATE}))", "{{result}}"),)),
        ),
    ),
    (
        "Does the store cope?",
        (
            Panel(
                "Calls of the store, p95",
                "s",
                ((_quantile(0.95, "holdfast_store_operation_duration_seconds_bucket", "verb"), "{{verb}}"),),
            ),
            Panel(
                "Errors of the store",
                "ops",
                ((f"sum by (verb, kind) (rate(holdfast_store_errors_total{_RATE}))", "{{verb}}: {{kind}}"),),
            ),
            Panel(
                "Store is up; age of its facts",
                "short",
                (
                    ("max(holdfast_store_up)", "up"),
                    ("min(holdfast_snapshot_age_seconds)", "age in seconds"),
                ),
            ),
        ),
    ),
    (
        "Who asks, and for what?",
        (
            Panel(
                "Requests",
                "reqps",
                ((f"sum by (route, code) (rate(holdfast_http_requests_total{_RATE}))", "{{route}} {{code}}"),),
            ),
            Panel("Duration of requests, p95", "s", ((_quantile(0.95, _HTTP, "route"), "{{route}}"),)),
            Panel(
                "Acts of people, refused tokens",
                "short",
                (
                    ("sum by (act, result) (increase(holdfast_operator_acts_total[$__range]))", "{{act}}: {{result}}"),
                    (f"sum(increase(holdfast_login_failures_total{_RATE}))", "refused tokens"),
                ),
            ),
            Panel(
                "Late schedules", "s", (("max by (schedule) (holdfast_schedule_overdue_seconds) > 0", "{{schedule}}"),)
            ),
        ),
    ),
)


def dashboard(name: str, server: str) -> dict[str, Any]:
    """Return the model of the dashboard, as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in ROWS:
        panels.append({"type": "row", "title": title, "collapsed": False, "gridPos": _place(0, top, _WIDTH, 1)})
        width = _WIDTH // min(len(row), 4)
        for number, panel in enumerate(row):
            across, down = number % (_WIDTH // width), number // (_WIDTH // width)
            panels.append(_panel(panel, _place(across * width, top + 1 + down * _HEIGHT, width, _HEIGHT)))
        top += 1 + _HEIGHT * (1 + (len(row) - 1) // (_WIDTH // width))
    for number, each in enumerate(panels, 1):
        each["id"] = number
    return {
        "uid": name,
        "title": f"Holdfast: {name}",
        "tags": ["holdfast"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {
            "list": [_source(), _choice("queue", "holdfast_jobs"), _choice("task", "holdfast_attempts_total")]
        },
        "links": [{"type": "link", "title": "Server", "url": server, "targetBlank": True}],
        "panels": panels,
    }


def _place(x: int, y: int, w: int, h: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": w, "h": h}


def _panel(panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + at), "datasource": _SOURCE, "expr": expression, "legendFormat": legend}
        for at, (expression, legend) in enumerate(panel.lines)
    ]
    return {
        "type": "timeseries",
        "title": panel.title,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": targets,
    }


def _source() -> dict[str, Any]:
    return {"name": "source", "label": "Data source", "type": "datasource", "query": "prometheus"}


def _choice(label: str, metric: str) -> dict[str, Any]:
    query = f"label_values({metric}, {label})"
    return {
        "name": label,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": label},
        "definition": query,
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }
