"""The read side: what a store holds, as people and programs are shown it. Nothing here changes anything.

The command line and the server show the same plain data, so a field means the same everywhere.
"""

from __future__ import annotations

from holdfast.core.times import duration
from holdfast.insight.deaths import WAITS, Death, deaths
from holdfast.insight.health import Ending, Health, endings, health, uncounted, worker_state
from holdfast.insight.schedules import schedule_views
from holdfast.insight.steps import (
    Branch,
    Progress,
    ahead,
    as_tree,
    asked,
    awaited,
    in_words,
    named,
    progress_of,
    result_of,
    state_of,
    step_view,
    steps_of,
    unrecorded,
    warnings_of,
    with_asking,
    workflow_view,
)
from holdfast.insight.views import (
    SHOWN_STATES,
    Names,
    all_jobs,
    event_view,
    find_jobs,
    job_records,
    job_story,
    job_view,
    lease_end,
    near_tasks,
    queue_views,
    scan_view,
    totals,
    worker_names,
    worker_view,
    zombie_view,
)
from holdfast.insight.why import Why, explain, in_short, why
from holdfast.insight.words import DECIDED, ago, brief, counted, moment, near, parsed, size
from holdfast.insight.zombies import look_back, zombies_view
from holdfast.stores.urls import shown_url

__all__ = [
    "DECIDED",
    "SHOWN_STATES",
    "WAITS",
    "Branch",
    "Death",
    "Ending",
    "Health",
    "Names",
    "Progress",
    "Why",
    "ago",
    "ahead",
    "all_jobs",
    "as_tree",
    "asked",
    "awaited",
    "brief",
    "counted",
    "deaths",
    "duration",
    "endings",
    "event_view",
    "explain",
    "find_jobs",
    "health",
    "in_short",
    "in_words",
    "job_records",
    "job_story",
    "job_view",
    "lease_end",
    "look_back",
    "moment",
    "named",
    "near",
    "near_tasks",
    "parsed",
    "progress_of",
    "queue_views",
    "result_of",
    "scan_view",
    "schedule_views",
    "shown_url",
    "size",
    "state_of",
    "step_view",
    "steps_of",
    "totals",
    "uncounted",
    "unrecorded",
    "warnings_of",
    "why",
    "with_asking",
    "worker_names",
    "worker_state",
    "worker_view",
    "workflow_view",
    "zombie_view",
    "zombies_view",
]
