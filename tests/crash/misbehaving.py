"""An app whose tasks misbehave without isolation, for real workers: the handlers of tests/worker/bad.py, in a thread
and on the event loop, and how a job of each must end."""

import asyncio
import os
import resource
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from holdfast import App, Retry
from tests.worker import bad

ONCE: dict[str, Any] = {"retry": Retry(attempts_max=1), "crashes_max": 1}
LIMIT = {"timeout_s": 1.5}
FAILED, TIMED_OUT, CANCELLED = ("failed", "dead"), ("timed_out", "dead"), ("cancelled",)
NOT_STOPPED = "its handler did not stop and was given up"
UNSTORABLE = "the result could not be stored: "
HELD_S = 6.0  # the lock of Python is, for several of these:
SHORT_LEASE_S = 1.2
ROOM = 3 << 29  # bytes that a hog may take beside what its process has


class Case(NamedTuple):
    """How a job ends, and what is said of it."""

    kinds: tuple[str, ...]
    words: str  # the error begins so
    options: Mapping[str, Any] = MappingProxyType({})
    stack: str | None = None

    @property
    def state(self) -> str:
        return self.kinds[-1]


CANCEL = Case(CANCELLED, f"cancelled while running; {NOT_STOPPED}")  # when a person asks it to stop
EITHER = {
    bad.recurse: Case(FAILED, "RecursionError: maximum recursion depth exceeded"),
    bad.hog: Case(FAILED, "MemoryError"),
    bad.return_too_much: Case(FAILED, UNSTORABLE),
    bad.raise_mute: Case(FAILED, "Mute: (its text could not be read)"),
    bad.raise_stuffed: Case(FAILED, "Stuffed: (<unlocked _thread.lock object at "),
    bad.leave_a_generator_open: Case(FAILED, UNSTORABLE),
    bad.leave_by_exit: Case(FAILED, "SystemExit: 7"),
    bad.interrupt_by_keyboard: Case(FAILED, "KeyboardInterrupt"),
}

# What leaves its process alone.
CASES: dict[str, tuple[Callable[..., Any], Case]] = {
    "spin": (bad.spin, Case(TIMED_OUT, "ran longer than timeout_s=1.5", LIMIT, "in spin")),
    "raise_endless": (
        bad.raise_endless,
        Case(TIMED_OUT, "ran longer than timeout_s=1.5", LIMIT, "in __str__"),
    ),
    "read_from_silence": (
        bad.read_from_silence,
        Case(TIMED_OUT, f"ran longer than timeout_s=1.5; {NOT_STOPPED}", LIMIT, "in read_from_silence"),
    ),
    "swallow_limit": (
        bad.swallow_cancellation,
        Case(TIMED_OUT, f"ran longer than timeout_s=1.5; {NOT_STOPPED}", LIMIT, "in swallow_cancellation"),
    ),
    "ignore_cancel": (bad.ignore_everything_aloud, CANCEL),
    "swallow_cancel": (bad.swallow_cancellation, CANCEL),
    "leave_an_async_generator_open": (bad.leave_an_async_generator_open, Case(FAILED, UNSTORABLE)),
    **{fn.__name__: (fn, case) for fn, case in EITHER.items()},
    **{f"a_{fn.__name__}": (bad.ASYNC[fn.__name__], case) for fn, case in EITHER.items()},
}

# What takes its process along, and how that process ends.
DEADLY = {
    bad.segfault: "was killed by SIGSEGV",
    bad.leave_at_once: "exited with code 3",
    bad.kill_itself: "was killed by SIGKILL",
}

# What ends the event loop, with which nothing of the process can go on.
LOOP_ENDS = {
    bad.exit_in_a_subtask: "SystemExit: 5",
    bad.exit_in_a_callback: "SystemExit: 5",
    bad.exit_slowly_in_a_callback: "SlowExit: 5",
    bad.stop_the_loop: "it was stopped",
}

# What holds the event loop, so that nothing on it can be stopped: the process gives back the rest and leaves.
DEAF = {bad.spin: "spin", bad.read_from_silence: "read_from_silence", bad.raise_endless: "__str__"}


def declare(app: App) -> App:
    """Declare all of them, and two neighbours."""
    for name, (fn, case) in CASES.items():
        app.task(name=name, **{**ONCE, **case.options})(fn)
    for fn in DEADLY:
        app.task(name=fn.__name__, crashes_max=2)(_at_a_sign(fn))
        app.task(name=f"a_{fn.__name__}", crashes_max=2)(_awaiting_a_sign(fn))
    for ends in LOOP_ENDS:
        app.task(name=ends.__name__, crashes_max=2)(_once_there_is_a_sign(ends))
    for fn in DEAF:
        app.task(name=f"deaf_{fn.__name__}", **ONCE, **LIMIT)(bad.ASYNC[fn.__name__])
    app.task(name="hold_the_lock", lease_s=SHORT_LEASE_S, **ONCE)(bad.hold_the_lock)
    app.task(name="start_a_grandchild")(bad.start_a_grandchild)
    app.task(name="fork_and_return")(bad.fork_and_return)
    app.task(name="a_fork_and_await")(bad.fork_and_await)
    app.task(name="fork_inside")(bad.fork_inside)
    app.task(name="neighbour")(bad.neighbour)
    app.task(name="a_neighbour")(bad.polite_neighbour)
    return app


def _at_a_sign(fn: Callable[[], None]) -> Callable[[], None]:
    """Wait for the file `strike`, so that everybody is in the process by then."""

    def run() -> None:
        while not _sign().exists():
            time.sleep(bad.NOW)
        fn()

    return run


def _awaiting_a_sign(fn: Callable[[], None]) -> Callable[[], Any]:
    async def run() -> None:
        while not _sign().exists():
            await asyncio.sleep(bad.NOW)
        fn()

    return run


def _once_there_is_a_sign(fn: Callable[[], Any]) -> Callable[[], Any]:
    async def run() -> None:
        while not _sign().exists():
            await asyncio.sleep(bad.NOW)
        await fn()

    return run


def _sign() -> Path:
    return Path(os.environ["CRASH_FOLDER"]) / "strike"


def _limit_memory() -> None:
    """In a worker: what is asked for beyond the room is refused, before it is a burden for the machine."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if sys.platform == "linux" and spec is not None and spec.name == "holdfast.cli.child":
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + ROOM, hard))


app = declare(App(journal="full"))
_limit_memory()
