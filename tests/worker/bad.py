"""Handlers that misbehave, each in its own way, at the top of a module where a cell can find them."""

import asyncio
import contextlib
import ctypes
import functools
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import holdfast.app
from holdfast import App, Context, Retry
from holdfast.errors import Snooze, StoreUnavailable

NOW = 0.01  # what a loop waits for is there soon


def segfault() -> None:
    ctypes.string_at(0)


def leave_at_once() -> None:
    os._exit(3)


def kill_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def tell_and_spin(ctx: Context) -> None:
    ctx.log.warning("going round")
    spin()


def tell_and_kill_itself(ctx: Context) -> None:
    ctx.log.warning("last words")
    kill_itself()


def tell_and_raise(ctx: Context) -> None:
    ctx.log.warning("about to raise")
    raise ValueError("as told")


def hog() -> int:
    hoard = []
    while len(hoard) < 10_000:
        hoard.append(bytearray(1 << 20))
    return len(hoard)


def spin() -> None:
    while True:
        pass


def hold_the_lock(seconds: float) -> str:
    """Hold Python's lock in C: no other thread of this process gets a turn."""
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))
    return "let go"


def hold_the_lock_for_long() -> None:
    hold_the_lock(60)


def read_from_silence() -> None:
    ours, theirs = socket.socketpair()
    ours.recv(1)
    theirs.close()


def ignore_everything() -> None:
    while True:
        try:
            time.sleep(60)
        except BaseException:
            continue


def ignore_everything_aloud(ctx: Context) -> None:
    ctx.progress(note=str(os.getpid()))
    ignore_everything()


def leave_a_thread(ctx: Context, folder: str) -> None:
    """Leave a thread behind that speaks while the next job runs in this process."""

    def speak() -> None:
        while not Path(folder, "next").exists():
            time.sleep(NOW)
        try:
            ctx.progress(0.9, note="of another job")
            said = "accepted"
        except BaseException as error:
            said = str(error)
        Path(folder, "saying").write_text(said)
        Path(folder, "saying").rename(Path(folder, "said"))  # never seen half written

    threading.Thread(target=speak, daemon=True).start()


def hear_a_thread(folder: str) -> str:
    """Let the thread speak that the job before has left behind."""
    Path(folder, "next").touch()
    while not Path(folder, "said").exists():
        time.sleep(NOW)
    return Path(folder, "said").read_text()


def ignore_the_end() -> None:
    """Not even a polite signal ends it."""
    ctypes.CDLL(None).signal(int(signal.SIGTERM), 1)  # SIG_IGN, without the main thread
    ignore_everything()


async def swallow_cancellation(ctx: Context) -> None:
    """An async handler that is polite to the event loop, and to nobody else."""
    ctx.progress(note=str(os.getpid()))
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)


def talk_nonsense() -> None:
    """Write over the line to the worker."""
    os.write(int(sys.argv[1]), b"\xff" * 100)
    ignore_everything()


def recurse(depth: int = 0) -> int:
    return recurse(depth + 1) + 1


def recurse_in_c() -> None:
    def deeper(number: int) -> int:
        return max([number], key=lambda each: deeper(each + 1))

    before = sys.getrecursionlimit()
    sys.setrecursionlimit(10**9)
    try:
        deeper(0)
    finally:
        sys.setrecursionlimit(before)  # where Python 3.12 knows better, the cell lives on


def return_too_much() -> str:
    return "x" * (1 << 24)


def return_a_gibibyte() -> str:
    return "x" * (1 << 30)


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even that")


def raise_mute() -> None:
    raise Mute


class Endless(Exception):
    """Its text never comes to an end."""

    def __str__(self) -> str:
        while True:
            pass


def raise_endless() -> None:
    raise Endless


class Stuffed(Exception):
    """Holds what cannot be serialised, or copied, or compared."""


def raise_stuffed() -> None:
    raise Stuffed(threading.Lock(), lambda: None, sys.stdout, open(os.devnull))  # noqa: SIM115


def leave_a_generator_open() -> Iterator[int]:
    def numbers() -> Iterator[int]:
        try:
            yield 1
        finally:
            time.sleep(0)

    left = numbers()
    next(left)
    return left


async def leave_an_async_generator_open() -> AsyncIterator[int]:
    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            await asyncio.sleep(0)

    left = numbers()
    await anext(left)
    return left


def leave_by_exit() -> None:
    sys.exit(7)


def interrupt_by_keyboard() -> None:
    raise KeyboardInterrupt


def start_a_grandchild(pid_file: str, ending: str, own_session: bool = False) -> str:
    """Start a process that would outlive us, and end in one way or another."""
    child = subprocess.Popen(["sleep", "600"], start_new_session=own_session)
    Path(f"{pid_file}.new").write_text(str(child.pid))
    Path(f"{pid_file}.new").rename(pid_file)  # another attempt may write it while the test reads
    if ending == "crash":
        segfault()
    if ending == "hang":
        ignore_everything()
    return ending


