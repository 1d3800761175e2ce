"""A look at a store that moves: queues with rates, workers, leases that run down, and the newest detections."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.core.durations import iso
from holdfast.core.machine import State
from holdfast.core.records import Filter
from holdfast.insight.health import vanished_ids, worker_state
from holdfast.insight.views import name_of, queue_views
from holdfast.stores.protocol import Store
from holdfast.stores.rounds import together

LEASES = 200  # running jobs that are looked at
DETECTIONS = 50
DETECTED_S = 3600.0
RATE_S = 60.0  # the rates of a moving view are those of the last minute


def live_view(store: Store, known: Sequence[dict[str, Any]] | None = None) -> dict[str, Any]:
    """Show what moves: every queue, every worker, the leases with the least time left, and what was lost lately.

    known: the views of all queues, if the caller has them.
    """
    queues, workers, vanished, running, now, lost = together(
        lambda: queue_views(store, window_s=RATE_S) if known is None else known,
        store.workers,
        lambda: vanished_ids(store),
        lambda: store.find(Filter(states=(State.RUNNING,), limit=LEASES)),
        store.now,
        lambda: store.figures.lost(store.now().wall - DETECTED_S, DETECTIONS),
    )
    names = {worker.id: worker.name for worker in workers}
    leases = [
        {
            "id": job.id,
            "task": job.task,
            "worker": name_of(job.worker, names),
            "left_s": round(job.lease_until - now.lease, 1),
            "lease_s": job.lease_s,
            "attempt": job.attempt,
            "progress": job.progress,
        }
        for job in running
        if job.lease_until is not None
    ]
    return {
        "at": iso(now.wall),
        "queues": queues,
        "workers": [
            {
                "name": worker.name,
                "state": worker_state(worker, now, vanished),
                "running": worker.running,
                "slots": worker.slots,
                "rss_mb": worker.rss_mb,
                "beat_s": round(max(0.0, now.wall - worker.beat_at), 1),
                "release": worker.release,
            }
            for worker in workers
        ],
        "leases": sorted(leases, key=lambda lease: lease["left_s"]),
        "lost": lost.total,
        "detections": [
            {
                "at": iso(line.at),
                "id": line.job_id,
                "task": line.task,
                "worker": line.detail.get("worker") or line.worker,
                "detector": line.detail.get("detector"),
                "decision": line.detail.get("decision"),
            }
            for line in reversed(lost.lines)
        ],
    }
