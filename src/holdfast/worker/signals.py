"""SIGTERM, SIGINT and SIGHUP as bytes on a pipe, so that nothing of ours ever runs inside a signal handler."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable

log = logging.getLogger("holdfast.worker")

_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def catch_signals() -> int:
    """Catch them from now on; return the descriptor on which each arrives as one byte. For the main thread only."""
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end)
    handle_signals(lambda *_: None)
    return read_end


def handle_signals(handler: Callable[..., object] | signal.Handlers) -> None:
    """Call `handler` at each of them, also where a parent or a module of the user's has blocked them. For the main
    thread only. SIGHUP stays ignored if it is: the program was started by `nohup`."""
    for number in _ENDING:
        if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (*_ENDING, signal.SIGCHLD))


def see_children_end() -> None:
    """Let the system keep how our processes end until we ask. Code of the user's that ignores SIGCHLD, and some parents
    that start us, would have it forget. For the main thread only."""
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        log.warning(
            'SIGCHLD was set to "ignore"; Holdfast restored the default, because it needs the exit codes of its '
            "processes"
        )
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
