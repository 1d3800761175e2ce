"""Queues, workers, schedules, tasks, workflows, zombies and the journal over HTTP; reap and tick."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from holdfast import insight
from holdfast.acts.store import fire_schedule, note_forgotten
from holdfast.acts.store import pause_schedule as pause_one
from holdfast.acts.workers import order_workers, resume_workers
from holdfast.clock import SystemClock
from holdfast.core.limits import setting
from holdfast.core.records import EventKind, Filter, OrderAct, Schedule
from holdfast.core.text import check_storable
from holdfast.core.worker_exit import WorkerExit
from holdfast.errors import NotFound, UsageError
from holdfast.ids import new_job_id
from holdfast.queues import choose_limits, pause_queue, queue_named, resume_queue
from holdfast.server.call import Call
from holdfast.server.jobs import RetryActBody, Text, _acting, _view, job_of
from holdfast.server.problems import Problem
from holdfast.server.routes import Answer
from holdfast.upkeep.reaper import reap as reap_once

TICK_MAX_S = 50.0
SINCE_MAX_S = 30 * 86_400.0
EVENTS_MAX = 1_000


class QueueBody(msgspec.Struct, forbid_unknown_fields=True):
    """A queue, or a group in it."""

    queue: str
    group: str | None = None
    until: datetime | None = None
    note: Text | None = None


class LimitBody(msgspec.Struct, forbid_unknown_fields=True):
    """Limits of a queue. Those that are left out stay; null means no limit."""

    queue: str
    limit: int | UnsetType | None = UNSET
    group_limit: int | UnsetType | None = UNSET
    rate: str | UnsetType | None = UNSET
    burst: int | UnsetType = UNSET
    clear: bool = False
    note: Text | None = None


class WorkersBody(msgspec.Struct, forbid_unknown_fields=True):
    """The name of workers, or of a supervisor and so of its children."""

    name: str
    note: Text | None = None


class KeyBody(msgspec.Struct, forbid_unknown_fields=True):
    """A schedule."""

    key: str
    note: Text | None = None


class SignalBody(msgspec.Struct, forbid_unknown_fields=True):
    """A message for a workflow. `id`: the sender's own; each workflow gets one signal of that id."""

    name: str
    value: Any = None
    id: str | None = None
    note: Text | None = None


class StepBody(RetryActBody, forbid_unknown_fields=True):
    """A step of a workflow, by its name or path."""

    step: str = ""


class ForkBody(msgspec.Struct, forbid_unknown_fields=True):
    """A new workflow that begins with what an ended one has recorded before a step."""

    step: str
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    note: Text | None = None
    repeat_step: bool = False


class ReapBody(msgspec.Struct, forbid_unknown_fields=True):
    """A pass of the reaper."""

    dry_run: bool = False
    grace_s: Annotated[float, Meta(ge=0, le=86_400)] = 0.0


class TickBody(msgspec.Struct, forbid_unknown_fields=True):
    """Run what is due, for a time."""

    budget_s: Annotated[float, Meta(ge=0.1, le=TICK_MAX_S)] = 25.0
    queues: list[str] = []
    slots: Annotated[int, Meta(ge=1, le=1_000)] = 20


class WorkersQuery(msgspec.Struct, forbid_unknown_fields=True):
    """`gone`: also workers that stopped or died."""

    gone: bool = False


class LimitQuery(msgspec.Struct, forbid_unknown_fields=True):
    """The number of newest things to list."""

    limit: Annotated[int, Meta(ge=1, le=EVENTS_MAX)] = 100


class SinceQuery(msgspec.Struct, forbid_unknown_fields=True):
    """The time to look back."""

    since_s: Annotated[float, Meta(ge=1, le=SINCE_MAX_S)] = 86_400.0


class SeriesQuery(msgspec.Struct, forbid_unknown_fields=True):
    """A window. `queue`: only this one."""

    window: insight.Window = "hour"
    queue: Annotated[str, Meta(max_length=200)] | None = None


class ErrorsQuery(msgspec.Struct, forbid_unknown_fields=True):
    """The time to look back. `task`: only errors of this task."""

    since_s: Annotated[float, Meta(ge=1, le=SINCE_MAX_S)] = 86_400.0
    task: Annotated[str, Meta(max_length=200)] | None = None
    limit: Annotated[int, Meta(ge=1, le=EVENTS_MAX)] = 100


