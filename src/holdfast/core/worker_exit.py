"""What stands on the row of a worker that is gone, so that everybody settles its jobs in the same manner.

exit: its process was killed by SIGKILL                         somebody saw it die
excused: exit: its process ended itself because the store …     and nobody is to blame
released: the worker stopped                                    its jobs are given back
"""

from __future__ import annotations

import re
import signal
from typing import Any, get_args

import msgspec

from holdfast.core.records import Detector

RELEASED = "released"
EXCUSED = "excused"


class WorkerExit(msgspec.Struct, frozen=True):
    """How a worker ended. `detector` is None when it was told to stop: then it is not lost."""

    cause: str
    detector: Detector | None
    excused: bool = False

    def __str__(self) -> str:
        if self.detector is None:
            return f"{RELEASED}: {self.cause}"
        return f"{EXCUSED}: {self.detector}: {self.cause}" if self.excused else f"{self.detector}: {self.cause}"

    @property
    def facts(self) -> dict[str, Any]:
        """Return what the parent of a process saw of its end, for the autopsy: its exit code or signal."""
        if self.detector != "exit":
            return {}
        if code := re.search(r"\bexited with code (\d+)$", self.cause):
            return {"exit_code": int(code[1])}
        if killed := re.search(r"\bkilled by (SIG\w+|signal \d+)$", self.cause):
            return {"signal": killed[1]}
        return {}


def read_epitaph(text: str | None) -> WorkerExit:
    """Read what stands there; words of another origin are the cause of a worker that vanished."""
    first, _, rest = (text or "").partition(": ")
    if first == RELEASED:
        return WorkerExit(rest, None)
    excused = first == EXCUSED
    if excused:
        first, _, rest = rest.partition(": ")
    for detector in get_args(Detector):
        if first == detector:
            return WorkerExit(rest, detector, excused)
    return WorkerExit(text or "marked gone", "vanished")


def how_it_ended(code: int) -> str:
    """Say how a process ended, from its exit code or, negative, the number of the signal."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
