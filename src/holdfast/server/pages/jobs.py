"""The list of jobs: tabs by state, filters in the address, pages by key, and acts on many jobs after a count."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from holdfast import insight
from holdfast.acts.mass import MassAct, carry_out, list_for
from holdfast.core.durations import instant
from holdfast.core.machine import LIVE, State
from holdfast.core.records import Job, Seen
from holdfast.errors import UsageError
from holdfast.insight import Selection
from holdfast.server.call import Call
from holdfast.server.jobs import anchors_in, cursor_to, living_one, page_of
from holdfast.server.pages.page import Context, Form, Page, note_of
from holdfast.server.problems import Problem
from holdfast.server.routes import Answer

SHOWN = 50
QUEUES_MAX = 200  # queues to choose from; among more, the name is typed
SCANNED = 10_000  # jobs that a search in texts looks at, before it asks whether to go on
ACT_S = 15.0  # how long one request acts; the person continues after it
TABS = ("", "ready", "scheduled", "retrying", "running", "waiting", "held", "dead", "done", "cancelled", "rolled_back")
FILTERS = ("queue", "task", "key", "group", "worker", "error", "release", "since", "until", "text")

ManyAct = Literal["retry", "approve", "fail", "cancel", "hold", "delete"]
# The acts that a list offers: for which states, and whether only an administrator may.
ACTS: tuple[tuple[ManyAct, frozenset[str], bool], ...] = (
    ("retry", frozenset({"dead", "cancelled"}), False),
    ("approve", frozenset({"held"}), False),
    ("fail", frozenset({"held"}), False),
    ("hold", frozenset({"ready", "scheduled", "retrying", "waiting"}), False),
    ("cancel", frozenset({state.value for state in LIVE} | {"scheduled", "retrying"}), False),
    ("delete", frozenset({"dead", "done", "cancelled", "rolled_back"}), True),
)


class Asked(msgspec.Struct):
    """The filter, as the address has it."""

    state: str | None = None
    queue: str | None = None
    task: str | None = None
    key: str | None = None
    group: str | None = None
    worker: str | None = None
    error: str | None = None
    release: str | None = None
    since: str | None = None
    until: str | None = None
    text: str | None = None
    cursor: str | None = None


class Planned(Asked):
    """An act on many jobs, before it is carried out. `job`: chosen rows; none: all that match the filter."""

    act: ManyAct = "cancel"
    job: tuple[str, ...] = ()
    every: bool = False


class Carried(Planned):
    """The same, confirmed: `expect` jobs were counted, at `at` by the store's clock."""

    expect: int = 0
    at: float | None = None
    done: int = 0
    refused: int = 0
    note: str | None = None


# ---------------------------------------------------------------------------------------------- the list


def show(call: Call) -> Context:
    """Show a page of the list."""
    asked: Asked = call.query
    chosen = selection(call, asked)
    anchors = anchors_in(asked.cursor, _digest(asked))
    if asked.text:
        found, more, looked_at = _searched(call, chosen, asked.text, anchors)
    else:
        found, more = page_of(call, chosen, SHOWN, anchors)
        looked_at = found[-1] if found else None
    facts, now = call.server.pages.snapshot.read(), call.store.now()
    queues = sorted(queue for queue in facts.counts if call.user.sees(queue))
    names = insight.worker_names(call.store) if any(job.worker for job in found) else {}
    following = cursor_to([job.id for job in ([*found, looked_at] if looked_at else found)], _digest(asked))
    narrowed = {name: value for name in FILTERS if (value := getattr(asked, name))}
    return {
        "asked": asked,
        "narrowed": narrowed,
        "tabs": [_tab(call, facts, asked, name, narrowed) for name in TABS],
        "rows": [_row(job, now, names) for job in found],
        "next": following if more else None,
        "searched_to": looked_at.created_at if asked.text and more and looked_at else None,
        "is_first": asked.cursor is None,
        "acts": [] if asked.cursor is None and not found else list(_acts_for(call, asked.state)),
        "queues": queues if len(queues) <= QUEUES_MAX else None,
    }


