"""The tasks of test_options.py: copied into the folder of a world as its module of tasks; every process imports them.

What happens is written to the ledger, a line each, with the process that did it.
"""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

from holdfast import App, Context, GiveUp, Retry, RetryLater, injected

FOLDER = Path(os.environ["CRASH_FOLDER"])
app = App()


def write(event: str, ctx: Context | None = None) -> None:
    line = {"event": event, "pid": os.getpid(), "attempt": ctx.attempt if ctx is not None else None}
    ledger = os.open(FOLDER / "options", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(ledger, json.dumps(line).encode() + b"\n")
    os.close(ledger)


def die_at_first(ctx: Context) -> None:
    if ctx.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)


@app.task(name="short", queue="short")
def short(ctx: Context) -> int:
    """Say that it runs."""
    write("start", ctx)
    return ctx.attempt


@app.task(name="silent", ignore_result=True)
def silent(ctx: Context) -> str:
    """Return what is not to be stored."""
    write("start", ctx)
    return "x" * 100


@app.task(name="begets")
def begets(ctx: Context) -> int:
    """Store a child, and die before the end is reported."""
    short.using(id=f"{ctx.job.id}-child").enqueue()
    die_at_first(ctx)
    return ctx.attempt


def at_once(failures: int) -> float:
    """Be the backoff of a task."""
    write(f"backoff {failures}")
    return 0.0


@app.task(
    name="picky", retry=Retry(attempts_max=9, base_s=0.01, on=(OSError,), never=(FileNotFoundError,), backoff=at_once)
)
def picky(ctx: Context) -> None:
    """Fail with what is tried again, ask for later, and give up."""
    write("start", ctx)
    die_at_first(ctx)
    if ctx.attempt == 2:
        raise OSError("nobody answers")
    if ctx.attempt == 3:
        raise RetryLater(0.0, "ask again")
    raise GiveUp("nobody will")


class Pool:
    """A thing that a process opens once."""

    def __init__(self) -> None:
        self.pid = os.getpid()


def open_pool() -> Iterator[Pool]:
    write("opened")
    yield Pool()
    write("closed")


app.resource(Pool, open_pool)


@app.middleware
def layer(ctx: Context) -> Iterator[None]:
    if ctx.job.task != "uses":
        yield
        return
    write("before", ctx)
    try:
        yield
    finally:
        write("after", ctx)


@app.on_worker_start
def started() -> None:
    write("worker")


@app.task(name="uses")
def uses(ctx: Context, pool: Pool = injected) -> bool:
    """Say whether the pool is one of this process."""
    write("start", ctx)
    die_at_first(ctx)
    return pool.pid == os.getpid()
