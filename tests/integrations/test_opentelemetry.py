"""Spans of enqueues, attempts and lost attempts, as an exporter gets them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from time import sleep
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from holdfast import App, Retry
from holdfast.core.worker_exit import WorkerExit
from holdfast.integrations.opentelemetry import instrument
from tests.factory import enrol


class Traced:
    """An app whose spans are kept in memory."""

    def __init__(self, **options: float) -> None:
        self.app = App("memory://")
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        instrument(self.app, tracer_provider=self.provider, **options)

    def close(self) -> None:
        self.app.close()
        self.provider.shutdown()

    def spans(self, name: str) -> list[Any]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]


@pytest.fixture
def traced() -> Iterator[Traced]:
    traced = Traced()
    yield traced
    traced.close()


def test_the_first_attempt_is_a_child_of_its_enqueue_and_others_are_linked(traced: Traced) -> None:
    app = traced.app

    @app.task(name="charge", queue="money", retry=Retry(attempts_max=2, base_s=0, cap_s=0))
    def charge() -> None:
        raise ValueError("declined")

    with traced.provider.get_tracer("shop").start_as_current_span("checkout") as checkout:
        job = charge.enqueue()
    app.tick(budget_s=20)
    [sent] = traced.spans("send money")
    assert sent.kind is SpanKind.PRODUCER
    assert sent.parent.span_id == checkout.get_span_context().span_id
    first, second = sorted(traced.spans("process charge"), key=lambda span: span.attributes["holdfast.attempt"])
    assert first.kind is SpanKind.CONSUMER
    assert first.parent.span_id == sent.context.span_id
    assert first.context.trace_id == checkout.get_span_context().trace_id
    assert first.links == ()
    assert second.parent is None
    assert [link.context.span_id for link in second.links] == [sent.context.span_id]
    assert second.context.trace_id != first.context.trace_id
    for span in (first, second):
        assert span.status.status_code is StatusCode.ERROR
        assert span.attributes["holdfast.outcome"] == "failed"
        assert span.attributes["messaging.message.id"] == job.id
        assert "declined" in span.events[0].attributes["exception.message"]


def test_a_job_that_starts_late_begins_a_trace_of_its_own() -> None:
    with closing(Traced(child_within_s=0.05)) as traced:

        @traced.app.task(name="late")
        def late() -> None: ...

        late.using(run_after=0.1).enqueue()
        sleep(0.1)
        traced.app.tick(budget_s=20)
        [span], [sent] = traced.spans("process late"), traced.spans("send default")
        assert span.parent is None
        assert [link.context.span_id for link in span.links] == [sent.context.span_id]
        assert span.attributes["holdfast.outcome"] == "succeeded"
        assert span.status.status_code is StatusCode.UNSET


def test_a_job_that_a_job_enqueues_is_below_its_attempt(traced: Traced) -> None:
    app = traced.app

    @app.task(name="inner", queue="inner")
    def inner() -> None: ...

    @app.task(name="outer")
    def outer() -> None:
        inner.enqueue()

    outer.enqueue()
    app.tick(budget_s=20)
    [outside], [sent], [inside] = (traced.spans(name) for name in ("process outer", "send inner", "process inner"))
    assert sent.parent.span_id == outside.context.span_id
    assert inside.parent.span_id == sent.context.span_id


def test_a_lost_attempt_is_an_event_of_the_reapers_span(traced: Traced) -> None:
    app = traced.app

    @app.task(name="lost", queue="mail")
    def lost() -> None: ...

    job = lost.enqueue()
    worker = enrol(app.store, queues=["mail"])
    [claimed] = app.store.claim(worker, "claim", ["mail"], ["lost"], 1)
    assert claimed.id == job.id
    app.store.retire(worker, "killed", how=WorkerExit("vanished"))
    assert app.reap().recovered == 1
    assert app.hooks.flush()
    [span], [sent] = traced.spans("settle"), traced.spans("send mail")
    assert span.parent is None
    assert [link.context.span_id for link in span.links] == [sent.context.span_id]
    [event] = span.events
    assert event.name == "zombie"
    assert event.attributes["holdfast.id"] == job.id
    assert event.attributes["holdfast.detector"] == "vanished"


@pytest.mark.parametrize("text", ["", "nonsense", "00-0-0-01", "00-" + "0" * 32 + "-" + "0" * 16 + "-01"])
def test_a_traceparent_that_is_none_is_left_out(traced: Traced, text: str) -> None:
    app = traced.app

    @app.task(name="odd")
    def odd() -> None: ...

    add = odd.using(meta={"traceparent": text or "x"}).job().new
    app.store.add([add])
    app.tick(budget_s=20)
    [span] = traced.spans("process odd")
    assert span.parent is None
    assert span.links == ()
