"""OpenTelemetry: a span for each enqueue, each attempt and each lost attempt. Needs the extra `holdfast[otel]`.

The metadata of a job carries the `traceparent` of its enqueue, so spans of other programs belong together. All names
are here, because the conventions for messaging may still change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context as TraceContext
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from holdfast.app import App
from holdfast.core.labels import meta_of
from holdfast.core.records import Job, NewJob
from holdfast.tasks import Draft
from holdfast.version import __version__
from holdfast.worker.context import Context

PARENT = "traceparent"  # in the metadata of a job
CHILD_WITHIN_S = 3600.0
_propagator = TraceContextTextMapPropagator()


def instrument(
    app: App, *, tracer_provider: trace.TracerProvider | None = None, child_within_s: float = CHILD_WITHIN_S
) -> None:
    """Make spans for the jobs of an app. Call it once, before other middleware is declared.

    The first attempt is a child of the enqueue if it begins within `child_within_s` of it. Other attempts are roots
    with a link to the enqueue: a trace that lasts for days helps nobody.
    """
    tracer = trace.get_tracer("holdfast", __version__, tracer_provider)

    @app.enqueue_middleware
    def send(draft: Draft[Any]) -> Draft[Any]:
        named = _attributes(draft.new, "send")
        with tracer.start_as_current_span(f"send {draft.new.queue}", kind=trace.SpanKind.PRODUCER, attributes=named):
            carrier: dict[str, str] = {}
            _propagator.inject(carrier)
        return draft.using(meta={PARENT: carrier[PARENT]}) if PARENT in carrier else draft

    @app.middleware
    def process(ctx: Context) -> Iterator[None]:
        job, parent = ctx.job, _parent(meta_of(ctx.job.meta))
        waited_s = (job.claimed_at or job.created_at) - job.created_at
        is_child = parent is not None and ctx.attempt == 1 and waited_s <= child_within_s
        around = trace.set_span_in_context(trace.NonRecordingSpan(parent)) if parent and is_child else TraceContext()
        numbers = {"holdfast.attempt": ctx.attempt, "holdfast.fence": ctx.fence}
        with tracer.start_as_current_span(
            f"process {job.task}",
            context=around,
            kind=trace.SpanKind.CONSUMER,
            attributes={**_attributes(job, "process"), **numbers},
            links=() if is_child else _links(parent),
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield
            except Exception as error:
                span.record_exception(error)
                span.set_status(trace.Status(trace.StatusCode.ERROR, type(error).__name__))
                span.set_attribute("holdfast.outcome", "failed")
                raise
            except BaseException as interruption:  # it waits, or has to stop: not a failure of the code
                span.set_attribute("holdfast.outcome", type(interruption).__name__.lower())
                raise
            span.set_attribute("holdfast.outcome", "succeeded")

    def lost(event: Mapping[str, Any]) -> None:
        facts = {f"holdfast.{name}": value for name, value in event.items() if isinstance(value, str | int | float)}
        links = _links(_parent(event.get("meta", {})))
        with tracer.start_as_current_span("settle", context=TraceContext(), attributes=facts, links=links) as span:
            span.add_event("zombie", facts)

    app.on("zombie", lost)


def _attributes(job: NewJob | Job, operation: str) -> dict[str, str]:
    return {
        "messaging.system": "holdfast",
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": job.queue,
        "messaging.message.id": job.id,
        "holdfast.task": job.task,
    }


def _parent(meta: Mapping[str, str]) -> trace.SpanContext | None:
    """Return the span of the enqueue; None if the job has none, or a text that is none."""
    found = trace.get_current_span(_propagator.extract({PARENT: meta.get(PARENT, "")}, TraceContext()))
    return found.get_span_context() if found.get_span_context().is_valid else None


def _links(parent: trace.SpanContext | None) -> tuple[trace.Link, ...]:
    return () if parent is None else (trace.Link(parent),)
