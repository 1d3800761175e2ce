"""Decide which attempts get a process of their own. No other module decides this."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.core.records import Job

_FAULTS = ("SIGSEGV", "SIGBUS", "SIGABRT", "SIGFPE", "SIGILL", "SIGSYS", "SIGTRAP")


def isolates(job: Job, *, declared: bool, shared: bool) -> bool:
    """Say whether this attempt runs in a process of its own.

    - `declared`: yes, because its task, or its worker for all tasks, asks for it.
    - One suspect: yes, also after a revive. The job crashed alone, by its own doing.
    - After a crash: yes if there were several suspects, after a second crash, or if the worker's process is `shared`
      with other jobs. If the job is innocent, that shows now, and its crash is removed from its count.
    """
    if declared or job.suspects == 1:
        return True
    return job.crashes > 0 and (job.suspects > 1 or job.crashes > 1 or shared)


def may_isolate(job: Job, *, declared: bool) -> bool:
    """Say whether this attempt may get a process of its own, before it is known who shares the worker's process."""
    return declared or job.suspects > 0 or job.crashes > 0


def ended_itself(facts: Mapping[str, Any]) -> bool:
    """Say whether the process was ended by its own code: an exit code or a fault signal. Other signals may come from
    outside."""
    return "exit_code" in facts or facts.get("signal") in _FAULTS
