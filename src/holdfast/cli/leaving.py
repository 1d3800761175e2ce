"""Stop a command at a signal, and end its process even if threads of the user keep it alive."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from holdfast.clock import pause

log = logging.getLogger("holdfast.cli")

LEAVE_S = 5.0  # for threads and exit functions of the user's app, when nothing of ours is left to do
SAY_S = 1.0  # for the log line about them


class Stopped(KeyboardInterrupt):
    """SIGTERM or SIGHUP: a command ends as at Ctrl-C."""

    def __init__(self, number: int) -> None:
        self.number = signal.Signals(number)
        super().__init__(f"stopped by {self.number.name}")


def raise_signals() -> None:
    """Let the signals that end a program raise `KeyboardInterrupt`. For the main thread only."""
    from holdfast.worker.signals import handle_signals

    handle_signals(_raise)


def _raise(number: int, _: object) -> None:
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise Stopped(number)


def story(error: KeyboardInterrupt) -> tuple[str, int]:
    """Return what to say of a command that was stopped, with what it noted about how far it got, and its exit code."""
    what = "; ".join([str(error) or "interrupted", *getattr(error, "__notes__", ())])
    return what, 128 + (error.number if isinstance(error, Stopped) else signal.SIGINT)


def stopped_by_signals() -> threading.Event:
    """Return an event that SIGTERM, SIGHUP and Ctrl-C set from now on. For the main thread only."""
    from holdfast.worker.signals import catch_signals

    stop, signals = threading.Event(), catch_signals()

    def listen() -> None:
        os.read(signals, 1)
        stop.set()

    threading.Thread(target=listen, name="holdfast-signals", daemon=True).start()
    return stop


@contextmanager
def noting(how_far: Callable[[], str]) -> Iterator[None]:
    """Let a command that is stopped inside the block say how far it got."""
    try:
        yield
    except KeyboardInterrupt as error:
        error.add_note(how_far())
        raise


def leave_within(seconds: float, code: int) -> None:
    """End this process by then with this exit code, whatever keeps it: a thread of the user's that is not a daemon, or
    a function that was registered with `atexit`. The log says which."""

    def say() -> None:
        pause(seconds)
        kept = [each for each in threading.enumerate() if not each.daemon and each is not threading.main_thread()]
        names = ", ".join(repr(each.name) for each in kept)
        what = f"threads that are not daemons still run: {names}" if kept else "an atexit function does not return"
        log.warning("everything is settled, but %s; this process ends without waiting for that", what)
        logging.shutdown()
        os._exit(code)

    def end() -> None:
        pause(seconds + SAY_S)  # should the log be what cannot be written
        os._exit(code)

    for target in (say, end):  # now: at the end of the interpreter no thread can be started
        threading.Thread(target=target, name="holdfast-leaving", daemon=True).start()
