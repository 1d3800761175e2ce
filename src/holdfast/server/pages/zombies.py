"""Zombies: leases that run down, how deaths were found and how soon, false alarms, and a scan with its fix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

from holdfast import insight
from holdfast.insight.live import live_view
from holdfast.server.call import Call
from holdfast.server.pages.page import Context, Form, Page, see
from holdfast.server.routes import Answer
from holdfast.stores.rounds import together
from holdfast.upkeep.reaper import reap

Window = Literal["hour", "day", "week"]
WINDOWS: Mapping[Window, float] = {"hour": 3_600.0, "day": 86_400.0, "week": 7 * 86_400.0}
LEASES = 50  # with the least time left
SHOWN_MAX = 50  # of each other list
# The times to detect that stand together. Some are promises (P8): a death that a supervisor has seen, one on the same
# SQLite file, one on a server, and one over HTTP.
BOUNDS = (0.1, 0.25, 1.0, 3.0, 5.0, 10.0, 30.0, 60.0)
PROMISED = (0.25, 1.0, 3.0, 5.0)


class Query(Struct):
    """The time to look back."""

    window: Window = "day"


class Nothing(Struct):
    """A form without fields."""


def show(call: Call) -> Context | Answer:
    """Show what runs down now, and what was lost in the window."""
    if call.user.queues is not None:
        return see(call, "/jobs", state="running")
    window: Window = call.query.window
    look, moving = together(lambda: insight.look_back(call.store, WINDOWS[window]), lambda: live_view(call.store))
    view = insight.zombies_view(look)
    lost = insight.lost_views(look, limit=SHOWN_MAX)
    times = [each.silent_s for each in look.found if each.silent_s is not None]
    return {
        "window": window,
        "windows": WINDOWS,
        "leases": moving["leases"][:LEASES],
        "look": view,
        "lost": lost,
        "histogram": histogram(times),
        "repeats": view["repeat_offenders"][:SHOWN_MAX],
        "groups": view["groups"][:SHOWN_MAX],
        "storms": view["storms"][:SHOWN_MAX],
    }


def histogram(times: Sequence[float]) -> list[dict[str, Any]]:
    """Return how many deaths were found within each bound and not within the one before; None: later than all."""
    found, least = [], 0.0
    for bound in (*BOUNDS, None):
        number = sum(least < each and (bound is None or each <= bound) for each in (max(each, 1e-9) for each in times))
        found.append({"bound": bound, "number": number, "is_promised": bound in PROMISED})
        least = bound or least
    return found


def show_scan(call: Call) -> Context | Answer:
    """Show what a scan would do now. It changes nothing."""
    if call.user.queues is not None:
        return see(call, "/jobs", state="running")
    app = call.app
    report = reap(app.store, app.clock, hooks=app.hooks, fix=False)
    return {"scan": insight.scan_view(report, app.store.now(), fixed=False)}


def fix(call: Call) -> Answer:
    """Settle every attempt that is lost now. Each is compared with what the scan reads of it."""
    app = call.app
    report = reap(app.store, app.clock, hooks=app.hooks, fix=True)
    view = insight.scan_view(report, app.store.now(), fixed=True)
    return see(call, "/zombies", said="fixed" if view["zombies_recovered"] else "fixed_none")


ROUTES = (
    Page("zombies", "/zombies", show, query=Query, nav=True, key="z"),
    Page("scan", "/zombies/scan", show_scan),
    Form("zombies", "/zombies/fix", fix, Nothing, scope="whole"),
)
