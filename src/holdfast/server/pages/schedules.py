"""Schedules: when each fired last, what became of it, when it fires next, and which instants were missed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta, Struct

from holdfast import insight
from holdfast.acts.store import fire_schedule, pause_schedule
from holdfast.clock import SystemClock
from holdfast.errors import NotFound
from holdfast.ids import new_job_id
from holdfast.server.call import Call
from holdfast.server.fleet import schedule_of
from holdfast.server.pages.page import Context, Form, Page, note_of, see
from holdfast.server.routes import Answer

SHOWN_MAX = 500
Key = Annotated[str, Meta(min_length=1, max_length=1000)]


class List(Struct):
    """`find`: a part of a key or of a task."""

    find: str | None = None


class One(Struct):
    """A schedule."""

    key: Key


class Act(Struct):
    """An act on a schedule."""

    key: Key
    note: str | None = None


def show(call: Call) -> Context:
    """Show the schedules, late ones first, then by the next instant."""
    views = [view for view in insight.schedule_views(call.store) if call.user.sees(view["queue"])]
    found = [view for view in views if _matches(view, call.query.find)]
    found.sort(key=lambda view: (-(view["late_s"] or 0), view["next"] is None, view["next"] or "", view["key"]))
    shown = [{**view, "words": insight.when(view)} for view in found[:SHOWN_MAX]]
    return {"schedules": shown, "number": len(found), "has_any": bool(views), "find": call.query.find or ""}


def _matches(view: Mapping[str, Any], text: str | None) -> bool:
    return text is None or text.casefold() in f"{view['key']} {view['task']}".casefold()


def show_one(call: Call) -> Context:
    """Show a schedule with its next instants and the newest jobs of its task."""
    views = insight.schedule_views(call.store, [call.query.key])
    if not views or not call.user.sees(views[0]["queue"]):
        raise NotFound(f"there is no schedule {call.query.key!r}")
    [view] = views
    return {
        "schedule": {**view, "words": insight.when(view)},
        "coming": insight.next_runs(view, call.store.now().wall),
        "jobs": insight.schedule_jobs(call.store, view),
        "acts": ("resume" if view["paused"] else "pause", "fire"),
    }


def pause(call: Call) -> Answer:
    """Stop a schedule."""
    return _paused(call, True)


def resume(call: Call) -> Answer:
    """Fire a schedule again, from the next instant on."""
    return _paused(call, False)


def _paused(call: Call, paused: bool) -> Answer:
    found = schedule_of(call)
    pause_schedule(call.store, found.key, paused, call.user.name, note_of(call, call.body.note))
    return see(call, "/schedules/one", key=found.key, said="pause" if paused else "resume")


def fire(call: Call) -> Answer:
    """Enqueue the job of a schedule now."""
    found = schedule_of(call)
    fire_schedule(call.store, found, new_job_id(SystemClock()), call.user.name, note_of(call, call.body.note))
    call.store.wake()
    return see(call, "/schedules/one", key=found.key, said="fire")


ROUTES = (
    Page("schedules", "/schedules", show, query=List, nav=True, key="s"),
    Page("schedule", "/schedules/one", show_one, query=One),
    Form("schedule", "/schedules/pause", pause, Act),
    Form("schedule", "/schedules/resume", resume, Act),
    Form("schedule", "/schedules/fire", fire, Act),
)
