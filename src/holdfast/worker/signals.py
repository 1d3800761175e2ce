"""SIGTERM and SIGINT as bytes on a pipe, so that nothing of ours ever runs inside a signal handler."""

from __future__ import annotations

import logging
import os
import signal

log = logging.getLogger("holdfast.worker")


def catch_signals() -> int:
    """Catch both from now on; return the descriptor on which each arrives as one byte. For the main thread only."""
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    return read_end


def see_children_end() -> None:
    """Let the system keep how our processes end until we ask. Code of the user's that ignores SIGCHLD, and some parents
    that start us, would have it forget. For the main thread only."""
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        log.warning("SIGCHLD was ignored; it is back at its default, or nobody could tell how processes end")
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