def fork_and_return(pid_file: str) -> str:
    """The forked child comes back from the handler as well."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        Path(pid_file).write_text(str(child))
    return "parent" if child else "child"


async def exit_in_a_subtask() -> None:
    """The event loop lets it pass, and ends."""

    async def leave() -> None:
        sys.exit(5)

    await asyncio.create_task(leave())


async def exit_in_a_callback() -> None:
    asyncio.get_running_loop().call_soon(sys.exit, 5)
    await asyncio.sleep(60)


class SlowExit(SystemExit):
    """One whose text takes longer than a worker needs to give back its jobs."""

    def __str__(self) -> str:
        time.sleep(0.5)
        return super().__str__()


async def exit_slowly_in_a_callback() -> None:
    def leave() -> None:
        raise SlowExit(5)

    asyncio.get_running_loop().call_soon(leave)
    await asyncio.sleep(60)


class EndlessExit(SystemExit):
    def __str__(self) -> str:
        while True:
            time.sleep(NOW)


async def exit_endlessly_in_a_callback() -> None:
    def leave() -> None:
        raise EndlessExit(5)

    asyncio.get_running_loop().call_soon(leave)
    await asyncio.sleep(60)


async def stop_the_loop() -> None:
    asyncio.get_running_loop().stop()
    await asyncio.sleep(60)


async def fork_and_await(pid_file: str) -> str:
    """The forked child goes on with the event loop of its parent."""
    child = os.fork()
    if child:
        Path(pid_file).write_text(str(child))
    await asyncio.sleep(NOW)
    return "parent" if child else "child"


def fork_inside(ctx: Context, pid_file: str) -> str:
    """The forked child has a transaction of its parent open, and uses it."""
    with ctx.transaction() as db:
        child = os.fork()
        marks = "?, ?" if isinstance(db, sqlite3.Connection) else "%s, %s"
        db.execute(f"INSERT INTO effect VALUES ({marks})", (ctx.job.id, ctx.fence if child else -1))
    if child:
        os.waitpid(child, 0)
        Path(pid_file).write_text(str(child))
    return "parent" if child else "child"


# --- Handlers that behave ---------------------------------------------------------------------------------


def neighbour(ctx: Context, until: str) -> int:
    """Say now and then that we live, until a file is there."""
    while not Path(until).exists():
        ctx.progress(note=str(os.getpid()))
        time.sleep(NOW)
    return os.getpid()


async def polite_neighbour(ctx: Context, until: str) -> int:
    """The same on the event loop."""
    while not Path(until).exists():
        ctx.progress(note=str(os.getpid()))
        await asyncio.sleep(NOW)
    return os.getpid()


def pid() -> int:
    return os.getpid()


def tell(ctx: Context) -> dict[str, Any]:
    """Say what the context says."""
    ctx.log.warning("from %s", "inside")
    ctx.heartbeat()
    ctx.progress(0.5, note="half")
    left = ctx.time_left()
    return {
        "id": ctx.job.id,
        "attempt": ctx.attempt,
        "fence": ctx.fence,
        "cancelled": ctx.cancelled,
        "time_left": left is not None and 0 < left <= 60,
        "pid": os.getpid(),
    }


def snooze_once(ctx: Context) -> int:
    if ctx.attempt == 1:
        raise Snooze(0.01)
    return ctx.attempt


def pay(ctx: Context, ending: str) -> str:
    """Write inside the transaction that ends with the attempt."""
    with ctx.transaction() as db:
        marks = "?, ?" if isinstance(db, sqlite3.Connection) else "%s, %s"
        db.execute(f"INSERT INTO effect VALUES ({marks})", (ctx.job.id, ctx.fence))
        if ending == "raise":
            raise ValueError("no")
        if ending == "crash":
            os.kill(os.getpid(), signal.SIGKILL)
    return "paid"


def wait_to_be_stopped(ctx: Context) -> None:
    ctx.progress(note=str(os.getpid()))
    while True:
        time.sleep(NOW)


def stall(ctx: Context) -> None:
    ctx.progress(0.25, note="so far")
    while True:
        time.sleep(NOW)


def keep_memory(mb: int) -> int:
    _kept.append(bytearray(b"x") * (mb << 20))
    return os.getpid()


_kept: list[bytearray] = []


def awaited(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return the same as an async function, which stands in this module under its own name."""

    @functools.wraps(fn)
    async def run(*arguments: Any, **named: Any) -> Any:
        return fn(*arguments, **named)

    run.__name__ = run.__qualname__ = f"a_{fn.__name__}"
    globals()[run.__name__] = run
    return run


ASYNC = {
    name: awaited(fn)
    for name, fn in tuple(globals().items())
    if callable(fn) and getattr(fn, "__module__", None) == __name__ and not isinstance(fn, type) and name != "awaited"
}


def write_while_the_store_is_away_at_first(ctx: Context) -> int:
    opens = holdfast.app.open_store
    if ctx.attempt == 1:
        holdfast.app.open_store = _away
    try:
        with ctx.transaction():
            return ctx.attempt
    finally:
        holdfast.app.open_store = opens


def _away(*given: Any, **options: Any) -> Any:
    raise StoreUnavailable("the server is away")


NOT_DECLINED = Retry(attempts_max=3, base_s=0.0, cap_s=0.0, never=(ValueError,))
_declares = App("memory://")


@_declares.task(name="declined", isolate=True, retry=NOT_DECLINED)
def declined() -> None:
    raise ValueError("declined")


_seen: list[str] = []


@_declares.on_worker_start
async def _begin() -> None:
    if "BAD_START" in os.environ:
        raise OSError("no database")
    _seen.append("started")


@_declares.middleware
def _told(ctx: Context) -> Iterator[None]:
    _seen.append("middleware")
    yield


@_declares.task(name="layered", isolate=True)
def layered() -> list[str]:
    return [*_seen, "layered"]


class Shared:
    """What isolated processes open for themselves."""

    state = "closed"


def open_shared() -> Iterator[Shared]:
    shared = Shared()
    shared.state = "open"
    yield shared
    shared.state = "closed"


_declares.resource(Shared, open_shared)


@_declares.task(name="uses", isolate=True)
def uses(shared: Shared) -> str:
    return shared.state


def fails_below(number: int) -> None:
    below(number)


def below(number: int) -> None:
    raise ValueError(f"no luck with {number}")
