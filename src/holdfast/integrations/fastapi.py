"""FastAPI and Starlette: the lifespan, the app as a dependency, the state of a job, and its progress as events.

api = FastAPI(lifespan=lifespan(app, slots=4))  # with a worker on threads of this process

@api.get("/jobs/{id}/events")
async def events(id: str, jobs: Annotated[App, Depends(get_app)]) -> Response:
    return progress_events(jobs, id)
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import HTTPConnection
from starlette.responses import Response, StreamingResponse

from holdfast.app import App
from holdfast.core.machine import ENDED
from holdfast.errors import UsageError
from holdfast.jobs import Job

LOOK_S = 0.5


def lifespan(
    app: App, *, slots: int = 0, grace_period_s: float = 30.0
) -> Callable[[Starlette], AbstractAsyncContextManager[None]]:
    """Return a lifespan that opens the store, gives `get_app` its app, and runs a worker if it has slots.

    At the end jobs that run get `grace_period_s` to end; the others are released, and another worker runs them.
    While an `AppTester` runs the jobs of the app, it starts no worker. The store stays open at the end, because a test
    may run the lifespan again: close the app when the process ends. To do more, call it in a lifespan of your own:
    `async with lifespan(app)(api): yield`.
    """

    @asynccontextmanager
    async def running(host: Starlette) -> AsyncIterator[None]:
        await app.aio.counts()  # now, not at the first request
        host.state.holdfast = app
        if not slots or app.in_test:
            yield
            return
        async with app.worker(slots=slots, grace_period_s=grace_period_s):
            yield

    return running


def get_app(request: HTTPConnection) -> App:
    """Return the app of the lifespan: `Depends(get_app)`."""
    found = getattr(request.app.state, "holdfast", None)
    if not isinstance(found, App):
        raise UsageError(
            "no lifespan has set the app: FastAPI(lifespan=lifespan(app)); in tests, `with TestClient(api):`"
        )
    return found


def status_of(job: Job[Any]) -> dict[str, Any]:
    """Return what a page shows of a job: its state, its progress and its error."""
    row = job.row
    return {"id": row.id, "state": row.state.value, "progress": row.progress, "note": row.note, "error": row.error}


async def progress(app: App, id: str, *, every_s: float = LOOK_S) -> AsyncIterator[dict[str, Any]]:
    """Yield the status of a job whenever it has changed, until the job has ended. Raises `NotFound`."""
    seen: dict[str, Any] | None = None
    while True:
        job = await app.aio.get(id)
        if (status := status_of(job)) != seen:
            yield status
            seen = status
        if job.state in ENDED:
            return
        await asyncio.sleep(every_s)


def progress_events(app: App, id: str, *, every_s: float = LOOK_S) -> Response:
    """Return the status of a job as server-sent events, which a browser reads with `EventSource`."""

    async def events() -> AsyncIterator[bytes]:
        async for status in progress(app, id, every_s=every_s):
            yield b"data: " + msgspec.json.encode(status) + b"\n\n"

    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(events(), media_type="text/event-stream", headers=headers)