def selection(call: Call, asked: Asked) -> Selection:
    """Return the selection that an address asks for. Raises `UsageError`."""
    named = {name: getattr(asked, name) for name in ("queue", "task", "key", "group", "worker", "error", "release")}
    chosen = Selection(
        states=(asked.state,) if asked.state else (),
        since=_instant(call, asked.since),
        until=_instant(call, asked.until),
        **named,
    )
    chosen.check()
    return insight.with_full_task(call.store, chosen)


def _instant(call: Call, text: str | None) -> float | None:
    if text is None:
        return None
    found = instant(text, call.store.now().wall)
    if found is None:
        raise UsageError(f"{text!r} is not a time: write 2h, 09:30 or 2030-01-31T08:00")
    return found


def _searched(call: Call, chosen: Selection, text: str, anchors: Sequence[str]) -> tuple[list[Job], bool, Job | None]:
    """Look for a text in ids, keys, tasks, arguments and errors; return also the last job that was looked at."""
    before = living_one(call, list(anchors)) if anchors else None
    search, found = insight.TextSearch(text), list[Job]()
    last: Job | None = None
    for number, job in enumerate(insight.selected(call.store, chosen, before=before), 1):
        last = job
        if call.user.sees(job.queue) and search.matches(job):
            found.append(job)
        if len(found) == SHOWN or number == SCANNED:
            return found, True, last
    return found, False, last


def _tab(call: Call, facts: Any, asked: Asked, name: str, narrowed: Mapping[str, str]) -> dict[str, Any]:
    """Return a tab. A number is shown where it is exact: the tabs and the list use one filter."""
    count: int | None = None
    if not set(narrowed) - {"queue"} and name not in ("scheduled", "retrying"):
        states = [State(name)] if name else list(State)
        queues = [queue for queue in facts.counts if call.user.sees(queue) and asked.queue in (None, queue)]
        count = sum(facts.counts[queue].get(state, 0) for queue in queues for state in states)
    return {"state": name, "count": count, "is_here": (asked.state or "") == name, "query": {**narrowed, "state": name}}


def _row(job: Job, now: Any, names: insight.Names) -> dict[str, Any]:
    ended = job.ended_at
    return {
        "id": job.id,
        "seen": seen_text(job),
        "task": job.task,
        "queue": job.queue,
        "state": job.shown_state(now.wall),
        "attempt": job.attempt,
        "zombies": job.zombies,
        "arguments": _short(job.payload),
        "line": insight.in_short(job, now, names),
        "at": ended if ended is not None else job.run_at if job.state is State.READY else job.claimed_at or job.run_at,
        "cancel_requested": job.cancel_requested,
        "rolling_back": job.rolling_back and job.state is not State.ROLLED_BACK,
        "left_s": None if job.lease_until is None else job.lease_until - now.lease,
        "lease_s": job.lease_s,
    }


def _short(payload: str) -> str:
    data = insight.parsed(payload)
    if isinstance(data, dict):
        text = ", ".join(f"{name}={_plain(value)}" for name, value in islice(data.items(), 6))
    else:
        text = _plain(data)
    return text if len(text) <= 120 else f"{text[:120]}…"


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value, order="deterministic").decode()[:200]


def seen_text(job: Job) -> str:
    """Write a job as a person sees it, for a checkbox."""
    return f"{job.fence}:{job.state.value}:{job.id}"


def _seen(text: str) -> Seen:
    fence, _, rest = text.partition(":")
    state, _, job_id = rest.partition(":")
    try:
        return Seen(job_id, State(state), int(fence))
    except ValueError:
        raise Problem("invalid", "the form names a job that this page does not show; reload the page") from None


def _acts_for(call: Call, state: str | None) -> Iterator[str]:
    for name, states, only_admins in ACTS:
        if (state is None or state in states) and (call.user.role == "admin" or not only_admins):
            yield name


def _digest(asked: Asked) -> str:
    plain = msgspec.structs.replace(asked, cursor=None)
    fields = [getattr(plain, name) for name in ("state", *FILTERS)]
    return hashlib.sha256(msgspec.json.encode(fields)).hexdigest()[:12]


# ---------------------------------------------------------------------------------------- acts on many


def plan(call: Call) -> Answer:
    """Count what an act would change, and ask."""
    planned: Planned = call.body
    return _planned(call, planned, call.store.now().wall)


