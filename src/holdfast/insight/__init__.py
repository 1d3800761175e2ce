"""The read side: what a store holds, as people and programs are shown it. Nothing here changes anything.

The command line and the server show the same plain data, so a field means the same everywhere.
"""

from __future__ import annotations

from holdfast.insight.health import Ending, Health, endings, health, worker_state
from holdfast.insight.schedules import schedule_views
from holdfast.insight.steps import depth_of, progress_of, step_view, steps_of, took, waits_for
from holdfast.insight.views import (
    SHOWN_STATES,
    Names,
    Why,
    all_jobs,
    event_view,
    explain,
    find_jobs,
    in_short,
    job_records,
    job_story,
    job_view,
    lease_end,
    near_tasks,
    parsed,
    queue_views,
    scan_view,
    totals,
    why,
    worker_names,
    worker_view,
    zombie_view,
)
from holdfast.insight.words import DECIDED, ago, brief, counted, duration, near
from holdfast.insight.zombies import look_back, zombies_view
from holdfast.stores.urls import shown_url

__all__ = [
    "DECIDED",
    "SHOWN_STATES",
    "Ending",
    "Health",
    "Names",
    "Why",
    "ago",
    "all_jobs",
    "brief",
    "counted",
    "depth_of",
    "duration",
    "endings",
    "event_view",
    "explain",
    "find_jobs",
    "health",
    "in_short",
    "job_records",
    "job_story",
    "job_view",
    "lease_end",
    "look_back",
    "near",
    "near_tasks",
    "parsed",
    "progress_of",
    "queue_views",
    "scan_view",
    "schedule_views",
    "shown_url",
    "step_view",
    "steps_of",
    "took",
    "totals",
    "waits_for",
    "why",
    "worker_names",
    "worker_state",
    "worker_view",
    "zombie_view",
    "zombies_view",
]
