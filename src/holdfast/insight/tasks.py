"""Published tasks as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.core.durations import iso
from holdfast.core.published import PublishedTask
from holdfast.core.records import Worker
from holdfast.stores.protocol import Store
from holdfast.stores.rounds import together


def task_views(store: Store, names: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Show every task that workers have published, or those with these names, by name."""
    now, workers, published = together(store.now, store.workers, lambda: store.published(names))
    claiming = [worker for worker in workers if worker.claims(now.wall)]
    return [task_view(task, claiming) for task in published]


def task_view(task: PublishedTask, claiming: Sequence[Worker]) -> dict[str, Any]:
    """Show a published task; `claiming`: the living workers, of which those that have the task are counted."""
    job, policy = task.job, task.job.policy
    return {
        "task": task.name,
        "queue": job.queue,
        "priority": job.priority,
        "workflow": job.workflow,
        "on_crash": policy.on_crash,
        "attempts_max": policy.retry.attempts_max,
        "crashes_max": policy.crashes_max,
        "lease_s": policy.lease_s,
        "beat_s": policy.beat_every_s,
        "timeout_s": policy.timeout_s,
        "stall_s": policy.stall_s,
        "key": job.key,
        "key_is_code": task.key_is_code,
        "own_codec": task.own_codec,
        "published_at": iso(task.published_at),
        "workers": sum(worker.tasks is not None and task.name in worker.tasks for worker in claiming),
        "parameters": [[each.name, each.kind, each.required] for each in task.parameters],
        "arguments": task.schema,
    }
