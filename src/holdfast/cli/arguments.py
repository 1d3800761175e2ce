"""Hide a password in the arguments of this process, which `ps` shows to every user of the machine."""

from __future__ import annotations

import contextlib
import ctypes
import os
from pathlib import Path

_START, _END = 45, 46  # fields of /proc/self/stat after the name of the program: where the arguments lie in memory


def overwrite(argument: str, shown: str) -> None:
    """Write `shown`, which is as long, over every occurrence of the argument. Only Linux says where they are; elsewhere
    nothing happens."""
    wanted, other = os.fsencode(argument), os.fsencode(shown)
    if not wanted or len(wanted) != len(other):
        return
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        start, end = int(fields[_START]), int(fields[_END])
        at = -1
        while start and (at := ctypes.string_at(start, end - start).find(wanted, at + 1)) >= 0:
            ctypes.memmove(start + at, other, len(other))
