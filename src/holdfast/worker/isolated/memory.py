"""The memory of isolated processes: limits by cgroup or by rlimit, resident memory, kills for want of memory.

A cgroup limits a process together with all that it starts, and the kernel says when it killed for it. It needs
version 2 and a worker that may make groups next to its own: `Delegate=yes` with `DelegateSubgroup=` under systemd.
Everywhere else an rlimit limits the process's own data; an allocation beyond it fails, which Python code sees as
`MemoryError`.
"""

from __future__ import annotations

import contextlib
import functools
import os
import resource
import sys
from pathlib import Path

MIB = 1 << 20
OFFER = 300  # in thousandths of the memory that there is
GROUPS = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")


class MemoryGroup:
    """A cgroup of version 2 that holds one isolated process and what it starts."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._kills = 0

    def limit(self, most_mb: int | None) -> None:
        """Limit the memory of the next attempt, all its processes together; None: no limit."""
        self._kills += self.kills()
        (self.path / "memory.max").write_text("max" if most_mb is None else str(most_mb * MIB))

    def kill(self) -> None:
        """Kill every process in it, also those that have left the process group."""
        with contextlib.suppress(OSError):
            (self.path / "cgroup.kill").write_text("1")

    def kills(self) -> int:
        """Count the processes in it that were killed for want of memory since the last attempt began."""
        return (_count(self.path / "memory.events") or 0) - self._kills

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.path.rmdir()


def make_group(pid: int, *, groups: Path = GROUPS, own: Path = OWN) -> MemoryGroup | None:
    """Put a process into a cgroup of its own next to ours; None where that is not allowed."""
    place = _place(own, "")
    if place is None or place == "/":
        return None
    around = (groups / place.lstrip("/")).parent
    if os.geteuid() == 0 and not _is_delegated(around):
        return None  # root could, but that part of the tree belongs to another program
    path = around / f"holdfast-cell-{pid}"
    try:
        if "memory" not in (around / "cgroup.subtree_control").read_text().split():
            (around / "cgroup.subtree_control").write_text("+memory")
        with contextlib.suppress(OSError):
            path.rmdir()  # of an isolated process with this number whose worker was killed
        path.mkdir()
        (path / "memory.max").read_text()
        with contextlib.suppress(OSError):
            (path / "memory.swap.max").write_text("0")
        (path / "cgroup.procs").write_text(str(pid))
    except OSError:
        with contextlib.suppress(OSError):
            path.rmdir()
        return None
    return MemoryGroup(path)


def _is_delegated(folder: Path) -> bool:
    """Say whether systemd has marked this part of the tree as ours."""
    for name in ("trusted.delegate", "user.delegate"):
        with contextlib.suppress(OSError, AttributeError):
            return os.getxattr(folder, name) == b"1"
    return False


def kills_here(*, groups: Path = GROUPS, own: Path = OWN) -> int | None:
    """Count the processes in our own cgroup that were killed for want of memory; None: nobody counts."""
    counts = [count for file in _counters(groups, own) if (count := _count(file)) is not None]
    return sum(counts) if counts else None


@functools.cache  # every attempt asks
def _counters(groups: Path, own: Path) -> list[Path]:
    files = []
    if (place := _place(own, "")) is not None:
        files.append(groups / place.lstrip("/") / "memory.events")
    if (place := _place(own, "memory")) is not None:
        files.append(groups / "memory" / place.lstrip("/") / "memory.oom_control")
    return [file for file in files if file.exists()]


def _place(own: Path, controller: str) -> str | None:
    """Return where in the tree we are: of version 2, or of one controller of version 1."""
    with contextlib.suppress(OSError):
        for line in own.read_text().splitlines():
            _, names, path = line.split(":", 2)
            if controller in names.split(","):
                return path
    return None


def _count(file: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        for line in file.read_text().splitlines():
            name, _, number = line.partition(" ")
            if name == "oom_kill":
                return int(number)
    return None


# ------------------------------------------------------------------------------------ in the isolated process


def rss_mb() -> float:
    """Return what this process holds in memory now; where the system does not say, the most that it ever held."""
    try:
        with open("/proc/self/statm", "rb", buffering=0) as file:
            return int(file.read(128).split()[1]) * resource.getpagesize() / MIB
    except (OSError, IndexError, ValueError):
        return peak_mb(resource.getrusage(resource.RUSAGE_SELF))


def peak_mb(used: resource.struct_rusage) -> float:
    """Return the most that a process ever held in memory."""
    return used.ru_maxrss / (MIB if sys.platform == "darwin" else 1024)


def offer_self() -> None:
    """Let the kernel, when memory is out, kill this process and what it starts sooner than a worker with many jobs.

    While a large process is dying its memory is not free yet, and the kernel may want a second victim at once.
    """
    with contextlib.suppress(OSError, ValueError):
        path = Path("/proc/self/oom_score_adj")
        path.write_text(str(min(1000, int(path.read_text()) + OFFER)))


def limit_self(most_mb: int | None) -> None:
    """Bound the data of this process; None takes the bound away. A wish: not every system keeps it."""
    kind = resource.RLIMIT_DATA if sys.platform == "linux" else resource.RLIMIT_AS
    with contextlib.suppress(OSError, ValueError):
        _, hard = resource.getrlimit(kind)
        wanted = hard if most_mb is None else most_mb * MIB
        resource.setrlimit(kind, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))
