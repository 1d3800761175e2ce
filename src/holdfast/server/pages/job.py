"""One job: why it is here, what a person may do, each of its attempts, its data and its history."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import msgspec

from holdfast import insight
from holdfast.acts.mass import MassAct, decided
from holdfast.bulk import delete_all
from holdfast.core import acts
from holdfast.core.autopsy import lines_of
from holdfast.core.dependencies import ids_of
from holdfast.core.labels import meta_of, tags_of
from holdfast.core.machine import LIVE, State
from holdfast.core.records import Event, Job, Moment, Step
from holdfast.core.stop_reason import full_reason
from holdfast.errors import IllegalMove, Refused
from holdfast.insight.possible_acts import PossibleAct, on_job
from holdfast.insight.views import health_of
from holdfast.queues import resume_queue
from holdfast.server.call import Call
from holdfast.server.jobs import changed, job_of
from holdfast.server.pages.page import Context, Detail, Form, Page, note_of, see
from holdfast.server.problems import Problem, problem_of
from holdfast.server.routes import Answer
from holdfast.stores.rounds import together
from holdfast.upkeep.reaper import reap as reap_once

EVENTS_SHOWN = 100
ATTEMPTS_SHOWN = 40  # the newest
STEPS_SHOWN = 200  # the last
LEAST_WIDTH = 6.0  # of a bar, of 1000
HARD = frozenset({"fail", "cancel", "delete", "rollback"})  # acts that end something


class Nothing(msgspec.Struct):
    """An address without fields."""


class ActForm(msgspec.Struct):
    """An act on the job. `state` and `fence`: as the person saw them."""

    act: str
    fence: int
    state: str | None = None
    note: str | None = None
    result: str | None = None
    step: str | None = None
    repeat_step: bool = False
    name: str | None = None
    value: str | None = None
    queue: str | None = None
    group: str | None = None
    priority: int | None = None
    run_at: datetime | None = None
    back: str | None = None


# ---------------------------------------------------------------------------------------------- shown


def _steps_shown(steps: Sequence[Step]) -> Context:
    """Return the last steps of a workflow. `steps_left`: those before them."""
    found = [step for step in steps if step.kind != "gather"]
    return {"steps": found[-STEPS_SHOWN:], "steps_left": max(0, len(found) - STEPS_SHOWN)}


def show(call: Call) -> Context:
    """Show the job with its whole story."""
    job, store = job_of(call), call.store
    why, events, now, names, health, steps = together(
        lambda: insight.explain(store, job),
        lambda: store.journal(job.id, limit=10_000),
        store.now,
        lambda: insight.worker_names(store),
        lambda: health_of(store, job),
        lambda: insight.steps_of(store, job, aside=True, asks=True) if job.workflow else [],
    )
    attempts = insight.attempts_of(job, events, now, names)
    end = insight.lease_end(job, now)
    return {
        "job": job,
        "state": job.shown_state(now.wall),
        "why": why.sentence,
        "choices": [choice_view(each) for each in (*why.choices, *_further(call, job, why.choices, steps))],
        "health": health,
        "left_s": None if job.lease_until is None else job.lease_until - now.lease,
        "lease_end": end,
        "worker": names.get(job.worker, job.worker) if job.worker else None,
        "lanes": list(lanes(attempts[-ATTEMPTS_SHOWN:], job, now.wall)),
        "left_out": max(0, len(attempts) - ATTEMPTS_SHOWN),
        "span": insight.span_of(attempts, job.created_at, now.wall),
        "endings": {ending.fence: ending.sentence for ending in insight.endings(job, events)},
        "error": full_reason(job),
        "traceback": _traceback(job, events),
        "log": lines_of(job.log),
        "facts": list(_facts(job, now)),
        **_steps_shown(steps),
        "events": [_event_view(event, names) for event in reversed(events[-EVENTS_SHOWN:])],
        "events_left": max(0, len(events) - EVENTS_SHOWN),
        "has_workflows": call.server.pages.has("/workflows/{id}"),
    }


def lanes(attempts: Sequence[insight.AttemptView], job: Job, now: float) -> Iterator[dict[str, Any]]:
    """Place each attempt in a picture that is 1000 wide: the wait before it, its bar, and the marks."""
    first, last = insight.span_of(attempts, job.created_at, now)
    if attempts:  # of many only the newest are shown
        first = attempts[0].waited_from
    scale = 1000.0 / max(last - first, 0.001)

    def at(instant: float | None) -> float | None:
        return None if instant is None else round(min(1000.0, max(0.0, (instant - first) * scale)), 1)

    for each in attempts:
        end = each.ended_at if each.ended_at is not None else now if each.outcome == "running" else None
        stop = at(end if end is not None else each.began_at) or 0.0
        begin = at(each.began_at)
        left = max(0.0, stop - LEAST_WIDTH) if begin is None else min(begin, 1000.0 - LEAST_WIDTH)
        refused = at(each.refused_at)
        yield {
            "attempt": each,
            "wait": at(each.waited_from) or 0.0,
            "left": left,
            "width": max(LEAST_WIDTH, stop - left),
            "is_begin_known": begin is not None,
            "beat": at(each.last_beat),
            "lease": at(each.lease_until),
            "refused": refused,
            "refused_width": None if refused is None else max(LEAST_WIDTH, refused - stop),
            "stop": stop,
            "took_s": None if end is None or each.began_at is None else max(0.0, end - each.began_at),
            "found_after_s": each.found_after_s,
            "detail": Detail(each.detail),
            "log": each.detail.get("log") or [],
            "stack": each.detail.get("stack"),
        }


def _event_view(event: Event, names: insight.Names) -> dict[str, Any]:
    view = insight.event_view(event, names)
    return {**view, "detail": Detail(view["detail"])}


def _traceback(job: Job, events: Sequence[Event]) -> str | None:
    for event in reversed(events):
        if isinstance(found := event.detail.get("traceback"), str):
            return found if job.error else None
    return None


def _facts(job: Job, now: Moment) -> Iterator[tuple[str, Any, str]]:
    """Yield what is known of the job: the key of its label, the value, and how it is shown."""
    yield "id", job.id, "code"
    yield "queue", job.queue, "text"
    for name, value in (("key", job.key), ("group", job.group), ("batch", job.batch), ("release", job.release)):
        if value is not None:
            yield name, value, "text"
    if job.parent is not None:
        yield "parent", job.parent, "job"
    for awaited in ids_of(job.awaits):
        yield "after", awaited, "job"
    if job.priority:
        yield "priority", job.priority, "text"
    if tags := tags_of(job.tags):
        yield "tags", ", ".join(tags), "text"
    for name, value in meta_of(job.meta).items():
        yield "meta", f"{name}={value}", "text"
    yield "created", job.created_at, "instant"
    if job.run_at > now.wall and job.state is State.READY:
        yield "runs", job.run_at, "instant"
    if job.expires_at is not None:
        yield "expires", job.expires_at, "instant"
    if job.ended_at is not None:
        yield "ended", job.ended_at, "instant"
    yield "failures", f"{job.failures} / {job.attempts_max}", "text"
    yield "crashes", f"{job.crashes} / {job.crashes_max}", "text"
    if job.zombies:
        yield "zombies", job.zombies, "text"
    yield "on_crash", job.on_crash, "text"
    yield "lease", job.lease_s, "duration"
    for name, length_s in (("timeout", job.timeout_s), ("stall", job.stall_s)):
        if length_s is not None:
            yield name, length_s, "duration"
    yield "fence", job.fence, "text"


def choice_view(choice: PossibleAct) -> dict[str, Any]:
    """Show an act that a person may choose, for a form."""
    return {
        "act": choice.act,
        "words": choice.words[:1].upper() + choice.words[1:],
        "consequence": choice.consequence,
        "needs": choice.needs,
        "fields": {name: value for name, value in choice.arguments.items() if name not in ("id", "fence")},
        "is_hard": choice.act in HARD,
        "is_form": choice.act not in ("see_limits", "start_worker"),
    }


def _further(call: Call, job: Job, known: Sequence[PossibleAct], steps: Sequence[Step]) -> Iterator[PossibleAct]:
    """Yield the acts that the state allows, and that the explanation does not name."""
    names = {choice.act for choice in known}
    if job.state in LIVE and "cancel" not in names and not job.cancel_requested:
        yield on_job(job, "cancel", "cancel")
    is_half_undone = job.rolling_back and job.state is not State.ROLLED_BACK
    if job.workflow and job.ended_at is not None and steps and not is_half_undone:
        yield on_job(job, "start a copy from a step", "fork", "step")
    if job.state is State.DONE and job.ended_at is None:
        return
    if job.ended_at is not None and "delete" not in names and call.user.role == "admin":
        yield on_job(job, "delete", "delete")


# ----------------------------------------------------------------------------------------------- acts


def act(call: Call) -> Answer:
    """Carry out an act on the job, if it still is as the person saw it."""
    form: ActForm = call.body
    row, note = job_of(call), note_of(call, form.note)
    if form.fence != row.fence or (form.state is not None and form.state != row.state.value):
        raise changed(call, row, f"the job has moved on since you saw it{_by_whom(call, row)}")
    do = _ACTS.get(form.act)
    if do is None:
        raise Problem("invalid", f"{form.act!r} is not an act on a job")
    try:
        begun = do(call, row, form, note)
    except (Refused, IllegalMove) as error:
        now = call.store.get(row.id)
        raise (
            changed(call, now, str(error)) if now is not None and now.seen != row.seen else problem_of(error)
        ) from None
    if form.act == "delete":
        return see(call, "/jobs", said="deleted")
    if begun is not None:
        return see(call, f"/jobs/{_quoted(begun)}", said=form.act)
    back = "/review" if form.back == "review" and call.server.pages.has("/review") else None
    return see(call, back or f"/jobs/{_quoted(row.id)}", said=form.act)


def _by_whom(call: Call, row: Job) -> str:
    """Say who acted on the job last: two people may look at the same one."""
    for event in reversed(call.store.journal(row.id, limit=10_000)):
        if event.actor is not None:
            said = event.detail.get("answer")
            ago = insight.ago(event.at, call.store.now())
            return f": {event.actor} {event.kind.replace('_', ' ')} it{f' ({said})' if said else ''} {ago}"
    return ""


def _resolve(answer: acts.Choice) -> Any:
    def resolve(call: Call, row: Job, form: ActForm, note: str | None) -> None:
        given: dict[str, Any] = {"by": call.user.name, "note": note, "fence": row.fence}
        if answer == "done" and form.result is not None:
            given["result"] = _json_of("result", form.result)
        call.app.resolve(row.id, answer, **given)

    return resolve


def _revive(call: Call, row: Job, form: ActForm, note: str | None) -> None:
    call.app.revive(row.id, repeat_step=form.repeat_step, by=call.user.name, note=note, fence=row.fence)


def _cancel(call: Call, row: Job, form: ActForm, note: str | None) -> None:
    call.app.cancel(row.id, by=call.user.name, note=note, fence=row.fence)


def _hold(call: Call, row: Job, form: ActForm, note: str | None) -> None:
    call.app._move(row, acts.hold(row, actor=call.user.name, reason=note))


def _set(call: Call, row: Job, form: ActForm, note: str | None) -> None:
    run_at = None if form.run_at is None else _utc(form.run_at)
    said = MassAct(name="set", actor=call.user.name, note=note, priority=form.priority, run_at=run_at)
    said.check()
    call.app._move(row, decided(call.store, said, row))


def _run_now(call: Call, row: Job, form: ActForm, note: str | None) -> None:
    said = MassAct(name="set", actor=call.user.name, note=note, run_at=call.store.now().wall)
    call.app._move(row, decided(call.store, said, row))


def _delete(call: Call, row: Job, form: ActForm, note: str | None) -> None:
    if call.user.role != "admin":
        raise Problem("forbidden", f"the role {call.user.role} may not delete jobs; it needs admin")
    for page in delete_all(call.store, [row.seen], lambda job: job.seen, call.user.name, note):
        for acted in page:
            if acted.error is not None:
                raise acted.error


def _rollback(call: Call, row: Job, form: ActForm, note: str | None) -> None:
    call.app.rollback(row.id, by=call.user.name, note=note, fence=row.fence)


def _retry_from(call: Call, row: Job, form: ActForm, note: str | None) -> None:
    if not form.step:
        raise Problem("invalid", "name the step to run again first")
    given: dict[str, Any] = {"by": call.user.name, "note": note, "fence": row.fence}
    call.app.retry_from(row.id, form.step, repeat_step=form.repeat_step, **given)


def _fork(call: Call, row: Job, form: ActForm, note: str | None) -> str:
    """Start a copy, and return its id."""
    if not form.step:
        raise Problem("invalid", "name the step that the copy begins with")
    return call.app.fork(row.id, form.step, by=call.user.name, note=note, repeat_step=form.repeat_step).id


def _signal(call: Call, row: Job, form: ActForm, note: str | None) -> None:
    if not form.name:
        raise Problem("invalid", "name the signal")
    value = None if form.value is None else _json_of("value", form.value)
    call.app.signal(row.id, form.name, value, by=call.user.name, note=note)


def _recover(call: Call, row: Job, form: ActForm, note: str | None) -> None:
    reap_once(call.store, call.app.clock, hooks=call.app.hooks, fix=True)


def _resume(call: Call, row: Job, form: ActForm, note: str | None) -> None:
    call.need_queue(form.queue or row.queue, "queue")
    resume_queue(call.store, form.queue or row.queue, form.group, call.user.name, note)


_ACTS: dict[str, Any] = {
    "approve": _resolve("retry"),
    "done": _resolve("done"),
    "fail": _resolve("fail"),
    "revive": _revive,
    "retry": _revive,
    "cancel": _cancel,
    "hold": _hold,
    "set": _set,
    "run_now": _run_now,
    "delete": _delete,
    "rollback": _rollback,
    "retry_from": _retry_from,
    "fork": _fork,
    "signal": _signal,
    "recover": _recover,
    "resume_queue": _resume,
}


def _json_of(name: str, text: str) -> Any:
    """Read a value that a person typed. Integers stay exact."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        raise Problem("invalid", f'the {name} is not JSON: write "text" in quotes, 42, true or {{"paid": 7}}') from None


def _utc(at: datetime) -> float:
    return (at if at.utcoffset() is not None else at.replace(tzinfo=UTC)).timestamp()


def _quoted(text: str) -> str:
    return quote(text, safe="")


ROUTES = (
    Page("job", "/jobs/{id}", show, query=Nothing, scope="refuse"),
    Form("job", "/jobs/{id}/act", act, ActForm),
)
