"""The overview: is the fleet well, what is wrong, what to do about it, and what moves now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast import insight
from holdfast.insight.live import live_view
from holdfast.server.call import Call
from holdfast.server.pages.charts import WindowQuery, charts
from holdfast.server.pages.page import Context, Page, see
from holdfast.server.routes import Answer
from holdfast.stores.rounds import together

WORST = 3  # problems that are shown before the fold
OLDEST = 5
CHORES = ("alerts", "pruner", "reaper", "rollups", "scheduler")  # duties that have a text
LEASES = 6
DETECTIONS = 6
STATES = ("ready", "running", "waiting", "held", "done", "dead", "cancelled", "rolled_back")

# The page that repairs what a trouble's command repairs, by how the command begins.
_PAGES = (
    ("holdfast held list", "/review"),
    ("holdfast jobs list", "/jobs"),
    ("holdfast queues", "/queues"),
    ("holdfast workers", "/workers"),
    ("holdfast errors", "/errors"),
    ("holdfast zombies", "/zombies"),
    ("holdfast scan", "/zombies"),
    ("holdfast schedules", "/schedules"),
)


def show(call: Call) -> Context | Answer:
    """Show the state of the whole store; to a user who sees some queues only, their jobs."""
    if call.user.queues is not None:
        return see(call, "/jobs")
    store = call.store
    queues = insight.queue_views(store)
    status, moving, schema, duties = together(
        lambda: insight.status_view(store, known=queues),
        lambda: live_view(store, queues),
        store.schema,
        lambda: insight.duty_views(store),
    )
    troubles = [{**each, "page": _page_of(call, each["command"])} for each in status["troubles"]]
    waiting = [queue for queue in moving["queues"] if queue["oldest_due_s"] is not None]
    return {
        "status": status,
        "worst": troubles[:WORST],
        "further": troubles[WORST:],
        "states": STATES,
        "jobs": status["jobs"],
        "is_new": not any(status["jobs"].values()) and not moving["workers"],
        "oldest": sorted(waiting, key=lambda queue: -queue["oldest_due_s"])[:OLDEST],
        "drains": {queue["queue"]: insight.drains_in(queue) for queue in waiting},
        "leases": moving["leases"][:LEASES],
        "detections": moving["detections"][:DETECTIONS],
        "workers": status["workers"],
        "changes": status["changes"][-DETECTIONS:][::-1],
        "flow": charts(call, call.query.window),
        "flow_path": "/",
        "flow_queue": None,
        "schema": schema.found,
        "duties": _duties(duties),
        "chores": CHORES,
    }


def _duties(views: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return each chore once, with all programs that do it now: each set of alerts is a duty of its own."""
    holders: dict[str, list[str]] = {}
    for view in views:
        found = holders.setdefault(view["duty"].partition(":")[0], [])
        if view["holder"] is not None and view["holder"] not in found:
            found.append(view["holder"])
    return [{"duty": name, "holders": found} for name, found in holders.items()]


def _page_of(call: Call, command: str) -> str | None:
    """Return the page on which a trouble can be looked into, if this server has it."""
    for beginning, path in _PAGES:
        if command.startswith(beginning) and call.server.pages.has(path):
            return path
    return None


ROUTES = (Page("overview", "/", show, query=WindowQuery, nav=True, key="o", shared_s=2.0),)
