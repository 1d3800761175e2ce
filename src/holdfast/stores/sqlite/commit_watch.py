"""Wake threads that wait for commits, when another thread of this process or any program writes to the WAL.

The kernel tells of such writes (inotify), so an idle worker need not look at the file two hundred times a second. It
tells of the write, not of the commit, which counts a moment later, when it is synced. Where there is no inotify, or the
system has no more of them to give, no thread is notified: `hears` is false, and waiting threads look more often.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import sys
import threading
import weakref
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from holdfast import forks
from holdfast.clock import Clock

_IN_MODIFY = 0x2
_MOMENT_MS = 2  # after a write was heard: it is being synced, and others that follow at once are heard as one
_SYNC_S = 0.05  # a slow disk may take this long to sync it
_TICK_S = 0.005  # how often to look while something is about to come, or when nobody tells
_CALM_TICK_S = 0.05  # how often to look else


class CommitWatch(threading.Event):
    """An event that a write to the file sets off too: then `wait` returns early, and `touched` is true.

    A thread may miss a ring, if another has heard it first. It is a hint.
    """

    def __init__(self, database: Path) -> None:
        super().__init__()
        self.touched = False
        self._wal = os.fsencode(f"{database}-wal")
        self._closers = self._open()
        forks.renew_in_child(self)

    def hears(self) -> bool:
        """Begin to listen, or go on with it; say whether the kernel will tell of writes. The file may be a new one."""
        return self._watch is not None and _libc().inotify_add_watch(self._watch, self._wal, _IN_MODIFY) >= 0

    def wait_for(self, condition: Callable[[], bool], timeout_s: float, clock: Clock) -> bool:
        """Look until the condition holds, or the time is up; a call that sets or touches it makes it look at once."""
        calm_at, give_up_at = 0.0, clock.lease() + timeout_s
        calm_s = _CALM_TICK_S if self.hears() else _TICK_S
        while not condition():
            now = clock.lease()
            if now >= give_up_at:
                return False
            clock.wait(self, min(_TICK_S if now < calm_at else calm_s, give_up_at - now))
            self.clear()  # what it meant is for the condition to know
            if self.touched:
                calm_at = clock.lease() + _SYNC_S
        return True

    def set(self) -> None:
        if self.is_set():  # the thread that clears it looks after that, and sees this change too
            return
        super().set()
        with contextlib.suppress(BlockingIOError):  # it is full: that is as good as one more
            os.write(self._hand, b"\0")

    def clear(self) -> None:
        if self.is_set():
            super().clear()
            self._drain()

    def wait(self, timeout: float | None = None) -> bool:
        self.touched = False
        if not self.is_set():
            bell = select.poll()  # a nap in it costs half of one in a condition
            bell.register(self._ear, select.POLLIN)
            if self._watch is not None:
                bell.register(self._watch, select.POLLIN)
            rung = [end for end, _ in bell.poll(None if timeout is None else timeout * 1000)]
            if self._ear in rung:  # the flag may be another process's, or cleared already: else every wait ends at once
                self._drain()
            if self._watch is not None and self._watch in rung:
                self.touched = True
                bell.unregister(self._watch)
                bell.poll(_MOMENT_MS)
                with contextlib.suppress(BlockingIOError):
                    os.read(self._watch, 65536)
        return self.is_set()

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._ear, 65536)

    def _open(self) -> list[weakref.finalize[..., CommitWatch]]:
        """Open what to listen to; return what closes it."""
        self._ear, self._hand = os.pipe()
        self._watch = _new_watch()
        for end in (self._ear, self._hand):
            os.set_blocking(end, False)
        opened = (self._ear, self._hand, self._watch)
        return [weakref.finalize(self, os.close, each) for each in opened if each is not None]

    def after_fork_in_child(self) -> None:
        """Share nothing with the parent: a process that reads its hints would take them from it."""
        super().__init__()
        inherited = self._closers
        self._closers = self._open()
        for close in inherited:
            close()


def _new_watch() -> int | None:
    if sys.platform != "linux":
        return None
    watch = int(_libc().inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
    return watch if watch >= 0 else None


@lru_cache(maxsize=1)
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)
