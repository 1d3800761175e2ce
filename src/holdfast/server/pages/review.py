"""The jobs that wait for a person: held ones and questions of workflows, the oldest first, each with its evidence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast import insight
from holdfast.core.access import User
from holdfast.core.machine import State
from holdfast.core.records import Event, Filter, Job
from holdfast.server.call import Call
from holdfast.server.pages.job import choice_view
from holdfast.server.pages.page import Context, Detail, Page
from holdfast.server.pages.snapshot import Facts
from holdfast.stores.protocol import Store
from holdfast.stores.rounds import together

SHOWN = 20
READ = 500  # jobs of which the oldest are shown
EVENTS = 30  # of one job
_EVIDENCE = ("zombie", "failed", "timed_out", "stalled", "released", "held")


class Asked(msgspec.Struct):
    """The filter. `task`: only its jobs."""

    task: str | None = None
    queue: str | None = None


def show(call: Call) -> Context:
    """Show what waits for an answer, with the answers that there are."""
    store, asked = call.store, call.query
    where = Filter(task=asked.task, queue=asked.queue, limit=READ)
    held, asking, names = together(
        lambda: store.find(msgspec.structs.replace(where, states=(State.HELD,))),
        lambda: store.find(msgspec.structs.replace(where, states=(State.WAITING,), asking=True)),
        lambda: insight.worker_names(store),
    )
    jobs = [job for job in (*held, *asking) if call.user.sees(job.queue)]
    events = store.journals([job.id for job in jobs[:READ]], EVENTS) if jobs else {}
    jobs.sort(key=lambda job: _since(job, events.get(job.id, ())))
    return {
        "asked": asked,
        "cards": [_card(store, job, events.get(job.id, []), names) for job in jobs[:SHOWN]],
        "number": len(jobs),
        "is_more": len(jobs) > SHOWN or len(held) == READ,
        "alike": [(task, number) for task, number in Counter(job.task for job in jobs).most_common(8) if number > 1],
    }


def _since(job: Job, events: Sequence[Event]) -> float:
    """Return since when the job waits for a person."""
    return next((each.at for each in reversed(events) if each.kind in ("held", "asked")), job.created_at)


def _card(store: Store, job: Job, events: Sequence[Event], names: insight.Names) -> dict[str, Any]:
    why = insight.explain(store, job)
    evidence = next((each for each in reversed(events) if each.kind in _EVIDENCE and each.kind != "held"), None)
    steps = insight.steps_of(store, job, aside=True, asks=True) if job.workflow else []
    return {
        "job": job,
        "since": _since(job, events),
        "why": why.sentence,
        "choices": [choice_view(each) for each in why.choices],
        "kind": None if evidence is None else evidence.kind,
        "evidence": Detail({} if evidence is None else evidence.detail),
        "ended_at": None if evidence is None else evidence.at,
        "worker": None if evidence is None else names.get(evidence.worker or "", evidence.worker),
        "steps": [step for step in steps if step.kind != "gather"],
        "recorded": sum(step.state == "recorded" for step in steps),
    }


def _badge(facts: Facts, user: User) -> int:
    return facts.total(user, State.HELD) + facts.questions(user)


ROUTES = (Page("review", "/review", show, query=Asked, nav=True, key="h", badge=_badge),)
