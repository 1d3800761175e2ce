"""SIGTERM and SIGINT as bytes on a pipe, so that nothing of ours ever runs inside a signal handler."""

from __future__ import annotations

import os
import signal


def catch_signals() -> int:
    """Catch both from now on; return the descriptor on which each arrives as one byte. For the main thread only."""
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    return read_end
