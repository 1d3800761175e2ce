"""The last acts of a worker: `holdfast workers show`."""

from __future__ import annotations

from typing import Any

from holdfast.core.durations import iso
from holdfast.core.machine import State
from holdfast.core.orders import parent_name
from holdfast.core.records import EndedAttempt, Filter, Recent, Worker
from holdfast.core.text import check_storable
from holdfast.errors import NotFound, Refused
from holdfast.insight.health import BEATING, worker_state
from holdfast.insight.views import job_view, worker_view
from holdfast.stores.protocol import Store
from holdfast.stores.rounds import together

_RUNNING_MAX = 1000


def worker_reports(store: Store, name: str) -> list[dict[str, Any]]:
    """Show the workers of a name, and the children of a supervisor of that name, with what each did last.

    The living ones; if there are none, the one that has gone last. Empty: no worker of that name is known.
    """
    named = [each for each in store.workers(gone=True) if name in (each.name, parent_name(each.name))]
    living = [each for each in named if each.gone_at is None]
    shown = living or sorted(named, key=lambda each: each.gone_at or 0.0)[-1:]
    where = Filter(states=(State.RUNNING,), limit=_RUNNING_MAX)
    said, now, running = together(
        lambda: store.recent([each.id for each in shown]),
        store.now,
        lambda: store.find(where) if any(each.running for each in shown) else [],
    )
    return [
        worker_view(each, now)
        | {
            "jobs": [job_view(job, now, {each.id: each.name}) for job in running if job.worker == each.id],
            "endings": [ended_view(ended) for ended in reversed(said.get(each.id, Recent()).endings)],
            "log": said.get(each.id, Recent()).log.splitlines(),
        }
        for each in shown
    ]


def ended_view(ended: EndedAttempt) -> dict[str, Any]:
    """Show an attempt that a worker has ended."""
    return {
        "id": ended.job_id,
        "task": ended.task,
        "outcome": ended.outcome,
        "state": ended.state.value,
        "at": iso(ended.at),
        "took_s": ended.took_s,
    }


def silent_workers(store: Store, name: str) -> list[Worker]:
    """Return the workers of a name that a person may declare dead.

    Raises `NotFound` when there is no such worker, `Refused` when each of them still beats.
    """
    check_storable(name=name)
    named, now = [worker for worker in store.workers() if worker.name == name], store.now()
    if not named:
        raise NotFound(f"there is no worker {name!r}; see `holdfast workers list`")
    silent = [worker for worker in named if worker_state(worker, now) not in BEATING]
    if not silent:
        raise Refused(f"worker {name} beats; stop its process instead")
    return silent
