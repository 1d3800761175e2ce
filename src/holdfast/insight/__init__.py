"""The read side: what a store holds, as people and programs are shown it. Nothing here changes anything.

The command line and the server show the same plain data, so a field means the same everywhere.
"""

from __future__ import annotations

from holdfast.core.durations import duration
from holdfast.core.text import counted
from holdfast.insight.alerts import alerts_view
from holdfast.insight.attempts import AttemptView, attempts_of, span_of
from holdfast.insight.audit import act_view, acts_of_people, pauses
from holdfast.insight.batches import batch_view, batch_views
from holdfast.insight.deaths import WAITS, StepDeath, deaths
from holdfast.insight.duties import duty_views
from holdfast.insight.errors import error_view, error_views
from holdfast.insight.explain import explain, in_short
from holdfast.insight.format import DECIDED, ago, brief, first_line, moment, near, parsed, size
from holdfast.insight.health import (
    BEATING,
    Ending,
    Uncounted,
    endings,
    fresh_since,
    health,
    uncounted,
    vanished_ids,
    worker_state,
)
from holdfast.insight.incident import incident_view
from holdfast.insight.live import live_view
from holdfast.insight.schedules import next_runs, schedule_jobs, schedule_views, schedules_named, when
from holdfast.insight.search import TextSearch
from holdfast.insight.selection import (
    DETECTORS,
    PREFIX_LEAST,
    Selection,
    asking_jobs,
    first_selected,
    full_id,
    full_ids,
    job_named,
    selected,
    task_named,
    with_full_task,
)
from holdfast.insight.series import FRAMES, Window, series_view
from holdfast.insight.status import status_view
from holdfast.insight.steps import (
    Branch,
    WorkflowProgress,
    ahead,
    as_tree,
    asked,
    asking,
    awaited,
    awaited_jobs,
    failed_tries,
    in_words,
    is_at,
    named,
    newest,
    progress_of,
    result_of,
    since_each,
    state_of,
    steps_of,
    unrecorded,
    warnings_of,
    with_failures,
    workflow_view,
)
from holdfast.insight.tasks import task_view, task_views
from holdfast.insight.tokens import token_view
from holdfast.insight.views import (
    SHOWN_STATES,
    Names,
    all_jobs,
    drains_in,
    event_view,
    find_jobs,
    gone_cause,
    job_records,
    job_story,
    job_view,
    key_scope,
    lease_end,
    limits_view,
    locked_rows,
    near_tasks,
    order_view,
    queue_views,
    scan_view,
    totals,
    walk_jobs,
    worker_names,
    worker_view,
    worker_views,
)
from holdfast.insight.workers import silent_workers, worker_reports
from holdfast.insight.zombies import Lookback, look_back, lost_views, zombies_view
from holdfast.stores.urls import shown_url
