"""Workflows: the list, and the steps of one on a time axis, with the deaths, waits and undos among them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from msgspec import Meta, Struct

from holdfast import insight
from holdfast.core.machine import State
from holdfast.core.records import Filter, Job, Step
from holdfast.insight.deaths import WAITS, StepDeath, death_view
from holdfast.insight.steps import Branch
from holdfast.server.call import Call
from holdfast.server.jobs import job_of
from holdfast.server.pages.page import Context, Page
from holdfast.stores.rounds import together

SHOWN = 50
LOOK_MAX = 1_000  # workflows that are read for a page of a user who sees some queues only
STEPS_SHOWN = 200
LEAST_WIDTH = 4.0  # of a bar, of 1000
TABS = ("", "running", "waiting", "held", "ready", "dead", "done", "rolled_back", "cancelled")

EXAMPLE = """@app.workflow
def checkout(flow: Flow, order_id: int) -> str:
    paid = flow.step(charge_card, order_id, undo=refund, repeatable=False)
    flow.wait("approval", timeout=86400)
    return flow.step(ship, order_id)"""


class List(Struct):
    """`state`: only workflows in it. `task`: only those of this task. `before`: the page after this workflow."""

    state: State | None = None
    task: Annotated[str, Meta(max_length=200)] | None = None
    before: Annotated[str, Meta(max_length=200)] | None = None


class One(Struct):
    """`from_step`: the number of the first step to show."""

    from_step: Annotated[int, Meta(ge=0, le=1_000_000)] = 0


# ---------------------------------------------------------------------------------------------- the list


def show(call: Call) -> Context:
    """Show workflows, newest first."""
    asked, store = call.query, call.store
    found, more = _page(call)
    now, names = together(store.now, lambda: insight.worker_names(store))
    return {
        "rows": [_row(job, now, names) for job in found],
        "tabs": [{"state": state, "is_here": state == (asked.state.value if asked.state else "")} for state in TABS],
        "task": asked.task or "",
        "state": asked.state.value if asked.state else "",
        "next": found[-1].id if more else None,
        "example": EXAMPLE,
        "is_first": asked.before is None,
    }


def _page(call: Call) -> tuple[list[Job], bool]:
    """Return a page of the list, and whether there are more."""
    asked, sees_all = call.query, call.user.queues is None
    states = () if asked.state is None else (asked.state,)
    most = SHOWN + 1 if sees_all else LOOK_MAX
    before = asked.before if asked.before and "\0" not in asked.before else None
    where = Filter(states=states, task=asked.task, workflow=True, limit=most, before=before)
    read = call.store.find(where)
    found = [job for job in read if call.user.sees(job.queue)]
    return found[:SHOWN], len(found) > SHOWN


def _row(job: Job, now: Any, names: insight.Names) -> dict[str, Any]:
    return {
        "id": job.id,
        "task": job.task,
        "queue": job.queue,
        "state": job.shown_state(now.wall),
        "line": insight.in_short(job, now, names),
        "attempt": job.attempt,
        "zombies": job.zombies,
        "rolling_back": job.rolling_back and job.state is not State.ROLLED_BACK,
        "created_at": job.created_at,
    }


# ----------------------------------------------------------------------------------------------- one


def show_one(call: Call) -> Context:
    """Show the steps of a workflow."""
    job, store = job_of(call, workflow=True), call.store
    why, events, now, names, steps = together(
        lambda: insight.explain(store, job),
        lambda: store.journal(job.id, limit=10_000),
        store.now,
        lambda: insight.worker_names(store),
        lambda: insight.steps_of(store, job, aside=True),
    )
    live = [step for step in insight.with_failures(job, steps, events) if not step.aside]
    tree = insight.as_tree([*live, *insight.unrecorded(job, live)])
    lost = insight.deaths(steps, events)
    first = min(call.query.from_step, max(0, len(tree) - 1))
    shown = tree[first : first + STEPS_SHOWN]
    axis = _Axis(job, [branch.step for branch in shown if branch.step], now.wall)
    coming = insight.ahead(job, steps)
    return {
        "job": job,
        "state": job.shown_state(now.wall),
        "why": why.sentence,
        "far": insight.progress_of(store, job, steps),
        "lanes": [_lane(branch, axis, lost, names, coming) for branch in shown],
        "span": (axis.first, axis.last),
        "first": first,
        "number": len(tree),
        "most": STEPS_SHOWN,
        "aside": sum(bool(step.aside) for step in steps),
        "deaths": [death_view(each, names.get(each.event.worker or "", each.event.worker)) for each in lost],
        "signals": [event for event in events if event.kind == "signalled"],
        "warnings": [insight.in_words(each) for each in insight.warnings_of(events)],
        "undoes": job.rolling_back or job.state is State.ROLLED_BACK,
    }


class _Axis:
    """Places instants on an axis that is 1000 wide, from the first step shown to the last, or to now."""

    def __init__(self, job: Job, steps: Sequence[Step], now: float) -> None:
        self.now = now
        ends = [each for step in steps for each in (step.ended_at, step.undone_at) if each is not None]
        begins = [step.started_at for step in steps if step.started_at is not None]
        self.first = min([*begins, *ends], default=job.claimed_at or job.created_at)
        is_live = job.state in (State.RUNNING, State.WAITING)
        self.last = now if is_live else max([*ends, *begins], default=self.first)
        self._scale = 1000.0 / max(self.last - self.first, 0.001)

    def at(self, instant: float) -> float:
        return round(min(1000.0, max(0.0, (instant - self.first) * self._scale)), 1)


def _lane(
    branch: Branch,
    axis: _Axis,
    lost: Sequence[StepDeath],
    names: insight.Names,
    coming: dict[str, str],
) -> dict[str, Any]:
    step = branch.step
    if step is None:
        return {"step": None, "label": branch.label, "depth": branch.depth}
    died = [death for death in lost if insight.is_at(death.step, step)]
    return {
        "step": step,
        "depth": branch.depth,
        "state": "failed" if step.error is not None and step.state == "recorded" else insight.state_of(step),
        "label": step.name if step.kind in ("step", step.name) else f"{step.kind} {step.name}",
        "is_wait": step.kind in WAITS or step.kind == "sleep",
        "bar": _bar(step, axis),
        "undone": None if step.undone_at is None else axis.at(step.undone_at),
        "deaths": [axis.at(death.event.at) for death in died],
        "died": [death_view(each, names.get(each.event.worker or "", each.event.worker)) for each in died],
        "took_s": _took_s(step),
        "result": step.result if step.state != "started" and step.error is None else None,
        "ahead": coming.get(step.path),
    }


def _took_s(step: Step) -> float | None:
    if step.started_at is None or step.ended_at is None:
        return None
    return max(0.0, step.ended_at - step.started_at)


def _bar(step: Step, axis: _Axis) -> tuple[float, float] | None:
    """Return where the bar of a step begins and how wide it is; None: nothing is known of its time."""
    begin = step.started_at if step.started_at is not None else step.ended_at
    if begin is None:
        return None
    end = step.ended_at if step.ended_at is not None else axis.now
    left, right = axis.at(begin), axis.at(end)
    left = min(left, 1000.0 - LEAST_WIDTH)
    return left, max(LEAST_WIDTH, right - left)


ROUTES = (
    Page("workflows", "/workflows", show, query=List, nav=True, key="f"),
    Page("workflow", "/workflows/{id}", show_one, query=One),
)
