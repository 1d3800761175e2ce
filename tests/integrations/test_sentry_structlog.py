"""Jobs in Sentry and structlog, with the real libraries. Nothing is sent anywhere."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import sentry_sdk
import structlog
from sentry_sdk.transport import Transport

from holdfast import App, Flow, Retry, RetryLater
from holdfast.integrations import sentry
from holdfast.integrations.structlog import add_job
from holdfast.testing import AppTester

ONCE = Retry(attempts_max=1)


class Kept(Transport):
    """Keeps what Sentry would send."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[dict[str, Any]] = []

    def capture_envelope(self, envelope: Any) -> None:
        self.events += [item.payload.json for item in envelope.items if item.payload.json is not None]


@pytest.fixture
def kept() -> Iterator[Kept]:
    transport = Kept()
    options: dict[str, Any] = {"default_integrations": False, "auto_enabling_integrations": False}
    sentry_sdk.init("https://key@sentry.example.org/1", transport=transport, traces_sample_rate=1.0, **options)
    yield transport
    sentry_sdk.init()  # without an address it sends nothing


def test_sentry_gets_each_error_with_its_job_and_the_trace_of_the_enqueue(kept: Kept, holdfast: AppTester) -> None:
    app = App("memory://")
    sentry.instrument(app)

    @app.task(name="wrong", retry=ONCE)
    def wrong() -> None:
        raise ValueError("no such order")

    @app.task(name="again", retry=Retry(attempts_max=2))
    def again() -> None:
        raise RetryLater(60)

    @app.workflow(name="parks")
    def parks(flow: Flow) -> None:
        flow.sleep(hours=1)

    with sentry_sdk.start_transaction(name="request") as request:
        job = wrong.enqueue()
    again.enqueue()
    parks.enqueue()
    holdfast.drain()
    [error] = [event for event in kept.events if "exception" in event]
    assert error["exception"]["values"][-1]["value"] == "no such order"
    assert error["tags"]["holdfast.task"] == "wrong"
    assert error["contexts"]["holdfast"]["job"] == job.id
    assert error["contexts"]["trace"]["trace_id"] == request.trace_id
    traces = {event["transaction"]: event["contexts"]["trace"] for event in kept.events if event.get("spans") == []}
    assert traces["wrong"]["op"] == "queue.process"
    assert traces["wrong"]["parent_span_id"] == request.span_id
    assert traces["wrong"]["status"] == "internal_error"
    assert "internal_error" not in (traces["again"].get("status"), traces["parks"].get("status"))


def test_sentry_gets_the_death_of_a_worker(kept: Kept, holdfast: AppTester) -> None:
    app = App("memory://")
    sentry.instrument(app)

    @app.task(name="fatal", on_crash="hold")
    def fatal() -> None: ...

    fatal.enqueue()
    holdfast.crash(during=fatal)
    holdfast.drain()
    app.hooks.flush(5)
    [death] = [event for event in kept.events if event.get("message")]
    assert death["message"] == "the worker of a job of fatal died"
    assert death["tags"]["holdfast.task"] == "fatal"


def test_structlog_says_which_job_a_line_is_about(holdfast: AppTester) -> None:
    app = App("memory://")
    lines: list[dict[str, Any]] = []

    def keep(logger: Any, method: str, event: Any) -> Any:
        lines.append(dict(event))
        raise structlog.DropEvent

    log = structlog.wrap_logger(None, processors=[add_job, keep])

    @app.task(name="sync")
    def sync() -> None:
        log.info("in a thread", task="my own")

    @app.task(name="awaited")
    async def awaited() -> None:
        await asyncio.to_thread(log.info, "on the loop")

    jobs = [sync.enqueue(), awaited.enqueue()]
    log.info("outside")
    holdfast.drain()
    assert lines[0] == {"event": "outside"}
    assert [(line["event"], line["job"], line["attempt"]) for line in lines[1:]] == [
        ("in a thread", jobs[0].id, 1),
        ("on the loop", jobs[1].id, 1),
    ]
    assert [line["task"] for line in lines[1:]] == ["my own", "awaited"]
