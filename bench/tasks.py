"""The apps that the measured workers run; their store comes from $HOLDFAST_DB."""

from __future__ import annotations

import time

from holdfast import App


async def async_noop() -> None:
    pass


def sync_noop() -> None:
    pass


async def stamp() -> float:
    """Say when the handler started; this clock is one for all processes of the machine."""
    return time.monotonic()


async def stamp_aside() -> float:
    return time.monotonic()


def make_app(url: str | None = None, *, aside: bool = False) -> App:
    app = App(url)
    for fn in (async_noop, sync_noop, stamp):
        app.task(fn)
    if aside:
        app.task(queue="aside")(stamp_aside)
    return app


app = make_app()
app_aside = make_app(aside=True)  # serves two queues
