"""Jobs over HTTP: enqueue, list, show, and acts of people on one job or on all that match."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from itertools import islice
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import replace

from holdfast import insight
from holdfast.acts.mass import PRIORITY_MAX, ActName, MassAct, carry_out, decided, deletable, needs_own_act, with_states
from holdfast.bulk import delete_all
from holdfast.core import acts
from holdfast.core.dependencies import AfterFailed
from holdfast.core.machine import State
from holdfast.core.policy import Jitter, OnCrash, Retry
from holdfast.core.records import Detector, Job, KeyScope, OnTaken, Seen
from holdfast.enqueueing.by_name import draft_of, task_named
from holdfast.errors import HoldfastError, IllegalMove, NotFound, Refused
from holdfast.insight import Selection
from holdfast.server.call import Call
from holdfast.server.new_jobs import need_own_jobs
from holdfast.server.problems import Problem, problem_of
from holdfast.server.routes import Answer
from holdfast.tasks import Draft

BATCH_MAX = 1_000
PAGE_MAX = 500
PAGE_BYTES = 8 << 20  # of results and errors in a page
COUNT_MAX = 10_000
SLICE = 500
SCAN_PAGES = 20  # read for one page of a token with several queues
ANCHORS = 10  # jobs that a cursor names: the last of them may be deleted
_TRACEPARENT = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")

Text = Annotated[str, Meta(max_length=10_000)]


class RetryBody(msgspec.Struct, forbid_unknown_fields=True):
    """The number of tries of a job, and the pauses between them."""

    attempts_max: int = 10
    base_s: float = 5.0
    cap_s: float = 3600.0
    jitter: Jitter = "equal"


class NewJobBody(msgspec.Struct, forbid_unknown_fields=True):
    """A job to enqueue. The task declares the rest."""

    task: str
    args: list[Any] | UnsetType = UNSET
    kwargs: dict[str, Any] | UnsetType = UNSET
    queue: str | None = None
    key: str | None = None
    key_scope: KeyScope | float | None = None
    on_taken: OnTaken | None = None
    wait_max: float | None = None
    expires_s: float | None = None
    tags: list[str] | None = None
    meta: dict[str, str] | None = None
    after: list[str] | None = None
    after_failed: AfterFailed | None = None
    group: str | None = None
    priority: int | None = None
    run_at: datetime | None = None
    delay_s: float | None = None
    id: str | None = None
    on_crash: OnCrash | None = None
    crashes_max: int | None = None
    retry: RetryBody | None = None
    lease_s: float | None = None
    timeout_s: float | None = None
    stall_s: float | None = None


class BulkBody(msgspec.Struct, forbid_unknown_fields=True):
    """Many jobs, stored all or none."""

    jobs: Annotated[list[NewJobBody], Meta(min_length=1, max_length=BATCH_MAX)]


class Added(msgspec.Struct):
    """One job of many that were enqueued."""

    id: str
    existed: bool


class ListQuery(msgspec.Struct, forbid_unknown_fields=True):
    """The filter of a list of jobs."""

    state: tuple[str, ...] = ()
    queue: str | None = None
    task: str | None = None
    key: str | None = None
    group: str | None = None
    worker: str | None = None
    workflow: bool | None = None
    error: str | None = None
    release: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    crashed: bool = False
    detector: Detector | None = None
    tag: tuple[str, ...] = ()
    meta: tuple[str, ...] = ()  # each NAME=VALUE
    limit: Annotated[int, Meta(ge=1, le=PAGE_MAX)] = 50
    cursor: str | None = None
    integers: Literal["number", "string"] = "number"


class ShowQuery(msgspec.Struct, forbid_unknown_fields=True):
    """The form of an answer. `integers=string`: integers beyond 2^53 as text, which JavaScript would round."""

    integers: Literal["number", "string"] = "number"


class ActBody(msgspec.Struct, forbid_unknown_fields=True):
    """An act on a job. `state` and `fence` are those that the person saw; the act counts only for that job."""

    state: str | None = None
    fence: int | None = None
    note: Text | None = None


class RetryActBody(ActBody, forbid_unknown_fields=True):
    """An act that runs a job again. `repeat_step`: also steps that must not be repeated and may have happened."""

    repeat_step: bool = False


class ResolveBody(ActBody, forbid_unknown_fields=True):
    """The answer of a person about a held job."""

    answer: acts.Choice = "retry"
    result: Any = UNSET


class MoveBody(ActBody, forbid_unknown_fields=True):
    """Change when a ready job runs, or from which queue."""

    to_queue: str | None = None
    priority: int | None = None
    run_at: datetime | None = None


class ActFilter(msgspec.Struct, forbid_unknown_fields=True):
    """The jobs that an act is about. `error`: the fingerprint of the last error. `since` and `until`: when jobs ended,
    failed or were added; with `error` or `release` the time of the error, with `crashed` or `detector` of the crash."""

    state: Annotated[list[str], Meta(min_length=1, max_length=10)]
    queue: str | None = None
    task: str | None = None
    key: str | None = None
    group: str | None = None
    error: str | None = None
    release: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    crashed: bool = False
    detector: Detector | None = None
    tag: list[str] = []
    meta: list[str] = []  # each NAME=VALUE


class BulkActBody(msgspec.Struct, forbid_unknown_fields=True):
    """An act on all jobs that match. The first request counts; the second must say the number, and acts on a slice."""

    act: Literal["retry", "approve", "fail", "cancel", "hold", "delete", "move", "set"]
    filter: ActFilter
    to_queue: str | None = None
    priority: int | None = None
    run_at: datetime | None = None
    dry_run: bool = True
    expect_count: int | None = None
    cursor: str | None = None
    note: Text | None = None


# ----------------------------------------------------------------------------------------- enqueueing


def enqueue(call: Call) -> Answer:
    """Store one job; 201 if it is new, 200 if its id or key was there."""
    body: NewJobBody = call.body
    if (named := call.headers.get("idempotency-key")) is not None:
        if body.id is not None:
            raise Problem("invalid", "give an id or the header idempotency-key, not both", pointer="/id")
        text = f"{call.user.name}\n{named}".encode("utf-8", "replace")
        body = msgspec.structs.replace(body, id="idem-" + hashlib.sha256(text).hexdigest()[:40])
    draft = _draft(call, body, {})
    need_own_jobs(call, [draft.new])
    [job] = call.app.enqueue_many([draft])
    row = job.row
    call.need_queue(row.queue, "job with this key or id")
    if job.existed and body.id is not None and job.id == body.id:
        _check_same(row, draft)
    status = 200 if job.existed else 201
    headers = {"location": f"{call.base}/v1/jobs/{job.id}"}
    return Answer({**_view(call, row), "existed": job.existed}, status, headers)


def enqueue_bulk(call: Call) -> dict[str, Any]:
    """Store many jobs, all or none."""
    drafts: list[Draft[Any]] = []
    tasks: dict[tuple[str, OnCrash | None], Any] = {}
    for at, body in enumerate(call.body.jobs):
        try:
            drafts.append(_draft(call, body, tasks))
        except (HoldfastError, Problem) as error:
            problem = problem_of(error)
            raise Problem(problem.code, f"job {at}: {problem.detail}", pointer=f"/jobs/{at}") from None
    need_own_jobs(call, [draft.new for draft in drafts])
    jobs = call.app.enqueue_many(drafts)
    return {"items": [{"id": job.id, "existed": job.existed} for job in jobs]}


def _draft(call: Call, body: NewJobBody, tasks: dict[tuple[str, OnCrash | None], Any]) -> Draft[Any]:
    """Return the job of a body. `tasks`: those that this request has asked the store for."""
    if body.args is not UNSET and body.kwargs is not UNSET:
        raise Problem("invalid", "give args or kwargs, not both", pointer="/args")
    if body.run_at is not None and body.run_at.utcoffset() is None:
        raise Problem("invalid", "run_at needs a time zone, such as 2030-01-31T08:00:00Z", pointer="/run_at")
    options: dict[str, Any] = {
        name: getattr(body, name)
        for name in ("queue", "key", "group", "priority", "run_at", "id", "on_crash", "crashes_max")
    }
    options |= {name: getattr(body, name) for name in ("lease_s", "timeout_s", "stall_s")}
    options |= {
        name: getattr(body, name) for name in ("key_scope", "on_taken", "wait_max", "expires_s", "tags", "meta")
    }
    options |= {"after": body.after or None, "after_failed": body.after_failed}
    if (traceparent := _traceparent(call)) is not None:
        options["meta"] = {"traceparent": traceparent, **(body.meta or {})}
    options["run_after"] = body.delay_s
    if body.retry is not None:
        given = body.retry
        options["retry"] = Retry(given.attempts_max, given.base_s, given.cap_s, given.jitter)
    arguments: Any = body.args if body.args is not UNSET else body.kwargs if body.kwargs is not UNSET else {}
    given_options = {name: value for name, value in options.items() if value is not None}
    if (task := tasks.get((body.task, body.on_crash))) is None:
        task = tasks[body.task, body.on_crash] = task_named(call.app, body.task, body.on_crash)
    draft = draft_of(task, arguments, given_options)
    if not call.user.sees(draft.new.queue):
        raise Problem("not_found", f"the queue {draft.new.queue!r} is not among the queues of this token")
    return draft


def _traceparent(call: Call) -> str | None:
    """Return the span of the caller, for `integrations/opentelemetry.py` in the worker."""
    given = call.headers.get("traceparent", "")
    return given if _TRACEPARENT.fullmatch(given) else None


def _check_same(row: Job, draft: Draft[Any]) -> None:
    new = draft.new
    if (row.task, insight.parsed(row.payload)) != (new.task, insight.parsed(new.payload)):
        raise Problem("id_reused", f"the id {row.id!r} belongs to a job of {row.task} with other arguments")


# -------------------------------------------------------------------------------------------- reading


def job_of(call: Call, *, workflow: bool = False) -> Job:
    """Return the job that the path names, if it is in the scope of the user. Raises `NotFound`."""
    job_id = call.path["id"]
    row = call.store.get(job_id) if "\0" not in job_id else None
    if row is None or not call.user.sees(row.queue) or (workflow and not row.workflow):
        raise NotFound(f"there is no {'workflow' if workflow else 'job'} {job_id!r}")
    return row


def _view(call: Call, row: Job) -> dict[str, Any]:
    view = insight.job_view(row, call.store.now(), insight.worker_names(call.store) if row.worker else {})
    return {**view, **_of_enqueue(row), "zombies": row.zombies}


def _of_enqueue(row: Job) -> dict[str, Any]:
    scope = insight.key_scope(row)
    return {"key": row.key, "key_scope": scope, "priority": row.priority, "on_crash": row.on_crash}


def show(call: Call) -> dict[str, Any]:
    """Show a job with its history, as `jobs show --json` does."""
    row = job_of(call)
    more = {**_of_enqueue(row), "zombies": row.zombies}
    return {**insight.job_story(call.store, row), **more, "arguments": insight.parsed(row.payload)}


def show_journal(call: Call) -> dict[str, Any]:
    """Show the events of a job, oldest first."""
    row = job_of(call)
    names = insight.worker_names(call.store)
    events = call.store.journal(row.id, limit=1_000, before=call.query.before)
    return {"items": [{"seq": event.seq, **insight.event_view(event, names)} for event in events]}


def list_(call: Call) -> Answer:
    """List jobs, newest first, a page at a time."""
    query: ListQuery = call.query
    _check_states(query.state)
    chosen = _selection(call, query, query.state)
    digest = _digest(query)
    found, more = page_of(call, chosen, query.limit, anchors_in(query.cursor, digest))
    if (fit := _that_fit(found)) < len(found):
        found, more = found[:fit], True
    names, now = insight.worker_names(call.store), call.store.now()
    items = [{**insight.job_view(row, now, names), **_of_enqueue(row)} for row in found]
    following = cursor_to([row.id for row in found], digest) if more else None
    data = {"items": items, "next": following, "count": _count(call, query)}
    link = {"link": f'<{call.base}{call.route.path}?cursor={following}>; rel="next"'} if following else {}
    return Answer(data, headers=link)


def _that_fit(rows: list[Job]) -> int:
    """Return how many of these make an answer of a size that a client can take; at least one."""
    left = PAGE_BYTES
    for at, row in enumerate(rows):
        left -= len(row.result or "") + len(row.error or "")
        if left < 0:
            return max(1, at)
    return len(rows)


def list_workflows(call: Call) -> Answer:
    """List workflows, newest first, a page at a time."""
    call.query = replace(call.query, workflow=True)
    return list_(call)


def _check_states(states: Sequence[str]) -> None:
    for state in states:
        if state not in insight.SHOWN_STATES:
            raise Problem("invalid", f"{state!r} is not a state: {', '.join(insight.SHOWN_STATES)}", pointer="?state")


def _selection(call: Call, given: ListQuery | ActFilter, states: Sequence[str]) -> Selection:
    """Return the selection that a request asks for."""
    for name in ("since", "until"):
        at = getattr(given, name)
        if at is not None and at.utcoffset() is None:
            raise Problem("invalid", f"{name} needs a time zone, such as 2030-01-31T08:00:00Z", pointer=f"/{name}")
    chosen = Selection(
        states=tuple(states),
        **{name: getattr(given, name) for name in ("queue", "task", "key", "group", "error", "release", "detector")},
        worker=given.worker if isinstance(given, ListQuery) else None,
        workflow=given.workflow if isinstance(given, ListQuery) else None,
        crashed=given.crashed,
        tags=tuple(given.tag),
        meta=tuple(_pair(each) for each in given.meta),
        since=None if given.since is None else given.since.timestamp(),
        until=None if given.until is None else given.until.timestamp(),
    )
    chosen.check()
    return insight.with_full_task(call.store, chosen)


def _pair(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not name or not sign:
        raise Problem("invalid", f"meta {text!r} is not NAME=VALUE", pointer="/meta")
    return name, value


def page_of(call: Call, chosen: Selection, limit: int, anchors: list[str]) -> tuple[list[Job], bool]:
    """Return a page, and whether there may be more."""
    before = living_one(call, anchors) if anchors else None
    queues = call.user.queues
    if queues is not None and chosen.queue is not None and chosen.queue not in queues:
        return [], False
    if queues is None or chosen.queue is not None or len(queues) == 1:
        if queues is not None and chosen.queue is None:
            chosen = replace(chosen, queue=queues[0])
        found = insight.first_selected(call.store, chosen, limit + 1, before)
        return found[:limit], len(found) > limit
    wanted = insight.selected(call.store, chosen, page=PAGE_MAX, before=before)
    seen = islice(wanted, PAGE_MAX * SCAN_PAGES)
    found = list(islice((row for row in seen if row.queue in queues), limit + 1))
    return found[:limit], len(found) > limit


def living_one(call: Call, anchors: list[str]) -> str:
    for job_id in anchors:
        if call.store.get(job_id) is not None:
            return job_id
    raise Problem("invalid", "the jobs of the last page were deleted; begin again without it", pointer="?cursor")


def _digest(query: ListQuery) -> str:
    fixed = msgspec.structs.replace(query, cursor=None, limit=1, integers="number")
    return hashlib.sha256(msgspec.json.encode(fixed)).hexdigest()[:12]


def cursor_to(ids: list[str], digest: str) -> str:
    anchors = list(reversed(ids[-ANCHORS:]))
    return base64.urlsafe_b64encode(msgspec.json.encode([digest, *anchors])).decode().rstrip("=")


def anchors_in(cursor: str | None, digest: str) -> list[str]:
    if cursor is None:
        return []
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        made_for, *anchors = msgspec.json.decode(base64.urlsafe_b64decode(padded), type=list[str])
    except (ValueError, msgspec.DecodeError):
        raise Problem("invalid", "the cursor is not one of this server", pointer="?cursor") from None
    if made_for != digest:
        raise Problem("invalid", "the cursor belongs to a list with another filter", pointer="?cursor")
    return anchors


def _count(call: Call, query: ListQuery) -> dict[str, Any] | None:
    """Count exactly what the store counts by itself: queues and states."""
    if replace(query, state=(), queue=None, limit=1, cursor=None, integers="number") != ListQuery(limit=1):
        return None
    if {"scheduled", "retrying"} & set(query.state):
        return None
    total = 0
    for queue, states in call.store.counts().items():
        if call.user.sees(queue) and query.queue in (None, queue):
            total += sum(number for state, number in states.items() if not query.state or state.value in query.state)
    return {"value": total, "exact": True}


# -------------------------------------------------------------------------------- acts on one job


def _seen(call: Call) -> Job:
    row, body = job_of(call), call.body
    if body.state is not None and body.state not in (row.state.value, row.shown_state(call.store.now().wall)):
        raise changed(call, row, f"job {row.id} is {row.state.value} by now, and you saw {body.state}")
    if body.fence is not None and body.fence != row.fence:
        raise changed(call, row, f"job {row.id} has fence {row.fence} by now, and you saw {body.fence}")
    return row


def changed(call: Call, row: Job, detail: str) -> Problem:
    """Return the problem of an act on a job that is not any more as the person saw it."""
    return Problem("state_changed", f"{detail}; nothing was changed", job=_view(call, row))


def _acting(act: Callable[[Call, Job], object]) -> Callable[[Call], dict[str, Any]]:
    def acting(call: Call) -> dict[str, Any]:
        row = _seen(call)
        try:
            act(call, row)
        except (Refused, IllegalMove) as error:
            problem, now = problem_of(error), call.store.get(row.id)
            more = {} if now is None else {"job": _view(call, now)}
            raise Problem(problem.code, problem.detail, **{**problem.more, **more}) from None
        return _view(call, call.store.get(row.id) or row)

    acting.__doc__ = act.__doc__
    return acting


@_acting
def retry(call: Call, row: Job) -> object:
    """Bring a held, dead or cancelled job back with fresh budgets."""
    body = call.body
    given = {"by": call.user.name, "note": body.note, "fence": row.fence}
    return call.app.revive(row.id, repeat_step=body.repeat_step, **given)


@_acting
def cancel(call: Call, row: Job) -> object:
    """Stop a live job; a running one is asked to stop."""
    return call.app.cancel(row.id, by=call.user.name, note=call.body.note, fence=row.fence)


@_acting
def resolve(call: Call, row: Job) -> object:
    """Answer for a held job."""
    body = call.body
    result = {} if body.result is UNSET else {"result": body.result}
    return call.app.resolve(row.id, body.answer, by=call.user.name, note=body.note, fence=row.fence, **result)


@_acting
def hold(call: Call, row: Job) -> object:
    """Hold a ready or waiting job until a person decides."""
    return call.app._move(row, acts.hold(row, actor=call.user.name, reason=call.body.note))


@_acting
def move(call: Call, row: Job) -> object:
    """Change the queue, the priority or the time of a ready job."""
    body = call.body
    if body.priority is None and body.run_at is None and body.to_queue is None:
        raise Problem("invalid", "give a priority, run_at or to_queue")
    said = _said(call, "set" if body.to_queue is None else "move", body)
    return call.app._move(row, decided(call.store, said, row))


def delete(call: Call) -> dict[str, Any]:
    """Delete a job that has ended, with its history."""
    row = job_of(call)
    if row.ended_at is None:
        raise Problem("state_changed", f"job {row.id} is {row.state.value}: only a job that has ended can be deleted")
    for page in delete_all(call.store, [row.seen], lambda job: deletable(call.store, job), call.user.name, None):
        for acted in page:
            if acted.error is not None:
                raise acted.error
    return {"id": row.id, "deleted": True}


# ------------------------------------------------------------------------------- acts on a filter


def act(call: Call) -> dict[str, Any]:
    """Count the jobs that match, or act on the next slice of them."""
    body: BulkActBody = call.body
    _check_states(body.filter.state)
    if body.act == "delete" and call.user.role != "admin":
        raise Problem("forbidden", f"the role {call.user.role} may not delete jobs; it needs admin")
    said = _said(call, body.act, body)
    chosen = with_states(said.name, _selection(call, body.filter, body.filter.state))
    if chosen.queue is not None:
        call.need_queue(chosen.queue, f"queue {chosen.queue!r}")
    before = None if body.cursor is None else living_one(call, anchors_in(body.cursor, "act"))
    apart: dict[str, str] = {}
    matching: list[Seen] = []
    for row in islice(_matching(call, chosen, before), COUNT_MAX + 1):
        if (why := needs_own_act(said.name, row)) is not None:
            apart[row.id] = why
        else:
            matching.append(row.seen)
    count = {"value": min(len(matching), COUNT_MAX), "exact": len(matching) + len(apart) <= COUNT_MAX}
    if body.dry_run:
        ends = [matching[0].job_id, matching[-1].job_id] if matching else []
        plan = {"count": count, "newest_and_oldest": ends, "acted": [], "refused": {}, "next": None, "left": True}
        return {**plan, "left_alone": apart}
    if body.cursor is None and body.expect_count != count["value"]:
        raise Problem(
            "state_changed",
            f"{count['value']} jobs match, and you expected {body.expect_count}; nothing was changed",
            count=count,
        )
    page = matching[:SLICE]
    acted, refused = _carried_out(call, said, page)
    rest = len(matching) > len(page)
    # Named are also jobs that were just deleted; so the cursor begins with one that is still to be acted on.
    following = cursor_to([seen.job_id for seen in page[-ANCHORS:]], "act") if rest and body.act != "delete" else None
    done = {"count": count, "acted": acted, "refused": refused, "next": following, "left": rest}
    return {**done, "left_alone": apart}


def _said(call: Call, name: ActName, body: BulkActBody | MoveBody) -> MassAct:
    """Return the act that a user asks for. Raises for one that nobody could carry out."""
    if body.run_at is not None and body.run_at.utcoffset() is None:
        raise Problem("invalid", "run_at needs a time zone, such as 2030-01-31T08:00:00Z", pointer="/run_at")
    if body.priority is not None and abs(body.priority) > PRIORITY_MAX:
        raise Problem("invalid", f"the priority must be from -{PRIORITY_MAX} to {PRIORITY_MAX}", pointer="/priority")
    if body.to_queue is not None:
        call.need_queue(body.to_queue, f"queue {body.to_queue!r}")
    act = MassAct(
        name=name,
        actor=call.user.name,
        note=body.note,
        queue=body.to_queue,
        priority=body.priority,
        run_at=None if body.run_at is None else body.run_at.timestamp(),
    )
    act.check()
    return act


def _matching(call: Call, chosen: Selection, before: str | None) -> Iterator[Job]:
    for row in insight.selected(call.store, chosen, page=SLICE, before=before):
        if call.user.sees(row.queue):
            yield row


def _carried_out(call: Call, said: MassAct, seen: list[Seen]) -> tuple[list[str], dict[str, str]]:
    if said.name == "delete":
        pages = delete_all(call.store, seen, lambda job: _deletable(call, job), said.actor, said.note)
    else:
        pages = carry_out(call.store, said, [*seen])
    acted: list[str] = []
    refused: dict[str, str] = {}
    for page in pages:
        for each in page:
            if each.error is None:
                acted.append(each.job_id)
            else:
                refused[each.job_id] = str(each.error)
    call.store.wake()
    return acted, refused


def _deletable(call: Call, job: Job) -> Seen:
    if job.ended_at is None and job.state is not State.HELD:
        raise Refused(f"job {job.id} is {job.state.value}: only jobs that have ended can be deleted")
    return deletable(call.store, job)