class JournalQuery(msgspec.Struct, forbid_unknown_fields=True):
    """A page of the journal: the newest events, or those before a `seq`."""

    kinds: tuple[EventKind, ...] = ()
    before: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    limit: Annotated[int, Meta(ge=1, le=EVENTS_MAX)] = 100


class AuditQuery(msgspec.Struct, forbid_unknown_fields=True):
    """A page of the acts of people: the newest, or those before a `seq`. `by`: only those of this person."""

    by: Text | None = None
    since_s: Annotated[float, Meta(ge=1)] | None = None
    before: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    limit: Annotated[int, Meta(ge=1, le=EVENTS_MAX)] = 100


class BeforeQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Events before a `seq`."""

    before: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None


# -------------------------------------------------------------------------------------------- queues


def queues(call: Call) -> dict[str, Any]:
    """List the queues, as `queues list --json` does."""
    return {"items": [view for view in insight.queue_views(call.store) if call.user.sees(view["queue"])]}


def _instant(until: datetime | None) -> datetime | None:
    if until is not None and until.utcoffset() is None:
        raise Problem("invalid", "until needs a time zone, such as 2030-01-31T08:00:00Z", pointer="/until")
    return until


def pause(call: Call) -> dict[str, Any]:
    """Stop claims from a queue or of a group in it."""
    body: QueueBody = call.body
    call.need_queue(body.queue, f"queue {body.queue!r}")
    pause_queue(call.store, body.queue, body.group, _instant(body.until), call.user.name, body.note)
    return {"queue": body.queue, "group": body.group, "paused": True}


def resume(call: Call) -> dict[str, Any]:
    """Let workers claim from a queue or of a group in it again."""
    body: QueueBody = call.body
    call.need_queue(body.queue, f"queue {body.queue!r}")
    resume_queue(call.store, body.queue, body.group, call.user.name, body.note)
    return {"queue": body.queue, "group": body.group, "paused": False}


def limits(call: Call) -> dict[str, Any]:
    """List the queues for which something is set, with what runs in them."""
    store, wall = call.store, call.store.now().wall
    found = [queue for queue in store.queues() if call.user.sees(queue.name)]
    return {
        "items": [
            {"queue": queue.name, "running": store.places(queue.name).queue, **insight.limits_view(queue, wall)}
            for queue in found
        ]
    }


def limit(call: Call) -> dict[str, Any]:
    """Set limits of a queue that win over what the app declares."""
    body: LimitBody = call.body
    call.need_queue(body.queue, f"queue {body.queue!r}")
    made = msgspec.structs.asdict(setting(body.limit, body.group_limit, body.rate, body.burst))
    given = {name: value for name, value in made.items() if value is not UNSET}
    if given or body.clear:
        choose_limits(call.store, body.queue, given, call.user.name, body.note, clear=body.clear)
    found = queue_named(call.store, body.queue)
    return {"queue": body.queue, **insight.limits_view(found, call.store.now().wall)}


# ------------------------------------------------------------------------------------------- workers


def workers(call: Call) -> dict[str, Any]:
    """List the workers, as `workers list --json` does."""
    views = insight.worker_views(call.store, gone=call.query.gone)
    return {"items": [view for view in views if serves(call, view["queues"])]}


def serves(call: Call, queues: list[str]) -> bool:
    """Say whether a worker of these queues serves one that the user sees."""
    return call.user.queues is None or any(call.user.sees(queue) for queue in queues)


def gone(call: Call) -> dict[str, Any]:
    """Declare a worker dead that its people know to be dead. Its jobs are recovered; a living one enrols again."""
    worker_id = call.path["id"]
    known = [worker for worker in call.store.workers() if worker.id == worker_id]
    if not known or not all(map(call.user.sees, known[0].queues)):
        raise NotFound(f"there is no living worker {worker_id!r}")
    how = WorkerExit("exit")
    note_forgotten(call.store, known[0], call.user.name, None)
    retired = call.store.retire(worker_id, f"{call.user.name} said that it is dead", how=how)
    return {"id": worker_id, "retired": retired}


def drain(call: Call) -> dict[str, Any]:
    """Ask workers of a name to claim no more, until they are resumed."""
    return _ordered(call, "drain")


def stop(call: Call) -> dict[str, Any]:
    """Ask workers of a name to stop, and those that come later, until they are resumed."""
    return _ordered(call, "stop")


def _ordered(call: Call, act: OrderAct) -> dict[str, Any]:
    reached = order_workers(call.store, call.body.name, act, call.user.name, call.body.note)
    return {"name": call.body.name, "order": act, "workers": [worker.id for worker in reached]}


def resume_orders(call: Call) -> dict[str, Any]:
    """Take back what workers of a name, and their children, were asked."""
    return {"names": resume_workers(call.store, call.body.name, call.user.name, call.body.note)}


def tasks(call: Call) -> dict[str, Any]:
    """List the tasks that workers have published, as `tasks list --json` does."""
    return {"items": [view for view in insight.task_views(call.store) if call.user.sees(view["queue"])]}


# ----------------------------------------------------------------------------------------- schedules


def schedules(call: Call) -> dict[str, Any]:
    """List the schedules, as `schedules list --json` does."""
    return {"items": [view for view in insight.schedule_views(call.store) if call.user.sees(view["queue"])]}


def schedule_of(call: Call) -> Schedule:
    """Return the schedule that the body names, if it is in the scope of the user. Raises `NotFound`."""
    for each in call.store.schedules([call.body.key]):
        if call.user.sees(each.job.queue):
            return each
    raise NotFound(f"there is no schedule {call.body.key!r}")


def pause_schedule(call: Call) -> dict[str, Any]:
    """Stop a schedule."""
    found = schedule_of(call)
    pause_one(call.store, found.key, True, call.user.name, call.body.note)
    return {"key": found.key, "paused": True}


def resume_schedule(call: Call) -> dict[str, Any]:
    """Fire a schedule again, from the next instant on."""
    found = schedule_of(call)
    pause_one(call.store, found.key, False, call.user.name, call.body.note)
    return {"key": found.key, "paused": False}


def fire(call: Call) -> Answer:
    """Enqueue the job of a schedule now."""
    found = schedule_of(call)
    added = fire_schedule(call.store, found, new_job_id(SystemClock()), call.user.name, call.body.note)
    call.store.wake()
    return Answer({"id": added.id, "existed": added.existed}, 200 if added.existed else 201)


# ----------------------------------------------------------------------------------------- workflows


def workflow(call: Call) -> dict[str, Any]:
    """Show a workflow with its steps, as `workflows show --json` does."""
    row = job_of(call, workflow=True)
    events, names = call.store.journal(row.id), insight.worker_names(call.store)
    return {**insight.job_story(call.store, row), **insight.workflow_view(call.store, row, events, names)}


def signal(call: Call) -> dict[str, Any]:
    """Send a signal to a workflow."""
    row, body = job_of(call), call.body
    accepted = call.app.signal(row.id, body.name, body.value, by=call.user.name, note=body.note, signal_id=body.id)
    return {"id": row.id, "answer": "accepted" if accepted else "already"}


@_acting
def retry_from(call: Call, row: Any) -> object:
    """Run a workflow again from a step."""
    body: StepBody = call.body
    if not body.step:
        raise Problem("invalid", "name the step to run again first", pointer="/step")
    given = {"by": call.user.name, "note": body.note, "fence": row.fence}
    return call.app.retry_from(row.id, body.step, repeat_step=body.repeat_step, **given)


@_acting
def rollback(call: Call, row: Any) -> object:
    """Undo what a workflow did."""
    return call.app.rollback(row.id, by=call.user.name, note=call.body.note, fence=row.fence)


def fork(call: Call) -> Answer:
    """Start a new workflow with the first steps of an ended one."""
    row, body = job_of(call, workflow=True), call.body
    more = {"by": call.user.name, "note": body.note, "repeat_step": body.repeat_step}
    job = call.app.fork(row.id, body.step, args=body.args, kwargs=body.kwargs, **more)
    return Answer(_view(call, job.row), 201)


def batches(call: Call) -> dict[str, Any]:
    """List the batches that were opened last, as `batches list --json` does."""
    return {"items": insight.batch_views(call.store, call.query.limit)}


def batch(call: Call) -> dict[str, Any]:
    """Show a batch with its jobs by state."""
    check_storable(200, id=call.path["id"])
    return insight.batch_view(call.store, call.path["id"])


# -------------------------------------------------------------------------- zombies, journal, chores


def zombies(call: Call) -> dict[str, Any]:
    """Look back at attempts that lost their worker, as `zombies --json` does."""
    return insight.zombies_view(insight.look_back(call.store, call.query.since_s))


def alerts(call: Call) -> dict[str, Any]:
    """Show what alerts have reported, and their rules."""
    return insight.alerts_view(call.store)


def duties(call: Call) -> dict[str, Any]:
    """List the chores of the fleet, and who does them."""
    return {"items": insight.duty_views(call.store)}


def series(call: Call) -> dict[str, Any]:
    """Show how many jobs came and ended, and how long they waited and ran: the queues that the user sees."""
    query: SeriesQuery = call.query
    check_storable(queue=query.queue)
    return insight.series_view(call.store, query.window, query.queue, call.user.sees)


def errors(call: Call) -> dict[str, Any]:
    """Group the errors of jobs by their fingerprint, as `errors --json` does."""
    query: ErrorsQuery = call.query
    check_storable(task=query.task)
    task = None if query.task is None else insight.task_named(call.store, query.task)
    return {"items": insight.error_views(call.store, call.store.now().wall - query.since_s, task, query.limit)}


def journal(call: Call) -> dict[str, Any]:
    """Show a page of the journal, oldest first; the page before has smaller numbers."""
    query: JournalQuery = call.query
    events = call.store.journal(None, query.kinds, query.limit, before=query.before)
    queues = queues_of(call, {event.job_id for event in events})
    names = insight.worker_names(call.store)
    items = [
        {"seq": event.seq, "job": event.job_id or None, **insight.event_view(event, names)}
        for event in events
        if call.user.queues is None or call.user.sees(queues.get(event.job_id, ""))
    ]
    return {"items": items, "before": events[0].seq if len(events) == query.limit else None}


def audit(call: Call) -> dict[str, Any]:
    """Show what people did, newest first, as `audit --json` does."""
    query: AuditQuery = call.query
    check_storable(by=query.by)
    since = None if query.since_s is None else call.store.now().wall - query.since_s
    found = insight.acts_of_people(call.store, since, query.by, query.limit, query.before)
    queues = queues_of(call, {act.job_id for act in found if act.job_id is not None})
    shown = [act for act in found if call.user.queues is None or call.user.sees(queues.get(act.job_id or "", ""))]
    return {
        "items": [insight.act_view(act) for act in shown],
        "before": found[-1].seq if len(found) == query.limit else None,
    }


def queues_of(call: Call, job_ids: set[str]) -> dict[str, str]:
    """Return the queue of each of these jobs, for a user with a scope."""
    if call.user.queues is None:
        return {}
    ids = tuple(sorted(job_id for job_id in job_ids if job_id))
    return {row.id: row.queue for row in call.store.find(Filter(ids=ids, limit=len(ids) or 1))}


def stats(call: Call) -> dict[str, Any]:
    """Count what waits and runs, by queue: `queues.NAME.ready` and `queues.NAME.oldest_due_s` are for autoscalers."""
    shown = [view for view in insight.queue_views(call.store) if call.user.sees(view["queue"])]
    slots = sum(view["slots"] for view in insight.worker_views(call.store) if serves(call, view["queues"]))
    return {
        "slots": slots,
        "queues": {
            view["queue"]: {
                **{state: view[state] for state in ("ready", "running", "waiting", "held", "dead")},
                "oldest_due_s": view["oldest_due_s"],
                "paused": view["paused"],
            }
            for view in shown
        },
    }


def reap(call: Call) -> dict[str, Any]:
    """Make one pass of the reaper, as `scan --json` does."""
    body: ReapBody = call.body
    app = call.app
    report = reap_once(app.store, app.clock, hooks=app.hooks, grace_s=body.grace_s, fix=not body.dry_run)
    return insight.scan_view(report, app.store.now(), fixed=not body.dry_run)


async def tick(call: Call) -> dict[str, Any]:
    """Claim and run what is due within a budget, on a thread of its own; one at a time."""
    server, body = call.server, call.body
    if not server.has_app:
        raise Problem("no_app", "this server was started without APP, so it has no task to run")
    if server.ticking.locked():
        raise Problem("busy", "a tick is under way; call again when it has ended")
    async with server.ticking:
        try:
            report = await asyncio.to_thread(
                server.app.tick, budget_s=body.budget_s, queues=body.queues, slots=body.slots
            )
        except UsageError as error:
            raise Problem("invalid", str(error)) from None
    return {name: getattr(report, name) for name in report.__struct_fields__ if _is_plain(getattr(report, name))}


def _is_plain(value: Any) -> bool:
    return isinstance(value, int | float | str | bool | type(None))
