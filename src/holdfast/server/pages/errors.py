"""Errors: attempts that failed, grouped by task and fingerprint, over time; and the dead jobs of a group, revived."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from holdfast import insight
from holdfast.acts.mass import MassAct, act_on_selected
from holdfast.core.machine import State
from holdfast.errors import NotFound
from holdfast.server.call import Call
from holdfast.server.pages.page import Context, Form, Page, counted_in, note_of, see
from holdfast.server.problems import Problem
from holdfast.server.routes import Answer
from holdfast.stores.rounds import together

Window = Literal["hour", "day", "week", "month"]
WINDOWS: Mapping[Window, float] = {"hour": 3_600.0, "day": 86_400.0, "week": 7 * 86_400.0, "month": 30 * 86_400.0}
GROUPS_MAX = 200
BARS = 12  # of a picture over time; each costs one small read of the counts of errors
PER_S = 10.0  # how many jobs of a group start each second, unless a person says otherwise
SPREAD_MAX_S = 7 * 86_400.0
JOBS = 50  # dead jobs of a group that are shown

Text = Annotated[str, Meta(min_length=1, max_length=1000)]


class List(Struct):
    """`window`: the time to look back. `find`: a part of a task or of a message."""

    window: Window = "day"
    find: str | None = None


class One(Struct):
    """A group of errors."""

    task: Text
    error: Text
    window: Window = "day"


class Act(Struct):
    """The dead jobs of a group, of which a person has seen `expect`. `per_s`: how many start each second; None: all."""

    task: Text
    error: Text
    expect: Annotated[int, Meta(ge=1)]
    per_s: float | None = None
    note: str | None = None


def show(call: Call) -> Context | Answer:
    """Show the groups, the most attempts first."""
    if call.user.queues is not None:  # an error belongs to a task, and not to a queue
        return see(call, "/jobs", state="dead")
    window: Window = call.query.window
    pictures = _over_time(call, window)
    groups = [{**view, "bars": pictures.get(_key(view), [])} for view in _views(call, WINDOWS[window])]
    found = [view for view in groups if _matches(view, call.query.find)]
    return {
        "groups": found,
        "is_cut": len(groups) == GROUPS_MAX,
        "attempts": sum(view["attempts"] for view in found),
        "has_any": bool(groups),
        "find": call.query.find or "",
        "window": window,
        "windows": WINDOWS,
    }


def _views(call: Call, since_s: float, task: str | None = None) -> list[dict[str, Any]]:
    return insight.error_views(call.store, call.store.now().wall - since_s, task, GROUPS_MAX)


def _key(view: Mapping[str, Any]) -> tuple[str, str]:
    return view["task"], view["fingerprint"]


def _over_time(call: Call, window: Window, task: str | None = None) -> dict[tuple[str, str], list[int]]:
    """Return how many attempts each group has in each part of the window, the oldest first.

    The store counts errors since an instant, so a part has what one count has more than the next one.
    """
    step_s = WINDOWS[window] / BARS
    counts = together(*(partial(_views, call, step_s * part, task) for part in range(BARS, 0, -1)))
    since = [{_key(view): view["attempts"] for view in views} for views in counts]
    later = [*since[1:], {}]
    return {
        key: [max(0, here.get(key, 0) - then.get(key, 0)) for here, then in zip(since, later, strict=True)]
        for key in since[0]
    }


def _matches(view: Mapping[str, Any], text: str | None) -> bool:
    said = (view["task"], view["kind"], view["message"], view["origin"] or "")
    return text is None or text.casefold() in " ".join(said).casefold()


def show_one(call: Call) -> Context | Answer:
    """Show a group with its dead jobs, and count them for those who may revive them."""
    if call.user.queues is not None:
        return see(call, "/jobs", state="dead")
    query: One = call.query
    found = [view for view in _views(call, WINDOWS["month"], query.task) if view["fingerprint"] == query.error]
    if not found:
        raise NotFound("no error of this task with this fingerprint in the last 30 days")
    chosen = _chosen(query)
    listing = act_on_selected(call.store, MassAct(name="revive", actor=call.user.name), chosen, dry_run=True)
    pictures = _over_time(call, query.window, query.task)
    return {
        "group": {**found[0], "bars": pictures.get((query.task, query.error), [0] * BARS)},
        "jobs": insight.first_selected(call.store, chosen, JOBS),
        "count": listing.count,
        "per_s": PER_S,
        "left_alone": len(listing.left_alone),
        "window": query.window,
        "windows": WINDOWS,
    }


def _chosen(of: One | Act) -> insight.Selection:
    return insight.Selection(states=(State.DEAD.value,), task=of.task, error=of.error)


def revive(call: Call) -> Answer:
    """Run the dead jobs of a group again, if they are as many as the person has seen."""
    body: Act = call.body
    said = MassAct(name="revive", actor=call.user.name, note=note_of(call, body.note), per_s=body.per_s)
    count = act_on_selected(call.store, said, _chosen(body), dry_run=True).count
    if count != body.expect:
        raise Problem("state_changed", f"{count} jobs match by now, and you saw {body.expect}; nothing was changed")
    if body.per_s is not None and count / body.per_s > SPREAD_MAX_S:
        raise Problem(
            "invalid", f"{count:,} jobs at {body.per_s:g} a second take more than a week; choose a higher rate"
        )
    act_on_selected(call.store, said, _chosen(body))
    return see(call, "/errors/one", task=body.task, error=body.error, said="revive")


ROUTES = (
    Page("errors", "/errors", show, query=List, nav=True, key="e", badge=counted_in(State.DEAD)),
    Page("error", "/errors/one", show_one, query=One),
    Form("error", "/errors/revive", revive, Act, scope="whole"),
)
