"""The table of all routes. The OpenAPI document and the tests of roles and scopes are made from it."""

from __future__ import annotations

from typing import Any

from holdfast.core.access import ADMINS, OPERATORS, PRODUCERS, READERS, ROLES, WORKERS, Role
from holdfast.runtime.metrics import CONTENT_TYPE
from holdfast.server import attempts, events, fleet, health, jobs, liveness, metrics, openapi, sessions
from holdfast.server.call import Call
from holdfast.server.pages.pulse import pulse
from holdfast.server.routes import OPEN, Answer, Route
from holdfast.server.store_verbs import STORE_ROUTES

ANYBODY: frozenset[Role] = frozenset(ROLES)
ENQUEUERS: frozenset[Role] = PRODUCERS
WATCHERS = READERS | PRODUCERS  # a producer may ask what became of its jobs
CAS = "the act counts once for the state and fence that were sent"
SAME = "the same state results"


def _document(call: Call) -> Any:
    """Return the OpenAPI document of this table."""
    return Answer(openapi.document(PUBLIC_ROUTES), headers={"cache-control": "max-age=60"})


_HEALTH = (
    Route("GET", "/health/live", "Say whether this process lives", health.live, OPEN, "none", reply=health.Health),
    Route("GET", "/health/ready", "Say whether the store can be used", health.ready, OPEN, "none", reply=health.Health),
    Route(
        *("GET", "/metrics", "Read metrics, for Prometheus", metrics.metrics, READERS, "whole"),
        media_type=CONTENT_TYPE.partition(";")[0],
    ),
    Route("GET", "/v1/openapi.json", "Describe the API", _document, OPEN, "none"),
)

_SESSIONS = (
    Route(
        *("POST", "/v1/login", "Exchange a token for a cookie", sessions.login, OPEN, "none"),
        body=sessions.Login,
        body_max=sessions.LOGIN_MAX,
        reply=sessions.Me,
        while_read_only=True,
        repeat="it gives another cookie",
    ),
    Route(
        *("POST", "/v1/logout", "Take the cookie back", sessions.logout, OPEN, "none"),
        while_read_only=True,
        repeat=SAME,
    ),
    Route("GET", "/v1/me", "Show the user of this request", sessions.me, ANYBODY, "none", reply=sessions.Me),
)

_JOBS = (
    Route(
        *("POST", "/v1/jobs", "Enqueue a job", jobs.enqueue, ENQUEUERS, "refuse"),
        body=jobs.NewJobBody,
        statuses=(200, 201),
        repeat="with the same id, key or Idempotency-Key it is one job",
    ),
    Route(
        *("POST", "/v1/jobs/bulk", "Enqueue many jobs, all or none", jobs.enqueue_bulk, ENQUEUERS, "refuse"),
        body=jobs.BulkBody,
        bulk=True,
        repeat="with the same ids each is one job",
    ),
    Route("GET", "/v1/jobs", "List jobs, newest first", jobs.list_, READERS, "filter", query=jobs.ListQuery),
    Route(
        *("POST", "/v1/jobs/act", "Act on all jobs that match", jobs.act, OPERATORS, "filter"),
        body=jobs.BulkActBody,
        repeat="jobs that were acted on are refused, and nothing is done twice",
    ),
    Route("GET", "/v1/jobs/{id}", "Show a job", jobs.show, WATCHERS, "refuse", query=jobs.ShowQuery),
    Route(
        *("GET", "/v1/jobs/{id}/journal", "Show the events of a job", jobs.show_journal, READERS, "refuse"),
        query=fleet.BeforeQuery,
    ),
    *(
        Route(
            *("POST", f"/v1/jobs/{{id}}/{name}", summary, handler, OPERATORS, "refuse"),
            body=body,
            optional_body=body is not jobs.MoveBody,
            repeat=CAS,
        )
        for name, summary, handler, body in (
            ("retry", "Bring a job back", jobs.retry, jobs.RetryActBody),
            ("revive", "Bring a job back", jobs.retry, jobs.RetryActBody),
            ("cancel", "Stop a job", jobs.cancel, jobs.ActBody),
            ("hold", "Hold a job", jobs.hold, jobs.ActBody),
            ("resolve", "Answer for a held job", jobs.resolve, jobs.ResolveBody),
            ("move", "Change when a job runs", jobs.move, jobs.MoveBody),
        )
    ),
    Route(
        *("POST", "/v1/jobs/{id}/signals", "Signal a workflow", fleet.signal, ENQUEUERS, "refuse"),
        body=fleet.SignalBody,
        repeat="a workflow gets one signal of an id",
    ),
    Route(
        *("DELETE", "/v1/jobs/{id}", "Delete an ended job", jobs.delete, ADMINS, "refuse"),
        repeat="the job is not found",
    ),
)

