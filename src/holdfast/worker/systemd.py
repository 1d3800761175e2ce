"""Messages to systemd, for a unit with Type=notify: the worker is ready, is alive, is stopping.

systemd names a datagram socket in NOTIFY_SOCKET. Nobody else does, and then nothing is sent.
"""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Mapping

log = logging.getLogger("holdfast.supervisor")


class Systemd:
    """See the module's docstring. No message blocks, and none raises."""

    def __init__(self, environment: Mapping[str, str], pid: int) -> None:
        self._address = _address(environment.get("NOTIFY_SOCKET", ""))
        self._every_s = _interval_s(environment, pid) / 2  # as sd_watchdog_enabled(3) advises
        self._next_at = float("-inf")
        self._sent: set[str] = set()
        self._complained = False

    def ready(self) -> None:
        """Say once that the worker claims jobs."""
        self._once("READY=1\nSTATUS=running jobs")

    def stopping(self) -> None:
        """Say once that the worker stops."""
        self._once("STOPPING=1\nSTATUS=finishing running jobs")

    def alive(self, now: float) -> None:
        """Say that the worker is alive, twice in each interval of the watchdog. `now`: a clock that never goes back."""
        if self._every_s and now >= self._next_at:
            self._next_at = now + self._every_s
            self._send("WATCHDOG=1")

    def _once(self, message: str) -> None:
        if message not in self._sent:
            self._sent.add(message)
            self._send(message)

    def _send(self, message: str) -> None:
        if self._address is None:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as end:
                end.setblocking(False)
                end.sendto(message.encode(), self._address)
        except OSError as error:
            if not self._complained:
                log.warning("systemd could not be notified (%s); if it waits for that, it will end this worker", error)
            self._complained = True


def _address(named: str) -> str | None:
    """Return the address of systemd's socket; `@` stands for the NUL of an abstract one."""
    if named.startswith("@"):
        return "\0" + named[1:]
    return named if named.startswith("/") else None


def _interval_s(environment: Mapping[str, str], pid: int) -> float:
    """Return the interval of the watchdog in seconds; 0 when systemd watches nothing, or another process."""
    if environment.get("WATCHDOG_PID", str(pid)) != str(pid):
        return 0.0
    with contextlib.suppress(ValueError):
        return max(0.0, int(environment.get("WATCHDOG_USEC", "0")) / 1e6)
    return 0.0
