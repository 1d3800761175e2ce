"""Clocks for tests: two stand still until a test moves them, and `ShiftedClock` runs and can be set ahead.

Nothing waits on a `FakeClock`; on a `SteppedClock` waits take real time.
"""

from __future__ import annotations

import math
import threading

from holdfast.clock import SystemClock


class FakeClock:
    """Both clocks of a host, in the hand of a test. Pass it wherever a `Clock` is taken.

    Both stand still unless a test calls `advance`, or the code under test waits (see `wait`).
    """

    def __init__(self, wall: float = 1_700_000_000.0, lease: float = 1_000.0, boot_id: str = "boot-1") -> None:
        self.boot_id = boot_id
        self._wall = wall
        self._lease = lease
        self._lock = threading.Lock()

    def wall(self) -> float:
        return self._wall

    def lease(self) -> float:
        return self._lease

    def advance(self, seconds: float) -> None:
        """Let time pass, on both clocks."""
        if seconds < 0:
            raise ValueError(f"time does not run backwards ({seconds=}); a wall clock may: use set_wall")
        with self._lock:
            self._wall += seconds
            self._lease += seconds

    def set_wall(self, wall: float) -> None:
        """Set the wall clock, forwards or back, as a person or NTP would. Lease time does not notice."""
        with self._lock:
            self._wall = wall

    def reboot(self, boot_id: str, lease: float = 0.0) -> None:
        """Start the machine again: another boot id, and a lease clock that begins again."""
        with self._lock:
            self.boot_id = boot_id
            self._lease = lease

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        """Return whether the event is set. If it is not, do not sleep: the whole timeout passes at once.

        A loop that waits therefore runs as fast as it can, and each turn of it costs the virtual time that it
        asked for. An event that another thread is about to set is not waited for.
        """
        if event.is_set():
            return True
        self.advance(max(0.0, timeout_s))
        return event.is_set()


class ShiftedClock(SystemClock):
    """The real clock, with a wall clock that a test sets ahead: for `app.tick()`, timers of workflows and schedules.

    Leases, and everything that waits, go by the real time.
    """

    def __init__(self) -> None:
        super().__init__()
        self._ahead_s = 0.0

    def wall(self) -> float:
        return super().wall() + self._ahead_s

    def advance(self, seconds: float) -> None:
        """Set the wall clock ahead."""
        if seconds < 0:
            raise ValueError(f"time does not run backwards ({seconds=})")
        self._ahead_s += seconds


class SteppedClock:
    """A wall clock that stands still until a test moves it, for tests that run jobs.

    Waits take real time, so threads work as they do in production. Moving it moves the lease clock as well: a lease
    that nobody renews meanwhile ends. It stands at whole 64ths of a second, which every store keeps exactly.
    """

    def __init__(self, wall: float | None = None) -> None:
        self._real = SystemClock()
        self._wall = _whole(self._real.wall() if wall is None else wall)
        self._ahead_s = 0.0

    @property
    def boot_id(self) -> str:
        return self._real.boot_id

    def wall(self) -> float:
        return self._wall

    def lease(self) -> float:
        return self._real.lease() + self._ahead_s

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        return self._real.wait(event, timeout_s)

    def advance(self, seconds: float) -> None:
        """Let time pass, on both clocks."""
        if seconds < 0:
            raise ValueError(f"time does not run backwards ({seconds=})")
        self.advance_to(self._wall + seconds)

    def advance_to(self, wall: float) -> None:
        """Let time pass until this instant, in seconds since 1970; it may have passed."""
        left_s = max(0.0, _whole(wall) - self._wall)
        self._wall += left_s
        self._ahead_s += left_s


def _whole(seconds: float) -> float:
    return math.ceil(seconds * 64) / 64
