"""The options of a worker, validated once."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Literal

from holdfast.core.text import check_storable
from holdfast.errors import UsageError

RELEASE_MAX = 100  # characters


def release_of_environment() -> str | None:
    """Return the release that the environment names, if it names one."""
    return os.environ.get("HOLDFAST_RELEASE") or None


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """The options of `holdfast worker`."""

    queues: tuple[str, ...] = ()  # empty: every queue that the app's tasks name
    slots: int = 20  # per process
    processes: int = 1
    name: str | None = None  # default: the host's name
    grace_period_s: float = 30.0  # how long running jobs may continue after SIGTERM
    reaper: bool = True
    grace_s: float = 0.0  # the reaper's patience beyond the end of a lease
    log_level: str = "info"
    metrics_port: int | None = None  # None: no metrics are counted
    metrics_host: str = "127.0.0.1"
    log_format: Literal["text", "json"] = "text"
    isolate: bool = False  # every task, not only those that ask for it
    in_process: bool = False  # no task gets a process of its own, whatever it asks for or has crashed: for tests
    imports: tuple[str, ...] = ()  # modules besides the app's own that declare tasks of it
    recycle_jobs: int = 1000  # an isolated process is replaced after this many jobs,
    recycle_mb: int = 1024  # or when it uses this much memory after a job

    release: str | None = field(default_factory=release_of_environment)  # of the user's code

    def __post_init__(self) -> None:
        check_storable(RELEASE_MAX, release=self.release)
        for name in ("slots", "processes"):
            value = getattr(self, name)
            if not 1 <= value <= 10_000:
                raise UsageError(f"{name}={value} must be between 1 and 10,000")
        for name in ("recycle_jobs", "recycle_mb"):
            value = getattr(self, name)
            if not 1 <= value <= 10**9:
                raise UsageError(f"{name}={value} must be between 1 and 1,000,000,000")
        for name in ("grace_period_s", "grace_s"):
            value = getattr(self, name)
            if not 0 <= value <= 1e9:
                raise UsageError(f"{name}={value} must be a number of seconds of at least 0")
