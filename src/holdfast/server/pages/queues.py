"""Queues and their limits: what waits in each, how fast it drains, who paused it, and what may run at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta, Struct
from msgspec.structs import asdict

from holdfast import insight
from holdfast.core.limits import Setting, setting
from holdfast.core.machine import State
from holdfast.core.records import Filter, Job
from holdfast.errors import NotFound, UsageError
from holdfast.queues import choose_limits, pause_queue, resume_queue
from holdfast.server.call import Call
from holdfast.server.pages.charts import charts
from holdfast.server.pages.page import Context, Form, Page, note_of, see
from holdfast.server.routes import Answer
from holdfast.stores.rounds import together

SHOWN_MAX = 500
HOLDERS = 20  # running jobs of a queue that are shown
LIMITS = ("limit", "group_limit", "rate")

Name = Annotated[str, Meta(min_length=1, max_length=1000)]


class List(Struct):
    """`find`: a part of a name."""

    find: str | None = None


class One(Struct):
    """A queue, and the time of its charts."""

    queue: Name
    window: insight.Window = "hour"


class Act(Struct):
    """An act on a queue."""

    queue: Name
    note: str | None = None


class LimitAct(Struct):
    """Limits of a queue, as a person types them. An empty field means no limit. `clear`: the app decides."""

    queue: Name
    limit: str | None = None
    group_limit: str | None = None
    rate: str | None = None
    burst: str | None = None
    note: str | None = None
    clear: bool = False


def show(call: Call) -> Context:
    """Show the queues: those that need a person first, then by their oldest due job."""
    views = [view for view in insight.queue_views(call.store) if call.user.sees(view["queue"])]
    found = [view for view in views if _matches(view, call.query.find)]
    found.sort(key=lambda view: (-_need(view), -(view["oldest_due_s"] or 0.0), view["queue"]))
    shown = [{**view, "drains": insight.drains_in(view)} for view in found[:SHOWN_MAX]]
    return {"queues": shown, "number": len(found), "has_any": bool(views), "find": call.query.find or ""}


def _matches(view: Mapping[str, Any], text: str | None) -> bool:
    return text is None or text.casefold() in view["queue"].casefold()


def _need(view: Mapping[str, Any]) -> int:
    """Return how much a queue needs a person: no worker serves its due jobs, or it is paused."""
    return 2 * bool(view["oldest_due_s"] is not None and not view["served"]) + bool(view["paused"])


def show_one(call: Call) -> Context:
    """Show a queue with its charts, its limits and the jobs that run in it."""
    name = call.query.queue
    view = _view(call, name)
    where = Filter(queue=name, limit=HOLDERS)
    running, now = together(lambda: insight.find_jobs(call.store, [State.RUNNING.value], where), call.store.now)
    return {
        "queue": {**view, "drains": insight.drains_in(view)},
        "acts": ("resume" if view["paused"] else "pause",),
        "flow": charts(call, call.query.window, name),
        "flow_path": "/queues/one",
        "flow_queue": name,
        "running": [_holder(job, now.lease) for job in running],
        "has_limits": any(view[each] is not None for each in LIMITS),
    }


def _view(call: Call, name: str) -> dict[str, Any]:
    found = [view for view in insight.queue_views(call.store) if view["queue"] == name and call.user.sees(name)]
    if not found:
        raise NotFound(f"there is no queue {name!r}: it has no jobs, no limits and no worker")
    return found[0]


def _holder(job: Job, lease_now: float) -> dict[str, Any]:
    left_s = 0.0 if job.lease_until is None else job.lease_until - lease_now
    return {"id": job.id, "task": job.task, "group": job.group, "left_s": round(left_s, 1), "lease_s": job.lease_s}


def show_limits(call: Call) -> Context:
    """Show the queues that have limits, and how much of each is taken."""
    views = [view for view in insight.queue_views(call.store) if call.user.sees(view["queue"])]
    limited = [view for view in views if any(view[each] is not None for each in LIMITS)]
    return {
        "limits": limited[:SHOWN_MAX],
        "number": len(limited),
        "free": [view["queue"] for view in views][:SHOWN_MAX],
    }


def pause(call: Call) -> Answer:
    """Stop claims from a queue."""
    _check(call)
    pause_queue(call.store, call.body.queue, None, None, call.user.name, note_of(call, call.body.note))
    return see(call, "/queues/one", queue=call.body.queue, said="pause")


def resume(call: Call) -> Answer:
    """Let workers claim from a queue again."""
    _check(call)
    resume_queue(call.store, call.body.queue, None, call.user.name, note_of(call, call.body.note))
    return see(call, "/queues/one", queue=call.body.queue, said="resume")


def limit(call: Call) -> Answer:
    """Set the limits of a queue."""
    _check(call)
    body: LimitAct = call.body
    given = {} if body.clear else asdict(_chosen(body))
    choose_limits(call.store, body.queue, given, call.user.name, note_of(call, body.note), clear=True)
    return see(call, "/queues/one", queue=body.queue, said="cleared" if body.clear else "limit")


def _chosen(body: LimitAct) -> Setting:
    numbers = {name: _number(name, getattr(body, name)) for name in ("limit", "group_limit", "burst")}
    made = setting(numbers["limit"], numbers["group_limit"], body.rate)
    return made if numbers["burst"] is None else setting(made.limit, made.group_limit, body.rate, numbers["burst"])


def _number(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isascii() or not text.isdigit():
        raise UsageError(f"{name}={text!r} must be a whole number; leave the field empty for no limit")
    return int(text)


def _check(call: Call) -> None:
    call.need_queue(call.body.queue, f"queue {call.body.queue!r}")


ROUTES = (
    Page("queues", "/queues", show, query=List, nav=True, key="q"),
    Page("queue", "/queues/one", show_one, query=One),
    Form("queue", "/queues/pause", pause, Act),
    Form("queue", "/queues/resume", resume, Act),
    Form("queue", "/queues/limit", limit, LimitAct),
    Page("limits", "/limits", show_limits, nav=True, key="l"),
)
