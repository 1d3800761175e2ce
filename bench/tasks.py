"""The apps that the measured workers run; their store comes from $HOLDFAST_DB."""

from __future__ import annotations

import asyncio
import time

from holdfast import App, Context, Retry


async def async_noop() -> None:
    pass


def sync_noop() -> None:
    pass


async def stamp() -> float:
    """Say when the handler started; this clock is one for all processes of the machine."""
    return time.monotonic()


async def stamp_aside() -> float:
    return time.monotonic()


async def nap(ctx: Context, length_s: float, text: str = "", fails: bool = False) -> None:
    """Take this long; fail at the first attempt if that is wanted."""
    await asyncio.sleep(length_s)
    if fails and ctx.attempt == 1:
        raise ValueError("no such thing " * 8)


async def long_nap(length_s: float) -> None:
    await asyncio.sleep(length_s)


def fails() -> None:
    raise ValueError("no such thing " * 8)


SHORT_LEASE_S = 3.0  # of `long_nap`: one beat a second


def make_app(url: str | None = None, *, aside: bool = False) -> App:
    app = App(url)
    for fn in (async_noop, sync_noop, stamp):
        app.task(fn)
    app.task(retry=Retry(attempts_max=2, base_s=0.0, cap_s=0.0))(nap)
    app.task(lease_s=SHORT_LEASE_S)(long_nap)
    app.task(retry=Retry(attempts_max=1))(fails)
    if aside:
        app.task(queue="aside")(stamp_aside)
    return app


app = make_app()
app_aside = make_app(aside=True)  # serves two queues
