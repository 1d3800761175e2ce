"""Alerts: what they have reported, what is still open, and the rules in force. Nothing is changed here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast import insight
from holdfast.alerts.rules import KINDS
from holdfast.server.call import Call
from holdfast.server.pages.page import Context, Page

# Where a person looks into an incident, by its kind; {} is what it is about.
_PLACES: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "held": ("/review", {"task": "{}"}),
    "dead": ("/jobs", {"state": "dead", "task": "{}"}),
    "error_rate": ("/errors", {}),
    "late_schedules": ("/schedules", {}),
    "backlog": ("/queues/one", {"queue": "{}"}),
    "no_worker": ("/queues/one", {"queue": "{}"}),
    "silent_worker": ("/workers", {}),
    "unknown_task": ("/jobs", {"state": "ready", "task": "{}"}),
}


def show(call: Call) -> Context:
    """Show the alerts of all programs on this store."""
    view = insight.alerts_view(call.store)
    return {
        "kinds": KINDS,
        "rules": view["rules"],
        "open": [_placed(each) for each in view["open"]],
        "messages": [_placed(each) for each in view["messages"]],
    }


def _placed(each: dict[str, Any]) -> dict[str, Any]:
    path, query = _PLACES.get(each["kind"], ("/zombies", {}))
    about = each["task"] or each["queue"] or ""
    return each | {"about": about, "path": path, "query": {name: value.format(about) for name, value in query.items()}}


ROUTES = (Page("alerts", "/alerts", show, scope="whole", nav=True, key="n"),)
