"""Errors and traces of jobs in Sentry.

sentry_sdk.init(dsn=…)
instrument(app)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import sentry_sdk

from holdfast.app import App
from holdfast.core.labels import VALUE_MAX, meta_of
from holdfast.errors import Interrupted, RetryLater, Rollback, Snooze
from holdfast.runtime.log_fields import fields_of
from holdfast.tasks import Draft
from holdfast.worker.context import Context

_ASKED = (Snooze, RetryLater, Rollback, Interrupted)  # no errors: raised on purpose, or by a worker that stops it


def instrument(app: App) -> None:
    """Report to Sentry what tasks raise, once for each attempt, and the deaths of workers.

    Each attempt has a scope of its own and, where traces are sampled, a transaction that goes on the trace of the
    program that enqueued the job. Call it once, where the app is declared, before other middleware.
    """

    @app.enqueue_middleware
    def carry_trace(draft: Draft[Any]) -> Draft[Any]:
        carrier = {"sentry-trace": sentry_sdk.get_traceparent(), "baggage": sentry_sdk.get_baggage()}
        fitting = {name: value for name, value in carrier.items() if value and len(value) <= VALUE_MAX}
        return draft.using(meta=fitting) if fitting else draft

    @app.middleware
    def report_attempt(ctx: Context) -> Iterator[None]:
        job = ctx.job
        with sentry_sdk.isolation_scope() as scope:
            scope.set_tag("holdfast.task", job.task)
            scope.set_tag("holdfast.queue", job.queue)
            scope.set_context("holdfast", fields_of(job))
            trace = sentry_sdk.continue_trace(meta_of(job.meta), op="queue.process", name=job.task, source="task")
            asked: BaseException | None = None
            with sentry_sdk.start_transaction(trace):  # whatever leaves this block is an error to Sentry
                try:
                    yield
                except _ASKED as request:
                    asked = request
                except Exception as error:
                    sentry_sdk.capture_exception(error)
                    raise
            if asked is not None:
                raise asked

    @app.on("zombie")
    def report_death(event: Mapping[str, Any]) -> None:
        with sentry_sdk.new_scope() as scope:
            scope.set_tag("holdfast.task", str(event.get("task")))
            scope.set_context("holdfast", {name: str(value) for name, value in event.items()})
            sentry_sdk.capture_message(f"the worker of a job of {event.get('task')} died", level="error")
