"""How quiet the machine was: what other programs used of it while we measured, and how fast its disk was."""

from __future__ import annotations

import os
import platform
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

servers: list[int] = []  # what they use is not the use of others


class Share:
    """Filled when the block ends: the CPU time of others and of the hypervisor, in percent of one core."""

    others: float = 0.0
    stolen: float = 0.0


@contextmanager
def others() -> Iterator[Share]:
    """Measure what programs that are not ours use meanwhile. Our own must have ended with the block."""
    share = Share()
    began, busy, stolen, ours = time.perf_counter(), *_machine(), _ours()
    yield share
    length = time.perf_counter() - began
    busy_now, stolen_now = _machine()
    share.others = max(0.0, 100 * (busy_now - busy - (_ours() - ours)) / length)
    share.stolen = 100 * (stolen_now - stolen) / length


def _machine() -> tuple[float, float]:
    try:
        fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    except OSError:  # not Linux
        return 0.0, 0.0
    user, nice, system, _, _, irq, softirq, steal = (int(field) / os.sysconf("SC_CLK_TCK") for field in fields[:8])
    return user + nice + system + irq + softirq, steal


def _ours() -> float:
    return sum(os.times()[:4]) + of_servers()


def of_servers() -> float:
    """Return the CPU time of the servers that were started here."""
    return sum(_with_children(pid) for pid in servers)


def _with_children(pid: int) -> float:
    """Return the CPU time of a server, of its sessions, and of those that have ended."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:  # not Linux
        return 0.0
    living = 0
    for each in (pid, *children):
        with suppress(OSError):  # a session ended just now; it is among those that have ended
            living += int(Path(f"/proc/{each}/schedstat").read_text().split()[0])
    ended = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[13:15]
    return living / 1e9 + sum(map(int, ended)) / os.sysconf("SC_CLK_TCK")


def commits(folder: Path, number: int = 1000) -> float:
    """Return how many one-row commits with synchronous FULL this disk takes in a second just now."""
    path = folder / f"commits-{time.monotonic_ns()}.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=FULL")
        db.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, payload TEXT)")
        began = time.perf_counter()
        for _ in range(number):
            db.execute("INSERT INTO t (payload) VALUES ('{}')")
        return number / (time.perf_counter() - began)


def machine(folder: Path) -> dict[str, str]:
    """Say what this is, without saying whose."""
    return {
        "cores": str(os.cpu_count()),
        "cpu": _cpu(),
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "file system": _file_system(folder),
        "Python": platform.python_version(),
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def _file_system(folder: Path) -> str:
    try:
        mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return "unknown"
    above = [(place, kind) for place, kind in mounts if folder.resolve().is_relative_to(place)]
    return max(above, key=lambda each: len(each[0]))[1] if above else "unknown"


def family(pid: int) -> list[int]:
    """Return a process and its living descendants."""
    found = [pid]
    for each in found:
        for thread in Path("/proc", str(each), "task").iterdir():
            found += map(int, (thread / "children").read_text().split())
    return found


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process and its living descendants so far, to the nanosecond."""
    threads = [thread for each in family(pid) for thread in Path("/proc", str(each), "task").iterdir()]
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9