def _planned(call: Call, planned: Planned, at: float, moved_on: int | None = None) -> Answer:
    jobs, left_alone, tasks = _jobs_of(call, planned, at)
    context = {
        "act": planned.act,
        "asked": planned,
        "count": len(jobs),
        "tasks": tasks,
        "left_alone": left_alone,
        "chosen": planned.job if not planned.every else (),
        "every": planned.every,
        "at": at,
        "narrowed": {name: value for name in ("state", *FILTERS) if (value := getattr(planned, name))},
        "moved_on": moved_on,
        "report": None,
    }
    return call.server.pages.answer("jobs_plan", call, context, status=409 if moved_on is not None else 200)


def _jobs_of(call: Call, planned: Planned, at: float) -> tuple[list[Seen], dict[str, str], dict[str, int]]:
    """Return the jobs that an act is about, those that need one of their own, and how many each task has."""
    _check_allowed(call, planned)
    act = MassAct(name=planned.act, actor=call.user.name)
    if not planned.every:
        if not planned.job:
            raise Problem("invalid", "choose jobs first")
        seen = [_seen(text) for text in planned.job]
        rows = {job.id: job for each in seen if (job := call.store.get(each.job_id)) and call.user.sees(job.queue)}
        tasks: dict[str, int] = {}
        for each in seen:
            if (row := rows.get(each.job_id)) is not None:
                tasks[row.task] = tasks.get(row.task, 0) + 1
        return [each for each in seen if each.job_id in rows], {}, tasks
    if planned.text:
        raise Problem("invalid", "a search in texts finds jobs to choose one by one; drop the text to act on all")
    chosen = selection(call, planned)
    if call.user.queues is not None and chosen.queue is None:
        raise Problem("invalid", "choose one of your queues first")
    if chosen.queue is not None:
        call.need_queue(chosen.queue, f"queue {chosen.queue!r}")
    if chosen.until is None or chosen.until > at:
        chosen = replace(chosen, until=at + 0.001)  # jobs that come later are not part of what the person saw
    listing = list_for(call.store, act, chosen)
    return listing.jobs, listing.left_alone, listing.tasks


def _check_allowed(call: Call, planned: Planned) -> None:
    if planned.act == "delete" and call.user.role != "admin":
        raise Problem("forbidden", f"the role {call.user.role} may not delete jobs; it needs admin")


def act(call: Call) -> Answer:
    """Carry an act out on the jobs that were counted, for as long as one request may take."""
    carried: Carried = call.body
    note, at = note_of(call, carried.note), carried.at or 0.0
    jobs, left_alone, tasks = _jobs_of(call, carried, at)
    if carried.every and not carried.done and not carried.refused and len(jobs) != carried.expect:
        return _planned(call, carried, call.store.now().wall, moved_on=carried.expect)
    clock, reasons, done = call.app.clock, dict[str, str](), 0
    ends_at = clock.lease() + ACT_S
    for page in carry_out(call.store, MassAct(name=carried.act, actor=call.user.name, note=note), [*jobs]):
        done += sum(each.error is None for each in page)
        reasons |= {each.job_id: str(each.error) for each in page if each.error is not None}
        if clock.lease() >= ends_at:
            break
    call.store.wake()
    left = len(jobs) - done - len(reasons)
    done, refused = carried.done + done, carried.refused + len(reasons)
    context = {
        "act": carried.act,
        "asked": carried,
        "count": left,
        "tasks": tasks,
        "left_alone": left_alone,
        "chosen": (),
        "every": carried.every,
        "at": at,
        "narrowed": {name: value for name in ("state", *FILTERS) if (value := getattr(carried, name))},
        "moved_on": None,
        "report": {"done": done, "refused": refused, "reasons": dict(islice(reasons.items(), 20)), "left": left},
    }
    return call.server.pages.answer("jobs_plan", call, context)


ROUTES = (
    Page("jobs", "/jobs", show, query=Asked, nav=True, key="j"),
    Form("jobs", "/jobs/plan", plan, Planned, scope="filter"),
    Form("jobs", "/jobs/act", act, Carried, scope="filter"),
)