_ATTEMPTS = (
    Route(
        *("POST", "/v1/workers", "Enrol a worker", attempts.enrol, WORKERS, "refuse"),
        body=attempts.WorkerBody,
        repeat="choose an id; one that is enrolled is refused",
    ),
    Route(
        *("DELETE", "/v1/workers/{id}", "Leave as a worker", attempts.leave, WORKERS, "refuse"),
        repeat="it is retired once",
    ),
    Route(
        *("GET", "/v1/workers/{id}/alive", "Stay connected as a worker", liveness.alive, WORKERS, "refuse"),
        media_type="text/plain",
    ),
    Route(
        *("POST", "/v1/claim", "Claim jobs, or wait for some", attempts.claim, WORKERS, "refuse"),
        body=attempts.ClaimBody,
        repeat="a claim_id gives the same jobs again",
    ),
    Route(
        *("POST", "/v1/beat", "Extend leases", attempts.beat, WORKERS, "refuse"),
        body=attempts.BeatBody,
        reply=attempts.BeatAnswer,
        repeat="leases last from the last beat",
    ),
    Route(
        *("POST", "/v1/record", "Record steps of an attempt", attempts.record, WORKERS, "refuse"),
        body=attempts.RecordBody,
        repeat="a step that is recorded stays as it is",
    ),
    Route(
        *("POST", "/v1/settle", "End attempts by their outcomes", attempts.settle, WORKERS, "refuse"),
        body=attempts.SettleBody,
        reply=attempts.SettleAnswer,
        bulk=True,
        repeat="the answer is already",
    ),
)

