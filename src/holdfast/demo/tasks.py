"""The demo's app, as a user would write it: small jobs that flow, and the actors of the story.

`holdfast worker holdfast.demo.tasks:app` imports it like any other module. Every task works for as long as its argument
says to, in short naps, and says how far it is; what happens to it meanwhile is up to the script.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading

from holdfast.app import App
from holdfast.clock import pause
from holdfast.core.policy import Retry
from holdfast.worker.context import Context

PARENT = "HOLDFAST_DEMO_PID"  # in the environment of the workers: who started them
NAP_S = 0.05

app = App(journal="full")  # successes too, so that each can be counted


@app.task(name="thumbnail")
async def thumbnail(number: int, ms: int) -> int:
    """One of the many: over before anybody looks."""
    await asyncio.sleep(ms / 1000)
    return number


@app.task(name="flaky", priority=10, retry=Retry(base_s=0.6, jitter=False))
def flaky(ctx: Context, work_s: float) -> str:
    """Fails the first time."""
    _work(ctx, work_s)
    if ctx.attempt == 1:
        raise ConnectionError("the mail server did not answer")
    return "sent"


@app.task(name="render", priority=10)
def render(ctx: Context, film: str, work_s: float) -> str:
    """Act 1: its worker is killed in the middle."""
    _work(ctx, work_s)
    return f"{film}.mp4"


@app.task(name="export", priority=10)
def export(ctx: Context, table: str, work_s: float) -> str:
    """Act 2: its worker is killed together with the supervisor that would have noticed."""
    _work(ctx, work_s)
    return f"{table}.csv"


@app.task(name="invoice", priority=10, lease_s=2.0)
def invoice(ctx: Context, order_id: int, work_s: float) -> str:
    """Act 3: its worker is frozen for longer than this short lease."""
    _work(ctx, work_s)
    return f"invoice {order_id} by fence {ctx.fence}"


@app.task(name="charge", priority=10, on_crash="hold")
def charge(ctx: Context, order_id: int, cents: int, work_s: float) -> str:
    """Act 4: dangerous to repeat, so a person decides."""
    _work(ctx, work_s)
    return f"charged {cents} for order {order_id}"


@app.task(name="poison", priority=10, crashes_max=3, retry=Retry(base_s=0.25, jitter=False))
def poison(ctx: Context, work_s: float) -> None:
    """Act 5: kills whatever process runs it."""
    _work(ctx, work_s)
    os.kill(os.getpid(), signal.SIGKILL)


def _work(ctx: Context, work_s: float) -> None:
    began_at = app.clock.lease()
    while (done_s := app.clock.lease() - began_at) < work_s:
        ctx.progress(done_s / work_s)
        pause(NAP_S)
    ctx.progress(1.0)


def _leave_with_the_demo(parent: int) -> None:
    """End this whole process group once the demo is gone, even if it could not say so."""
    while os.getppid() == parent:
        pause(0.5)
    os.killpg(os.getpgrp(), signal.SIGKILL)


# Only in the supervisors: they are the demo's children and lead a group of their own. Workers follow their supervisor.
if os.environ.get(PARENT) == str(os.getppid()) and os.getpgrp() == os.getpid():
    threading.Thread(target=_leave_with_the_demo, args=(os.getppid(),), name="demo-tie", daemon=True).start()
