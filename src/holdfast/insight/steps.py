"""The steps of a workflow, as people and programs are shown them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from holdfast.core.records import Job, Moment, Step
from holdfast.core.times import iso
from holdfast.insight.words import duration
from holdfast.stores.protocol import Store

_STEPS = 100_000


def steps_of(store: Store, job: Job) -> list[Step]:
    """Return what is recorded of a workflow, with what was set aside; nothing of another job."""
    return store.steps(job.id, limit=_STEPS, aside=True) if job.workflow else []


def step_view(step: Step) -> dict[str, Any]:
    """Show a step: one flat object."""
    return {
        "name": step.name,
        "state": step.state,
        "attempt": step.attempt,
        "started_at": iso(step.started_at),
        "ended_at": iso(step.ended_at),
        "result": _parsed(step.result),
        "error": step.error,
        "kind": step.kind,
        "path": step.path,
        "has_undo": step.has_undo,
        "repeatable": step.repeatable,
        "set_aside": bool(step.aside),
    }


def progress_of(steps: Sequence[Step]) -> str:
    """Say how far a workflow is, from what is known: what was begun, and what is done of it."""
    live = [step for step in steps if not step.aside]
    states = Counter(step.state for step in live)
    words = f"step {states['recorded'] + states['undone']} of {len(live)} known"
    return f"{words}, {states['undone']} undone" if states["undone"] else words


def depth_of(step: Step) -> int:
    """Return how deep the step is in branches: for a tree."""
    return step.path.count("~") + step.path.count(".") // 2


def took(step: Step) -> str | None:
    """Say how long the step took, if that is known."""
    if step.started_at is None or step.ended_at is None or step.kind in ("sleep", "now", "random", "uuid", "patch"):
        return None
    return duration(max(0.0, step.ended_at - step.started_at))


def waits_for(job: Job, now: Moment) -> str | None:
    """Say what a waiting workflow waits for."""
    parts = [f"asks: {job.question}"] if job.question is not None else []
    for what in job.awaits or []:
        kind, _, name = what.partition(":")
        if job.question is None or not name.startswith("approve:"):
            parts.append(f"for {kind} {name}")
    if job.wake_at is not None:
        parts.append(f"{'at most ' if parts else ''}{duration(max(0.0, job.wake_at - now.wall))}")
    return ", ".join(parts) or None


def _parsed(text: str | None) -> Any:
    try:
        return None if text is None else json.loads(text)
    except ValueError:
        return text