_FLEET = (
    Route("GET", "/v1/queues", "List queues", fleet.queues, READERS, "filter"),
    Route(
        *("POST", "/v1/queues/pause", "Pause a queue", fleet.pause, OPERATORS, "refuse"),
        body=fleet.QueueBody,
        repeat=SAME,
    ),
    Route(
        *("POST", "/v1/queues/resume", "Resume a queue", fleet.resume, OPERATORS, "refuse"),
        body=fleet.QueueBody,
        repeat=SAME,
    ),
    Route("GET", "/v1/limits", "List limits", fleet.limits, READERS, "filter"),
    Route(
        *("PATCH", "/v1/limits", "Set limits of a queue", fleet.limit, ADMINS, "refuse"),
        body=fleet.LimitBody,
        repeat=SAME,
    ),
    Route("GET", "/v1/workers", "List workers", fleet.workers, READERS, "filter", query=fleet.WorkersQuery),
    *(
        Route(
            *("POST", f"/v1/workers/{name}", summary, handler, OPERATORS, "whole"),
            body=fleet.WorkersBody,
            repeat=SAME,
        )
        for name, summary, handler in (
            ("drain", "Let workers of a name claim no more", fleet.drain),
            ("stop", "Stop workers of a name", fleet.stop),
            ("resume", "Take back what workers were asked", fleet.resume_orders),
        )
    ),
    Route(
        *("POST", "/v1/workers/{id}/gone", "Declare a worker dead", fleet.gone, OPERATORS, "refuse"),
        repeat="it is gone once",
    ),
    Route("GET", "/v1/tasks", "List published tasks", fleet.tasks, WATCHERS, "filter"),
    Route("GET", "/v1/schedules", "List schedules", fleet.schedules, READERS, "filter"),
    Route(
        *("POST", "/v1/schedules/pause", "Pause a schedule", fleet.pause_schedule, OPERATORS, "refuse"),
        body=fleet.KeyBody,
        repeat=SAME,
    ),
    Route(
        *("POST", "/v1/schedules/resume", "Resume a schedule", fleet.resume_schedule, OPERATORS, "refuse"),
        body=fleet.KeyBody,
        repeat=SAME,
    ),
    Route(
        *("POST", "/v1/schedules/fire", "Enqueue the job of a schedule", fleet.fire, OPERATORS, "refuse"),
        body=fleet.KeyBody,
        statuses=(200, 201),
        repeat="each call enqueues a job, unless the schedule's job has a key",
    ),
    Route(
        *("GET", "/v1/workflows", "List workflows, newest first", jobs.list_workflows, READERS, "filter"),
        query=jobs.ListQuery,
    ),
    Route("GET", "/v1/workflows/{id}", "Show a workflow", fleet.workflow, READERS, "refuse"),
    Route(
        *("POST", "/v1/workflows/{id}/retry", "Run a workflow from a step", fleet.retry_from, OPERATORS, "refuse"),
        body=fleet.StepBody,
        repeat=CAS,
    ),
    Route(
        *("POST", "/v1/workflows/{id}/rollback", "Undo a workflow", fleet.rollback, OPERATORS, "refuse"),
        body=jobs.ActBody,
        optional_body=True,
        repeat=CAS,
    ),
    Route(
        *("POST", "/v1/workflows/{id}/fork", "Start another workflow from a step", fleet.fork, OPERATORS, "refuse"),
        body=fleet.ForkBody,
        statuses=(201,),
        repeat="each call starts one",
    ),
    Route("GET", "/v1/batches", "List batches, newest first", fleet.batches, WATCHERS, "whole", query=fleet.LimitQuery),
    Route("GET", "/v1/batches/{id}", "Show a batch", fleet.batch, WATCHERS, "whole"),
    Route("GET", "/v1/stats", "Count jobs by queue", fleet.stats, READERS, "filter"),
    Route(
        *("GET", "/v1/series", "Show throughput, waits and run times", fleet.series, READERS, "filter"),
        query=fleet.SeriesQuery,
    ),
    Route("GET", "/v1/zombies", "Look back at lost attempts", fleet.zombies, READERS, "whole", query=fleet.SinceQuery),
    Route(
        *("GET", "/v1/errors", "Group errors by their fingerprint", fleet.errors, READERS, "whole"),
        query=fleet.ErrorsQuery,
    ),
    Route("GET", "/v1/alerts", "Show alerts and their rules", fleet.alerts, READERS, "whole"),
    Route("GET", "/v1/duties", "Show who does the chores of the fleet", fleet.duties, READERS, "whole"),
    Route("GET", "/v1/audit", "Show what people did", fleet.audit, READERS, "filter", query=fleet.AuditQuery),
    Route("GET", "/v1/journal", "Show the journal", fleet.journal, READERS, "filter", query=fleet.JournalQuery),
    Route(
        *("GET", "/v1/events", "Stream the journal", events.events, READERS, "filter"),
        query=events.EventsQuery,
        media_type="text/event-stream",
    ),
    Route(
        *("GET", "/v1/pulse", "Tell programs that show the store when it has changed", pulse, READERS, "filter"),
        media_type="text/event-stream",
    ),
    Route(
        *("POST", "/v1/reap", "Recover lost jobs", fleet.reap, OPERATORS, "whole"),
        body=fleet.ReapBody,
        optional_body=True,
        repeat="a job is recovered once",
    ),
    Route(
        *("POST", "/v1/tick", "Run what is due, within a budget", fleet.tick, OPERATORS, "whole"),
        body=fleet.TickBody,
        optional_body=True,
        repeat="it runs what is due by then",
    ),
)

ROUTES: tuple[Route, ...] = (*_HEALTH, *_SESSIONS, *_JOBS, *_ATTEMPTS, *_FLEET, *STORE_ROUTES)
PUBLIC_ROUTES: tuple[Route, ...] = tuple(route for route in ROUTES if not route.internal)
