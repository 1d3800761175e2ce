"""The only file that asks what time it is.

Two times, never mixed. *Wall* time is for people and for `run_at`. *Lease* time measures leases: it
counts while the machine is suspended, never jumps when the clock is set, and means
something only together with the boot it belongs to.

A handler may patch `time.time`, and tools such as freezegun replace the functions of `time` wherever a module has them
under any name. So they are taken once, before any code of a user runs, and kept where neither reaches: in a class.
time-machine changes these functions inside the interpreter, for everybody, but only what they say about CLOCK_REALTIME.
So on Linux the wall time comes from two other clocks of the kernel that are set together with it.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from functools import lru_cache
from pathlib import Path
from typing import Protocol

_LEASE_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # macOS: MONOTONIC counts sleep

_COARSE_CLOCK = 5  # CLOCK_REALTIME_COARSE of Linux, wall time as of the kernel's last tick; Python has no name for it


def _atomic_clock() -> int | None:
    """Return the clock of International Atomic Time, which differs from UTC by whole seconds; None if there is none."""
    try:
        time.clock_gettime(time.CLOCK_TAI)
        time.clock_gettime(_COARSE_CLOCK)
    except (AttributeError, OSError):  # another system, or a sandbox that does not know it
        return None
    return time.CLOCK_TAI


_TAI_CLOCK = _atomic_clock()

_OFFSETS = Path("/proc/self/timens_offsets")


class Clock(Protocol):
    """The source of a program's time; tests pass a fake one through the same code."""

    @property
    def boot_id(self) -> str:
        """Name the boot that `lease()` counts from. Boot ids have no order."""
        ...

    def wall(self) -> float:
        """Return seconds since the epoch."""
        ...

    def lease(self) -> float:
        """Return seconds on the clock that measures leases."""
        ...

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        """Wait until the event is set or the time is up; return whether it is set."""
        ...


class _Machine:
    """The functions of `time` as they were at the import of this module."""

    now = staticmethod(time.time)
    read = staticmethod(time.clock_gettime)
    sleep = staticmethod(time.sleep)


class SystemClock:
    """The machine's own clocks."""

    @property
    def boot_id(self) -> str:
        return _boot_id()

    def wall(self) -> float:
        if _TAI_CLOCK is None:
            return _Machine.now()
        read = _Machine.read
        tai = read(_TAI_CLOCK)
        return tai - int(tai - read(_COARSE_CLOCK) + 0.5)  # `round` would take as long as both clocks

    def lease(self) -> float:
        return _Machine.read(_LEASE_CLOCK)

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        return event.wait(max(0.0, timeout_s))


def pause(seconds: float) -> None:
    """Let other threads and processes go first for a moment."""
    _Machine.sleep(seconds)


@lru_cache(maxsize=1)
def _boot_id() -> str:
    if sys.platform == "darwin":
        answer = subprocess.run(
            ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"], capture_output=True, text=True, check=True
        )
        return answer.stdout.strip()
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip() + _clock_offset()


def _clock_offset() -> str:
    """Return how far the lease clock of this time namespace is from the host's; empty where they are the same.

    Lease times of namespaces with different offsets cannot be compared, just as those of different boots.
    """
    try:
        lines = [line.split() for line in _OFFSETS.read_text().splitlines()]
    except OSError:
        return ""  # a kernel without time namespaces
    for name, seconds, nanoseconds in lines:
        if name == "boottime" and (int(seconds), int(nanoseconds)) != (0, 0):
            return f"/boottime{int(seconds):+d}s{int(nanoseconds):+d}ns"
    return ""
